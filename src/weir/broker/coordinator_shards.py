"""Where coordinators keep what they know: the small state of a system topic, owned like any topic.

A shard is loaded by the broker that owns it and fenced when another takes it over, so a coordinator that has lost
its shard can make nothing durable any more. What is set before one flush becomes durable together or not at all.
"""

from collections.abc import Callable
from typing import Protocol

from weir.broker.api import Owner
from weir.broker.topic.opening import AnyTopic
from weir.broker.topic.topic import BrokerTopic
from weir.model.errors import InvariantError
from weir.model.registry import SYSTEM_NAMESPACE
from weir.model.topics import TopicName
from weir.stream.state import StateLog

#: One shard today. More would be partitions of this topic, chosen by the key's hash in `CoordinatorShards.of`.
COORDINATOR = TopicName(SYSTEM_NAMESPACE, "coordinator")


class _Broker(Protocol):
    async def load(self, name: TopicName, *, create: bool = True) -> AnyTopic: ...

    async def holder(self, name: TopicName) -> Owner: ...

    async def is_stored(self, name: TopicName) -> bool: ...


class CoordinatorShard:
    """A coordinator's state while this broker has it. After its death `CoordinatorShards.of` loads another."""

    def __init__(self, topic: BrokerTopic) -> None:
        self._topic = topic

    @property
    def state(self) -> StateLog:
        return self._topic.state

    @property
    def alive(self) -> bool:
        return self._topic.alive and self._topic.state.failure is None

    def on_death(self, callback: Callable[[], None]) -> None:
        """Call a plain function, soon, once the shard is of no more use."""
        self._topic.on_death(callback)


class CoordinatorShards:
    """The shards of all keys. The same `CoordinatorShard` is answered for as long as it lives."""

    def __init__(self, broker: _Broker) -> None:
        self._broker = broker
        self._shards: dict[TopicName, tuple[BrokerTopic, CoordinatorShard]] = {}
        self._on_load: list[Callable[[CoordinatorShard], None]] = []

    def on_load(self, callback: Callable[[CoordinatorShard], None]) -> None:
        """Call a plain function with every shard, when it is loaded and before anybody has it."""
        self._on_load.append(callback)
        for topic, shard in self._shards.values():
            if topic.alive:
                callback(shard)

    async def of(self, key: str) -> CoordinatorShard:
        """Where this key's state is; NotOwnerError if another broker has it."""
        return await self._load(_name_of(key))

    async def owner(self, key: str) -> Owner:
        """The broker to ask for this key."""
        return await self._broker.holder(_name_of(key))

    async def here(self) -> list[CoordinatorShard]:
        """Every shard that is, or should be, this broker's."""
        return [await self._load(name) for name in (COORDINATOR,) if (await self._broker.holder(name)).here]

    async def used(self) -> list[CoordinatorShard]:
        """The same, without those that never held anything, which it would cost something to make."""
        found: list[CoordinatorShard] = []
        for name in (COORDINATOR,):
            known = self._shards.get(name)
            if known is not None and known[1].alive:
                found.append(known[1])
            elif (await self._broker.holder(name)).here and await self._broker.is_stored(name):
                found.append(await self._load(name))
        return found

    async def _load(self, name: TopicName) -> CoordinatorShard:
        topic = await self._broker.load(name)
        if not isinstance(topic, BrokerTopic):
            raise InvariantError(f"{name} is not kept, and cannot be a shard")
        known = self._shards.get(name)
        if known is None or known[0] is not topic:
            known = self._shards[name] = (topic, CoordinatorShard(topic))
            for callback in self._on_load:
                callback(known[1])
        return known[1]


def _name_of(key: str) -> TopicName:
    return COORDINATOR
