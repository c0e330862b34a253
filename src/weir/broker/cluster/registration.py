"""This broker's registration under its lease, and what it knows of the others' registrations.

Brokers that are registered and no longer listen: they are most likely dead, and their lease is about to end.

Clients are sent to who gets a dead broker's bundles next, and wait there, instead of finding out about it by
asking again after growing pauses. It is a hint: nothing is taken from a broker before its lease has ended.

The number of a broker, by which protocols know it: given once, kept under its name, never another's.

Which features the cluster uses: those that every registered broker has, followed as brokers come and go.

What can be set about ownership.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from weir.broker.peers.peer_calls import PeerCalls
from weir.meta import keys
from weir.meta.interfaces import ABSENT, Lease, MetaStore
from weir.meta.mirror import Mirror
from weir.meta.update import Codec
from weir.model.cluster import BundleClaim, common_features
from weir.model.errors import MetaConflictError, MetaError, MetaUnavailableError, PeerError, PeerUnavailableError
from weir.model.registry import BrokerInfo
from weir.runtime.interfaces import Clock, Runtime
from weir.runtime.tasks import TaskScope
from weir.wire.peer.calls import Ping
from weir.wire.registry import decode_broker, encode_broker


@dataclass(frozen=True, slots=True)
class OwnershipSettings:
    """How long others believe in a broker that they no longer hear, and how soon and how long it tries."""

    ttl_s: float = 5.0
    retry_s: float = 0.2
    claim_attempts: int = 5
    close_timeout_s: float = 2.0
    #: Handing a bundle over: how long the successor has to get ready, and how long topics have to close.
    ready_s: float = 2.0
    put_down_s: float = 5.0
    #: How long whoever asks the successor waits for the bundle to come.
    arrival_s: float = 5.0
    #: How long a broker that goes down takes to hand over what it has.
    drain_s: float = 20.0
    #: Bundles that are handed over at the same time.
    moves_at_once: int = 8


_ATTEMPTS = 100
_RETRY_S = 0.1


async def number_of(meta: MetaStore, runtime: Runtime, broker_id: str) -> int:
    """The broker's number; the first that nobody has, if it has none yet. The first broker of all gets 0."""
    for attempt in range(_ATTEMPTS):
        try:
            found = await meta.get(keys.broker_number(broker_id))
            if found is not None:
                return int(found.value)
            number = await _take(meta)
            await meta.put(keys.broker_number(broker_id), str(number).encode(), expect=ABSENT)
            return number
        except MetaConflictError:
            continue
        except MetaUnavailableError:
            if attempt == _ATTEMPTS - 1:
                raise
            await runtime.clock.sleep(_RETRY_S)
    raise MetaConflictError(f"broker {broker_id} got no number: others take them all the time")


async def _take(meta: MetaStore) -> int:
    """The next number. One whose taking had an unknown outcome is nobody's."""
    found = await meta.get(keys.NEXT_BROKER_NUMBER)
    number = 0 if found is None else int(found.value)
    expect = ABSENT if found is None else found.version
    await meta.put(keys.NEXT_BROKER_NUMBER, str(number + 1).encode(), expect=expect)
    return number


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


class FeatureGate:
    """Fills `FeaturesInUse`. `live` answers the same object until a broker comes, goes or says something else."""

    def __init__(self, live: Callable[[], Mapping[str, BrokerInfo]]) -> None:
        self._live = live
        self._as_of: Mapping[str, BrokerInfo] | None = None
        self._common: frozenset[str] = frozenset()

    def uses(self, feature: str) -> bool:
        live = self._live()
        if live is not self._as_of:
            self._as_of, self._common = live, common_features(live.values())
        return feature in self._common


log = logging.getLogger(__name__)

BROKER: Codec[BrokerInfo] = Codec(encode_broker, decode_broker)

#: So long it is known of a broker that it was there.
_FORMER_S = 10.0


