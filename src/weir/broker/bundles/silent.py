"""Brokers that are registered and no longer listen: they are most likely dead, and their lease is about to end.

Clients are sent to who gets a dead broker's bundles next, and wait there, instead of finding out about it by
asking again after growing pauses. It is a hint: nothing is taken from a broker before its lease has ended.
"""

import asyncio
from typing import Protocol

from weir.broker.peers.calls import PeerCalls
from weir.model.errors import PeerError, PeerUnavailableError
from weir.model.registry import BrokerInfo
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.wire.peer.node import Ping

#: A broker is asked this often at the most, and has this long to answer. One that does not answer at all may be
#: slow, or cut off from this one alone: only one that does not listen counts as gone.
_FRESH_S = 0.5
_ANSWER_S = 1.0


class Reach(Protocol):
    async def listens(self, broker_id: str) -> bool:
        """False if nobody listens where the broker should; True also if that is not known."""


class Unknown:
    """Fills `Reach` where brokers cannot speak to each other."""

    async def listens(self, broker_id: str) -> bool:
        return True


class PeerReach:
    """Fills `Reach` by a ping."""

    def __init__(self, peers: PeerCalls, clock: Clock) -> None:
        self._peers = peers
        self._clock = clock

    async def listens(self, broker_id: str) -> bool:
        began = self._clock.monotonic()
        try:
            await self._peers.ask(broker_id, Ping(), timeout_s=_ANSWER_S)
        except PeerUnavailableError:
            return self._clock.monotonic() - began >= _ANSWER_S
        except PeerError:
            return True
        return True


class _Known:
    """What is known of one start of a broker."""

    __slots__ = ("asked_at", "asking", "instance", "since")

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.asked_at = float("-inf")
        self.asking: asyncio.Task[None] | None = None
        #: Since when it does not listen; None while it does, as far as is known.
        self.since: float | None = None


class SilentBrokers:
    """`believed_s`: whoever is registered for so long after it was found silent is alive, whatever this broker
    sees of it."""

    def __init__(self, clock: Clock, tasks: TaskScope, *, believed_s: float) -> None:
        self.reach: Reach = Unknown()
        self._clock = clock
        self._tasks = tasks
        self._believed_s = believed_s
        self._known: dict[str, _Known] = {}

    def is_silent(self, broker: BrokerInfo) -> bool:
        known = self._known.get(broker.broker_id)
        if known is None or known.since is None or known.instance != broker.instance:
            return False
        return self._clock.monotonic() - known.since < self._believed_s

    def look(self, broker: BrokerInfo) -> "asyncio.Task[None] | None":
        """Find out, unless that was done just now. Whoever asks from outside of the loop hears what is known."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return None
        known = self._known.get(broker.broker_id)
        if known is None or known.instance != broker.instance:
            known = self._known[broker.broker_id] = _Known(broker.instance)
        now = self._clock.monotonic()
        if (known.asking is None or known.asking.done()) and now - known.asked_at >= _FRESH_S:
            known.asked_at = now
            known.asking = self._tasks.spawn(self._ask(broker.broker_id, known), f"look for {broker.broker_id}")
        return known.asking

    async def looked(self, broker: BrokerInfo) -> None:
        """Wait until it is known, for as long as a broker that lives may take to answer."""
        asking = self.look(broker)
        if asking is not None and not asking.done():
            await asyncio.wait([asking], timeout=_ANSWER_S)

    async def _ask(self, broker_id: str, known: _Known) -> None:
        if await self.reach.listens(broker_id):
            known.since = None
        elif known.since is None:
            known.since = self._clock.monotonic()
