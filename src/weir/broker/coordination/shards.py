"""Coordinator shards: the states of system topics, in which coordinators store their data, each owned like any
topic.

The owner of a shard loads it, and a takeover fences it: a coordinator that has lost its shard cannot store changes
any more. Changes between two flushes become durable together or not at all.

The metadata stores the number of shards, which never changes: it determines the shard of each name and producer id
(docs/adr/0025-cluster.md).
"""

import logging
from collections.abc import Callable
from typing import Protocol
from zlib import crc32

from weir.broker.api.broker import Owner
from weir.broker.topics.topic import AnyTopic, BrokerTopic
from weir.meta import keys
from weir.meta.interfaces import ABSENT, MetaStore
from weir.model.cluster import Boundaries, partition_hashes
from weir.model.errors import (
    InvariantError,
    MetaConflictError,
    NotAllowedError,
    NotOwnerError,
    StreamError,
    WeirError,
)
from weir.model.registry import SYSTEM_NAMESPACE
from weir.model.topics import SINK_PREFIX, NamespaceName, TopicName, plain_name
from weir.stream.state_log import StateLog

#: The only shard; or, with several shards, the topic whose partitions are the shards.
COORDINATOR = TopicName(SYSTEM_NAMESPACE, "coordinator")
#: Number of shards in a cluster.
CLUSTER_SHARDS = 16
_EPOCH = "epoch"

log = logging.getLogger(__name__)


class _Broker(Protocol):
    async def load(self, name: TopicName, *, create: bool = True) -> AnyTopic: ...

    async def holder(self, name: TopicName) -> Owner: ...

    async def is_stored(self, name: TopicName) -> bool: ...


class _Bundles(Protocol):
    async def divide_at(self, namespace: NamespaceName, boundaries: Boundaries) -> None:
        """NotAllowedError if the namespace has different boundaries."""

    async def look_again(self, namespace: NamespaceName) -> None:
        """Read the namespace's boundaries from the store."""


def shard_key(name: str) -> str:
    """The key that selects the shard of a group, a transactional id or a sink. It is equal for all forms of the
    name: the plain one of its tenant's or role's clients, and the one with the tenant or role as prefix."""
    segments = plain_name(name).split("/")
    if len(segments) > 2 and SINK_PREFIX in segments[:-2]:
        return segments[-2]
    return segments[-1]


class CoordinatorShard:
    """A shard while this broker owns it. After its death `CoordinatorShards.of` loads another one."""

    def __init__(self, topic: BrokerTopic, number: int, epoch: int, *, kept: bool) -> None:
        """`kept`: whether the epoch is stored in the state, which calls to other brokers require."""
        self._topic = topic
        #: Number of the shard.
        self.number = number
        #: Increases with each load of the shard.
        self.epoch = epoch
        self.kept = kept
        #: Whether the epoch is stored, so that no later load uses it.
        self.ready = not kept
        if kept:
            self.epoch = int(topic.state.get(_EPOCH) or b"0") + 1
            topic.state.put(_EPOCH, str(self.epoch).encode())

    async def make_ready(self) -> None:
        """Store the epoch; NotOwnerError if another broker owns the shard."""
        if not self.ready:
            await self._flush()
            self.ready = True

    async def confirm(self) -> None:
        """Confirm with a write that this broker still owns the shard; NotOwnerError."""
        self._topic.state.put(_EPOCH, str(self.epoch).encode())
        await self._flush()

    async def _flush(self) -> None:
        try:
            await self._topic.state.flush()
        except StreamError as lost:
            raise NotOwnerError(f"the coordinator has moved to another broker: {lost.what}") from lost

    @property
    def state(self) -> StateLog:
        return self._topic.state

    @property
    def alive(self) -> bool:
        return self._topic.alive and self._topic.state.failure is None

    def on_death(self, callback: Callable[[], None]) -> None:
        """Call a plain function soon after the shard dies."""
        self._topic.on_death(callback)


class ShardCount:
    """Number of shards, from the metadata. If it is not decided yet: `wanted`, or 1 if the single shard of an
    earlier release exists."""

    def __init__(self, meta: MetaStore, wanted: int, bundles: _Bundles | None = None) -> None:
        """`bundles`: used to divide the system namespace so that each shard has its own bundle."""
        self._meta = meta
        self._wanted = wanted
        self._bundles = bundles

    async def known(self) -> int | None:
        found = await self._meta.get(keys.COORDINATOR_SHARDS)
        if found is None:
            return None
        if self._bundles is not None:  # the broker that decided may have divided the namespace just now
            await self._bundles.look_again(SYSTEM_NAMESPACE)
        return int(found.value)

    async def decided(self, broker: _Broker) -> int:
        """The number of shards; decides it if it is not decided yet."""
        while True:
            found = await self.known()
            if found is not None:
                return found
            wanted = 1 if await broker.is_stored(COORDINATOR) else self._wanted
            if wanted > 1 and self._bundles is not None:
                await self._keep_apart(self._bundles, wanted)
            try:
                await self._meta.put(keys.COORDINATOR_SHARDS, str(wanted).encode(), expect=ABSENT)
            except MetaConflictError:
                continue
            return wanted

    async def _keep_apart(self, bundles: _Bundles, count: int) -> None:
        """Put each shard into its own bundle, so that as many brokers can be coordinators. No broker owns a shard
        yet: an owner would have decided the number before."""
        boundaries = Boundaries.apart(partition_hashes(COORDINATOR, range(count)))
        try:
            await bundles.divide_at(SYSTEM_NAMESPACE, boundaries)
        except NotAllowedError as divided:
            log.info("coordinator shards stay in the existing bundles: %s", divided)


