"""Where coordinators keep what they know: the small states of system topics, each owned like any topic.

A shard is loaded by the broker that owns it and fenced when another takes it over, so a coordinator that has lost
its shard can make nothing durable any more. What is set before one flush becomes durable together or not at all.

How many shards there are is said once, in the metadata, and never changes: which shard a name, or a producer id,
belongs to follows from it (docs/adr/0025-cluster.md).
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

#: The one shard where there is only one; else its partitions are the shards.
COORDINATOR = TopicName(SYSTEM_NAMESPACE, "coordinator")
#: Of a cluster.
CLUSTER_SHARDS = 16
_EPOCH = "epoch"

log = logging.getLogger(__name__)


class _Broker(Protocol):
    async def load(self, name: TopicName, *, create: bool = True) -> AnyTopic: ...

    async def holder(self, name: TopicName) -> Owner: ...

    async def is_stored(self, name: TopicName) -> bool: ...


class _Bundles(Protocol):
    async def divide_at(self, namespace: NamespaceName, boundaries: Boundaries) -> None:
        """NotAllowedError if it has others already."""

    async def look_again(self, namespace: NamespaceName) -> None:
        """Know its bundles by the store's own word."""


def shard_key(name: str) -> str:
    """What decides on the shard of a group, a transactional id or a sink, by whatever name it is known: kept for a
    tenant or a role, as its clients say it, or with the tenant or role before it, as others do."""
    segments = plain_name(name).split("/")
    if len(segments) > 2 and SINK_PREFIX in segments[:-2]:
        return segments[-2]
    return segments[-1]


class CoordinatorShard:
    """A coordinator's state while this broker has it. After its death `CoordinatorShards.of` loads another."""

    def __init__(self, topic: BrokerTopic, number: int, epoch: int, *, kept: bool) -> None:
        """`kept`: whether the epoch is kept in the state, for what this shard has to do with other brokers."""
        self._topic = topic
        #: Which of all shards it is.
        self.number = number
        #: Grows each time that the shard is loaded.
        self.epoch = epoch
        self.kept = kept
        #: Whether its epoch will not be used again.
        self.ready = not kept
        if kept:
            self.epoch = int(topic.state.get(_EPOCH) or b"0") + 1
            topic.state.put(_EPOCH, str(self.epoch).encode())

    async def make_ready(self) -> None:
        """NotOwnerError if another broker has the shard by now."""
        if not self.ready:
            await self._flush()
            self.ready = True

    async def confirm(self) -> None:
        """Whether no other broker has the shard at this moment: what is written says so. NotOwnerError."""
        self._topic.state.put(_EPOCH, str(self.epoch).encode())
        await self._flush()

    async def _flush(self) -> None:
        try:
            await self._topic.state.flush()
        except StreamError as lost:
            raise NotOwnerError(f"the coordinator has moved: {lost.what}") from lost

    @property
    def state(self) -> StateLog:
        return self._topic.state

    @property
    def alive(self) -> bool:
        return self._topic.alive and self._topic.state.failure is None

    def on_death(self, callback: Callable[[], None]) -> None:
        """Call a plain function, soon, once the shard is of no more use."""
        self._topic.on_death(callback)


class ShardCount:
    """How many shards there are, as the metadata say; `wanted` where nobody has said so yet, unless the one shard
    of before there were several is there."""

    def __init__(self, meta: MetaStore, wanted: int, bundles: _Bundles | None = None) -> None:
        """`bundles`: where the shards are put into bundles of their own, before there are any."""
        self._meta = meta
        self._wanted = wanted
        self._bundles = bundles

    async def known(self) -> int | None:
        found = await self._meta.get(keys.COORDINATOR_SHARDS)
        if found is None:
            return None
        if self._bundles is not None:  # whoever decided may have divided them a moment ago
            await self._bundles.look_again(SYSTEM_NAMESPACE)
        return int(found.value)

    async def decided(self, broker: _Broker) -> int:
        """Decide, if nobody has yet."""
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
        """Each shard in a bundle of its own, so that as many brokers can coordinate. Nobody has one yet: who does
        has decided before."""
        boundaries = Boundaries.apart(partition_hashes(COORDINATOR, range(count)))
        try:
            await bundles.divide_at(SYSTEM_NAMESPACE, boundaries)
        except NotAllowedError as divided:
            log.info("shards of coordinators stay in the bundles that there are: %s", divided)


class CoordinatorShards:
    """The shards of all keys. The same `CoordinatorShard` is answered for as long as it lives. Without a count
    there is one."""

    def __init__(self, broker: _Broker, count: ShardCount | None = None, *, several_brokers: bool = False) -> None:
        """`several_brokers`: whether coordinators have to do with partitions, and each other, on other brokers."""
        self._broker = broker
        self._count = count
        self.several_brokers = several_brokers
        self._loads = 0
        #: All of them, once it is known how many there are.
        self._names: list[TopicName] = [] if count is not None else [COORDINATOR]
        self._shards: dict[TopicName, tuple[BrokerTopic, CoordinatorShard]] = {}
        self._on_load: list[Callable[[CoordinatorShard], None]] = []

    def on_load(self, callback: Callable[[CoordinatorShard], None]) -> None:
        """Call a plain function with every shard, when it is loaded and before anybody has it."""
        self._on_load.append(callback)
        for topic, shard in self._shards.values():
            if topic.alive:
                callback(shard)

    # --- which shard ------------------------------------------------------------------------------------

    async def names(self) -> list[TopicName]:
        """The topics of all shards, by their numbers."""
        if not self._names and self._count is not None:
            self._names = _names_of(await self._count.decided(self._broker))
        return self._names

    async def number_of(self, key: str) -> int:
        names = await self.names()
        return crc32(shard_key(key).encode(errors="replace")) % len(names)

    async def producer_id(self, number: int, taken: int) -> int:
        """The producer id that a shard makes of a number that was taken for it: it tells whose it is."""
        return taken * len(await self.names()) + number

    async def of_producer(self, producer_id: int) -> int:
        """The number of the shard that has the transactional id of the producer, if it has any."""
        return producer_id % len(await self.names())

    def of_producer_now(self, producer_id: int) -> int:
        """The same, from memory; -1 if it is not known yet how many shards there are."""
        return producer_id % len(self._names) if self._names else -1

    # --- finding ----------------------------------------------------------------------------------------

    async def of(self, key: str) -> CoordinatorShard:
        """Where this key's state is; NotOwnerError if another broker has it."""
        return await self.at(await self.number_of(key))

    async def at(self, number: int) -> CoordinatorShard:
        """The shard of this number; NotOwnerError if another broker has it."""
        return await self._load(number, (await self.names())[number])

    async def owner(self, key: str) -> Owner:
        """The broker to ask for this key."""
        return await self.owner_at(await self.number_of(key))

    async def owner_at(self, number: int) -> Owner:
        """The broker to ask for the shard of this number."""
        return await self._broker.holder((await self.names())[number])

    async def here(self) -> list[CoordinatorShard]:
        """Every shard that is, or should be, this broker's."""
        return [
            await self._load(number, name)
            for number, name in enumerate(await self.names())
            if (await self._broker.holder(name)).here
        ]

    async def used(self) -> list[CoordinatorShard]:
        """The same, without those that never held anything, which it would cost something to make. One that cannot
        be loaded does not keep the others from it."""
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
                continue  # another was faster
            except WeirError as failed:
                failures.append(failed)
        if failures:
            raise failures[0]
        return found

    async def _names_if_any(self) -> list[TopicName]:
        """Nothing is decided by who only looks."""
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
            raise InvariantError(f"{name} is not kept, and cannot be a shard")
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
