"""Which broker serves which topic: registrations and claims in the metadata, all under one lease per broker.

A claim is a hint for liveness, not what keeps data safe: a broker that wrongly believes to own a topic finds its
ledgers fenced by the next owner. So nothing here waits for clocks to agree.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from weir.broker.api import Owner
from weir.broker.registry.mirror import Mirror
from weir.meta import keys
from weir.meta.interfaces import ABSENT, Lease, MetaStore
from weir.meta.update import Codec
from weir.model.errors import (
    LeaseExpiredError,
    MetaConflictError,
    MetaError,
    MetaUnavailableError,
    NotOwnerError,
)
from weir.model.registry import BrokerInfo, TopicOwner
from weir.model.topics import TopicName
from weir.runtime import Runtime
from weir.runtime.tasks import TaskScope
from weir.wire.registry import decode_broker, decode_owner, encode_broker, encode_owner

log = logging.getLogger(__name__)

BROKER: Codec[BrokerInfo] = Codec(encode_broker, decode_broker)
OWNER: Codec[TopicOwner] = Codec(encode_owner, decode_owner)


@dataclass(frozen=True, slots=True)
class OwnershipSettings:
    """How long others believe in a broker that they no longer hear, and how soon it tries again."""

    ttl_s: float = 10.0
    retry_s: float = 0.2
    claim_attempts: int = 5
    close_timeout_s: float = 2.0


class Claim:
    """A topic that this broker holds, until it lets go of it or loses its lease."""

    epoch = 0

    def __init__(self, topic: TopicName, key: str, version: int, lease: Lease) -> None:
        self.topic = topic
        self.key = key
        self.version = version
        self._lease = lease
        self._ended = asyncio.Event()

    @property
    def held(self) -> bool:
        return not self._ended.is_set() and self._lease.alive

    async def lost(self) -> None:
        """Wait until it is no longer held."""
        await self._ended.wait()

    def end(self) -> None:
        self._ended.set()


def choose(topic: TopicName, brokers: Sequence[str]) -> str | None:
    """The broker that should take a topic that nobody has: every broker chooses the same, and when one comes or
    goes only its own share of the topics moves (rendezvous hashing)."""
    name = str(topic)
    return max(brokers, key=lambda broker: (_weight(broker, name), broker), default=None)


def _weight(broker: str, topic: str) -> bytes:
    return blake2b(f"{len(broker)}:{broker}{topic}".encode(), digest_size=8).digest()


class Ownership:
    """This broker's registration and claims, and what it knows of the others'."""

    def __init__(
        self, meta: MetaStore, runtime: Runtime, info: BrokerInfo, settings: OwnershipSettings | None = None
    ) -> None:
        """`info.instance` must differ from that of any earlier start of the same broker."""
        self._meta = meta
        self._clock = runtime.clock
        self._info = info
        self._settings = settings or OwnershipSettings()
        self._brokers = Mirror(meta, runtime, keys.BROKERS, BROKER)
        self._owners = Mirror(meta, runtime, keys.OWNERS, OWNER)
        self._me = TopicOwner(info.broker_id, info.instance)
        self._lease: Lease | None = None
        self._claims: dict[str, Claim] = {}
        self._registered = asyncio.Event()
        self._tasks = TaskScope(f"ownership {info.broker_id}")

    @property
    def info(self) -> BrokerInfo:
        return self._info

    async def start(self) -> None:
        """Register, and know the others. A lost lease is replaced from now on; what it held is not."""
        await self._brokers.start()
        await self._owners.start()
        self._tasks.spawn(self._keep_registered(), "registration")
        await self._registered.wait()

    async def close(self) -> None:
        """Let go of everything at once. If the store does not answer, the lease runs out by itself."""
        await self._tasks.close()
        lease, self._lease = self._lease, None
        self._registered.clear()
        self._end_claims()
        if lease is not None:
            try:
                async with asyncio.timeout(self._settings.close_timeout_s):
                    await lease.revoke()
            except (MetaError, TimeoutError) as failure:
                log.warning("broker %s could not unregister: %s", self._info.broker_id, failure)
        await self._brokers.close()
        await self._owners.close()

    # --- this broker's claims -----------------------------------------------------------------------------------

    @property
    def claims(self) -> list[Claim]:
        """Everything that this broker holds."""
        return list(self._claims.values())

    async def own(self, topic: TopicName) -> Claim:
        """Hold the topic from now on, or NotOwnerError with the addresses of the broker that has it."""
        key = keys.owner(topic)
        for _ in range(self._settings.claim_attempts):
            claim = self._claims.get(key)
            if claim is not None and claim.held:
                return claim
            lease = self._lease
            if lease is None or not lease.alive:
                raise NotOwnerError(f"this broker is not registered, so it cannot take {topic}")
            try:
                version = await self._take(topic, key, lease)
            except (MetaConflictError, MetaUnavailableError) as again:
                log.info("claiming %s once more: %s", topic, again)
                await self._clock.sleep(self._settings.retry_s)
                continue
            except LeaseExpiredError:
                continue
            return self._holds(topic, key, version, lease)
        raise NotOwnerError(f"the metadata store did not let this broker take {topic}", hint="try again")

    async def _take(self, topic: TopicName, key: str, lease: Lease) -> int:
        """Put the claim; the version that it got."""
        try:
            return await self._meta.put(key, encode_owner(self._me), expect=ABSENT, lease=lease)
        except MetaConflictError:
            found = await self._meta.get(key)
        if found is None:
            raise MetaConflictError(f"{key} was just let go of")
        owner = decode_owner(found.value)
        if owner.broker_id == self._info.broker_id:
            # A put whose reply was lost, or one under an earlier lease, or by an earlier start of this broker,
            # which is dead or fenced: the claim must stand on this lease.
            return await self._meta.put(key, encode_owner(self._me), expect=found.version, lease=lease)
        holder = self._brokers.get(keys.broker(owner.broker_id))
        raise NotOwnerError(
            f"{topic} is held by broker {owner.broker_id}",
            listeners=holder.listeners if holder else None,
        )

    def _holds(self, topic: TopicName, key: str, version: int, lease: Lease) -> Claim:
        if lease is not self._lease or not lease.alive:
            raise NotOwnerError(f"this broker lost its lease while it took {topic}", hint="try again")
        claim = self._claims.get(key)
        if claim is not None and claim.held:  # taken twice at the same time
            claim.version = max(claim.version, version)
            return claim
        claim = self._claims[key] = Claim(topic, key, version, lease)
        return claim

    async def acquire(self, topic: TopicName) -> None:
        """`own`, for those who do not wait for its loss."""
        await self.own(topic)

    async def release(self, topic: TopicName, claim: object | None = None) -> None:
        """Let go of a topic, so that another broker can have it at once. Fine if it is lost already. With a
        claim: not if it is held by a later one."""
        held = self._claims.get(keys.owner(topic))
        if held is None or (claim is not None and held is not claim):
            return
        del self._claims[held.key]
        held.end()
        for _ in range(self._settings.claim_attempts):
            try:
                await self._owners.delete(held.key, expect=held.version)
                return
            except MetaConflictError:
                return  # gone, or somebody else's by now
            except MetaError as failure:
                log.warning("could not let go of %s yet: %s", topic, failure)
                await self._clock.sleep(self._settings.retry_s)

    # --- looking up ---------------------------------------------------------------------------------------------

    def brokers(self) -> list[BrokerInfo]:
        """Every registered broker, this one among them, in the order of their node ids."""
        live = {broker.broker_id: broker for broker in self._brokers.items().values()}
        live.setdefault(self._info.broker_id, self._info)
        return sorted(live.values(), key=lambda broker: (broker.node_id, broker.broker_id))

    async def owner(self, topic: TopicName) -> Owner:
        """Who serves the topic, or, if nobody does, who should. From memory: it may be a moment out of date."""
        return self.owner_now(topic)

    def owner_now(self, topic: TopicName) -> Owner:
        """`owner`, without waiting."""
        live = {broker.broker_id: broker for broker in self.brokers()}
        claimed = self._owners.get(keys.owner(topic))
        holder = live.get(claimed.broker_id) if claimed is not None else None
        if holder is None:
            holder = live[choose(topic, list(live)) or self._info.broker_id]
        here = holder.broker_id == self._info.broker_id
        return Owner(here, holder.listeners, holder.broker_id, holder.node_id)

    # --- registration -------------------------------------------------------------------------------------------

    async def _keep_registered(self) -> None:
        lease: Lease | None = None
        while True:
            try:
                if lease is None or not lease.alive:
                    lease = await self._meta.lease(self._settings.ttl_s)
                await self._meta.put(keys.broker(self._info.broker_id), encode_broker(self._info), lease=lease)
            except MetaError as failure:
                log.warning("broker %s could not register: %s", self._info.broker_id, failure)
                await self._clock.sleep(self._settings.retry_s)
                continue
            self._lease = lease
            self._registered.set()
            await lease.lost()
            log.warning("broker %s lost its lease and everything that it held", self._info.broker_id)
            self._lease = None
            self._registered.clear()
            self._end_claims()

    def _end_claims(self) -> None:
        claims, self._claims = self._claims, {}
        for claim in claims.values():
            claim.end()