class CoordinatorShards:
    """The shards of all keys. Returns the same `CoordinatorShard` while it is alive. Without `count`, the broker
    uses a single shard."""

    def __init__(self, broker: _Broker, count: ShardCount | None = None, *, several_brokers: bool = False) -> None:
        """`several_brokers`: whether coordinators call partitions and coordinators on other brokers."""
        self._broker = broker
        self._count = count
        self.several_brokers = several_brokers
        self._loads = 0
        #: Topics of all shards; empty until their number is known.
        self._names: list[TopicName] = [] if count is not None else [COORDINATOR]
        self._shards: dict[TopicName, tuple[BrokerTopic, CoordinatorShard]] = {}
        self._on_load: list[Callable[[CoordinatorShard], None]] = []

    def on_load(self, callback: Callable[[CoordinatorShard], None]) -> None:
        """Call a plain function with every shard after its load, before any caller gets it."""
        self._on_load.append(callback)
        for topic, shard in self._shards.values():
            if topic.alive:
                callback(shard)

    # --- shard numbers ----------------------------------------------------------------------------------

    async def names(self) -> list[TopicName]:
        """The topics of all shards, by their numbers."""
        if not self._names and self._count is not None:
            self._names = _names_of(await self._count.decided(self._broker))
        return self._names

    async def number_of(self, key: str) -> int:
        names = await self.names()
        return crc32(shard_key(key).encode(errors="replace")) % len(names)

    async def producer_id(self, number: int, taken: int) -> int:
        """The producer id for a number that a shard allocated; it encodes the number of the shard."""
        return taken * len(await self.names()) + number

    async def of_producer(self, producer_id: int) -> int:
        """Number of the shard that stores the producer's transactional id, if any."""
        return producer_id % len(await self.names())

    def of_producer_now(self, producer_id: int) -> int:
        """`of_producer` from memory; -1 if the number of shards is not known yet."""
        return producer_id % len(self._names) if self._names else -1

    # --- lookup -----------------------------------------------------------------------------------------

    async def of(self, key: str) -> CoordinatorShard:
        """The shard of this key; NotOwnerError if another broker owns it."""
        return await self.at(await self.number_of(key))

    async def at(self, number: int) -> CoordinatorShard:
        """The shard of this number; NotOwnerError if another broker owns it."""
        return await self._load(number, (await self.names())[number])

    async def owner(self, key: str) -> Owner:
        """The owner of this key's shard."""
        return await self.owner_at(await self.number_of(key))

    async def owner_at(self, number: int) -> Owner:
        """The owner of the shard of this number."""
        return await self._broker.holder((await self.names())[number])

    async def here(self) -> list[CoordinatorShard]:
        """All shards that this broker owns or should own."""
        return [
            await self._load(number, name)
            for number, name in enumerate(await self.names())
            if (await self._broker.holder(name)).here
        ]

    async def used(self) -> list[CoordinatorShard]:
        """Like `here`, without shards that were never used, since a load would create them. A failed load does not
        prevent the load of the others."""
        found: list[CoordinatorShard] = []
        failures: list[WeirError] = []
        for number, name in enumerate(await self._names_if_any()):
            known = self._shards.get(name)
            if known is not None and known[1].alive:
                found.append(known[1])
                continue
            try:
                if (await self._broker.holder(name)).here and await self._broker.is_stored(name):
                    found.append(await self._load(number, name))
            except NotOwnerError:
                continue  # another broker was faster
            except WeirError as failed:
                failures.append(failed)
        if failures:
            raise failures[0]
        return found

    async def _names_if_any(self) -> list[TopicName]:
        """Topics of all shards, without a decision of their number."""
        if not self._names and self._count is not None:
            known = await self._count.known()
            if known is not None:
                self._names = _names_of(known)
            elif await self._broker.is_stored(COORDINATOR):
                return [COORDINATOR]
        return self._names

    async def _load(self, number: int, name: TopicName) -> CoordinatorShard:
        topic = await self._broker.load(name)
        if not isinstance(topic, BrokerTopic):
            raise InvariantError(f"{name} is not persistent and cannot be a shard")
        known = self._shards.get(name)
        if known is None or known[0] is not topic:
            self._loads += 1
            shard = CoordinatorShard(topic, number, self._loads, kept=self.several_brokers)
            known = self._shards[name] = (topic, shard)
            for callback in self._on_load:
                callback(shard)
        await known[1].make_ready()
        return known[1]


def _names_of(count: int) -> list[TopicName]:
    return [COORDINATOR] if count == 1 else [COORDINATOR.at(number) for number in range(count)]
