"""Registration of this broker under its lease, a view of all registrations, suspected brokers and cluster
features.

Suspected brokers are registered but do not listen: most likely they are dead, and their lease ends soon. Redirects
send clients to the next owner of their bundles, where clients wait instead of retrying with growing pauses. This
is a hint: no broker takes a bundle before the lease of its owner has ended.
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
    """Lease, retries and timeouts of ownership."""

    ttl_s: float = 5.0
    retry_s: float = 0.2
    claim_attempts: int = 5
    close_timeout_s: float = 2.0
    #: Handover of a bundle: timeout of the successor's preparation, and timeout of the close of topics.
    ready_s: float = 2.0
    put_down_s: float = 5.0
    #: How long requests at the successor wait for the bundle.
    arrival_s: float = 5.0
    #: Timeout of the handover of all bundles at shutdown.
    drain_s: float = 20.0
    #: Concurrent handovers of bundles.
    moves_at_once: int = 8


_ATTEMPTS = 100
_RETRY_S = 0.1


async def number_of(meta: MetaStore, runtime: Runtime, broker_id: str) -> int:
    """The node id of the broker, which protocols use; assigned once, stored by name, never reused. The first is
    0."""
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
    raise MetaConflictError(
        f"broker {broker_id} got no node id: conflicts with other brokers in {_ATTEMPTS} attempts"
    )


async def _take(meta: MetaStore) -> int:
    """Allocate the next number. A number with an unknown outcome of its allocation stays unused."""
    found = await meta.get(keys.NEXT_BROKER_NUMBER)
    number = 0 if found is None else int(found.value)
    expect = ABSENT if found is None else found.version
    await meta.put(keys.NEXT_BROKER_NUMBER, str(number + 1).encode(), expect=expect)
    return number


#: Minimum interval of pings to a broker, and their timeout. A broker that does not answer may be slow, or cut off
#: from this one alone: only a refused connection makes it suspected.
_FRESH_S = 0.5
_ANSWER_S = 1.0


class Reach(Protocol):
    async def listens(self, broker_id: str) -> bool:
        """False if the broker's address refuses connections; True if it listens or the state is unknown."""


class Unknown:
    """Fills `Reach` if brokers have no peer connections."""

    async def listens(self, broker_id: str) -> bool:
        return True


class PeerReach:
    """Fills `Reach` with pings."""

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
    """State of one start of a broker."""

    __slots__ = ("asked_at", "asking", "instance", "since")

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.asked_at = float("-inf")
        self.asking: asyncio.Task[None] | None = None
        #: Time of the first refused connection; None while the broker is believed to listen.
        self.since: float | None = None


class SuspectedBrokers:
    """Suspected brokers. `believed_s`: a broker that is still registered this long after the suspicion is alive,
    even if this broker cannot connect to it."""

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
        """Start a ping, unless one ended recently. Does nothing outside of the event loop."""
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
            known.asking = self._tasks.spawn(self._ask(broker.broker_id, known), f"ping {broker.broker_id}")
        return known.asking

    async def looked(self, broker: BrokerInfo) -> None:
        """Wait for the result of a ping, with a timeout."""
        asking = self.look(broker)
        if asking is not None and not asking.done():
            await asyncio.wait([asking], timeout=_ANSWER_S)

    async def _ask(self, broker_id: str, known: _Known) -> None:
        if await self.reach.listens(broker_id):
            known.since = None
        elif known.since is None:
            known.since = self._clock.monotonic()


class FeatureGate:
    """Fills `FeaturesInUse`: a feature is in use if all registered brokers have it. `live` returns the same object
    until a registration changes."""

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

#: How long the record of an unregistered broker is kept.
_FORMER_S = 10.0


class Registration:
    """Registers again after the loss of its lease: calls `on_loss` before, and `on_gain` after."""

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
        """`on_change`: called with the key of each registration that is added, removed or changed."""
        self._meta = meta
        self._clock = runtime.clock
        self._settings = settings
        self._on_loss = on_loss
        self._on_gain = on_gain
        self._on_change = on_change
        self._brokers = Mirror(meta, runtime, keys.BROKERS, BROKER, self._told)
        self._live: dict[str, BrokerInfo] | None = None
        #: Latest known registrations; and brokers that are no longer registered, with the time of their removal.
        self._last_told: dict[str, BrokerInfo] = {}
        self._gone: dict[str, tuple[BrokerInfo, float]] = {}
        self._lease: Lease | None = None
        self._registered = asyncio.Event()
        self._tasks = TaskScope(f"registration {info.broker_id}")
        self.info = info

    async def start(self) -> None:
        """Load all registrations, and register this broker."""
        await self._brokers.start()
        self._tasks.spawn(self._keep(), "registration")
        await self._registered.wait()

    async def close(self) -> None:
        """Revoke the lease. If the store does not answer, the lease expires."""
        await self._tasks.close()
        lease, self._lease = self._lease, None
        self._registered.clear()
        self._on_loss()
        if lease is not None:
            try:
                async with asyncio.timeout(self._settings.close_timeout_s):
                    await lease.revoke()
            except (MetaError, TimeoutError) as failure:
                log.warning("broker %s: lease not revoked (it will expire): %s", self.info.broker_id, failure)
        await self._brokers.close()

    @property
    def lease(self) -> Lease | None:
        """The lease that protects all ownership of this broker; None while it has no valid one."""
        return self._lease if self._lease is not None and self._lease.alive else None

    @property
    def live(self) -> dict[str, BrokerInfo]:
        """All registered brokers, including this one, in the order of node ids."""
        if self._live is None:
            known = {broker.broker_id: broker for broker in self._brokers.items().values()}
            known[self.info.broker_id] = self.info
            ordered = sorted(known.values(), key=lambda broker: (broker.node_id, broker.broker_id))
            self._live = {broker.broker_id: broker for broker in ordered}
        return self._live

    def former(self) -> list[BrokerInfo]:
        """Brokers that lost their registration some seconds ago without a drain."""
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
        """The owner that the claim names, if that start of the broker is registered; else None."""
        found = self.live.get(claim.owner) if claim is not None else None
        return found if found is not None and claim is not None and found.instance == claim.instance else None

    async def confirmed_holder(self, claim: BundleClaim | None) -> BrokerInfo | None:
        """`holder`, read from the store; also updates the registration in memory."""
        if claim is None or not claim.owner or self.is_mine(claim):
            return None
        found = await self._brokers.refresh(keys.broker(claim.owner))
        return found.value if found is not None and found.value.instance == claim.instance else None

    async def drain(self, draining: bool) -> None:
        """Publish whether this broker is draining. If the store does not answer, the next registration publishes
        it."""
        self.info = replace(self.info, draining=draining)
        self._changed()
        if self.lease is not None:
            try:
                await self._put(self.lease)
            except MetaError as failure:
                log.warning(
                    "broker %s: change of its draining state not stored (repeated with the next registration): %s",
                    self.info.broker_id,
                    failure,
                )

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
                log.warning(
                    "registration of broker %s failed (repeated after a pause): %s", self.info.broker_id, failure
                )
                await self._clock.sleep(self._settings.retry_s)
                continue
            self._lease = lease
            self._registered.set()
            self._on_gain()
            await lease.lost()
            log.warning(
                "broker %s: lease lost, ownership of all bundles released (it registers again)",
                self.info.broker_id,
            )
            self._lease = None
            self._registered.clear()
            self._on_loss()