class Registration:
    """Replaces a lease that is lost: `on_loss` is called before it does, and `on_gain` after."""

    def __init__(
        self,
        meta: MetaStore,
        runtime: Runtime,
        info: BrokerInfo,
        settings: OwnershipSettings,
        *,
        on_loss: Callable[[], None],
        on_gain: Callable[[], None],
        on_change: Callable[[str], None] = lambda key: None,
    ) -> None:
        """`on_change` is called with the key of each broker that comes, goes or says something else of itself."""
        self._meta = meta
        self._clock = runtime.clock
        self._settings = settings
        self._on_loss = on_loss
        self._on_gain = on_gain
        self._on_change = on_change
        self._brokers = Mirror(meta, runtime, keys.BROKERS, BROKER, self._told)
        self._live: dict[str, BrokerInfo] | None = None
        #: Registrations as they were last told of; and brokers without one any more, since when.
        self._last_told: dict[str, BrokerInfo] = {}
        self._gone: dict[str, tuple[BrokerInfo, float]] = {}
        self._lease: Lease | None = None
        self._registered = asyncio.Event()
        self._tasks = TaskScope(f"registration {info.broker_id}")
        self.info = info

    async def start(self) -> None:
        """Know the others, and be known."""
        await self._brokers.start()
        self._tasks.spawn(self._keep(), "registration")
        await self._registered.wait()

    async def close(self) -> None:
        """Give the lease up. If the store does not answer, it runs out by itself."""
        await self._tasks.close()
        lease, self._lease = self._lease, None
        self._registered.clear()
        self._on_loss()
        if lease is not None:
            try:
                async with asyncio.timeout(self._settings.close_timeout_s):
                    await lease.revoke()
            except (MetaError, TimeoutError) as failure:
                log.warning("broker %s could not unregister: %s", self.info.broker_id, failure)
        await self._brokers.close()

    @property
    def lease(self) -> Lease | None:
        """What everything that this broker has stands on; None while it has none that is alive."""
        return self._lease if self._lease is not None and self._lease.alive else None

    @property
    def live(self) -> dict[str, BrokerInfo]:
        """Every registered broker, this one among them, in the order of their numbers."""
        if self._live is None:
            known = {broker.broker_id: broker for broker in self._brokers.items().values()}
            known[self.info.broker_id] = self.info
            ordered = sorted(known.values(), key=lambda broker: (broker.node_id, broker.broker_id))
            self._live = {broker.broker_id: broker for broker in ordered}
        return self._live

    def former(self) -> list[BrokerInfo]:
        """Brokers that were registered until some seconds ago, and went without a word."""
        now, live = self._clock.monotonic(), self.live
        self._gone = {
            name: (info, since)
            for name, (info, since) in self._gone.items()
            if name not in live and now - since < _FORMER_S
        }
        return [info for info, _ in self._gone.values()]

    def _told(self, key: str, present: bool) -> None:
        info = self._brokers.get(key) if present else None
        if info is not None:
            self._last_told[key] = info
        elif (gone := self._last_told.pop(key, None)) is not None and not gone.draining:
            self._gone[gone.broker_id] = gone, self._clock.monotonic()
        self._changed()
        self._on_change(key)

    def _changed(self) -> None:
        self._live = None

    def is_mine(self, claim: BundleClaim | None) -> bool:
        """Whether the claim names this start of this broker."""
        return claim is not None and (claim.owner, claim.instance) == (self.info.broker_id, self.info.instance)

    def holder(self, claim: BundleClaim | None) -> BrokerInfo | None:
        """The broker for which the claim counts: it is registered, as the same start of it."""
        found = self.live.get(claim.owner) if claim is not None else None
        return found if found is not None and claim is not None and found.instance == claim.instance else None

    async def confirmed_holder(self, claim: BundleClaim | None) -> BrokerInfo | None:
        """`holder`, by the store's own word; what is known of it here is as new."""
        if claim is None or not claim.owner or self.is_mine(claim):
            return None
        found = await self._brokers.refresh(keys.broker(claim.owner))
        return found.value if found is not None and found.value.instance == claim.instance else None

    async def drain(self, draining: bool) -> None:
        """Tell the others whether this broker takes anything. They hear it later if the store does not answer."""
        self.info = replace(self.info, draining=draining)
        self._changed()
        if self.lease is not None:
            try:
                await self._put(self.lease)
            except MetaError as failure:
                log.warning("broker %s could not say that it is drained: %s", self.info.broker_id, failure)

    async def _put(self, lease: Lease) -> None:
        await self._meta.put(keys.broker(self.info.broker_id), encode_broker(self.info), lease=lease)

    async def _keep(self) -> None:
        lease: Lease | None = None
        while True:
            try:
                if lease is None or not lease.alive:
                    lease = await self._meta.lease(self._settings.ttl_s)
                await self._put(lease)
            except MetaError as failure:
                log.warning("broker %s could not register: %s", self.info.broker_id, failure)
                await self._clock.sleep(self._settings.retry_s)
                continue
            self._lease = lease
            self._registered.set()
            self._on_gain()
            await lease.lost()
            log.warning("broker %s lost its lease and everything that it held", self.info.broker_id)
            self._lease = None
            self._registered.clear()
            self._on_loss()
