"""This broker's registration under its lease, and what it knows of the others' registrations."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from weir.broker.bundles.settings import OwnershipSettings
from weir.broker.registry.mirror import Mirror
from weir.meta import keys
from weir.meta.interfaces import Lease, MetaStore
from weir.meta.update import Codec
from weir.model.bundles import BundleClaim
from weir.model.errors import MetaError
from weir.model.registry import BrokerInfo
from weir.runtime import Runtime
from weir.runtime.tasks import TaskScope
from weir.wire.registry import decode_broker, encode_broker

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
