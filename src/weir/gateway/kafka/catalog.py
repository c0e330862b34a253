"""The topics as Kafka's clients see them: by name, by id, with partitions counted from 0.

A Weir topic that is not partitioned is a Kafka topic whose one partition 0 is the topic itself.
"""

import hashlib

from weir.broker.api import Guard, Registry
from weir.gateway.kafka.errors import UnknownTopicIdError
from weir.gateway.kafka.names import kafka_name, topic_of
from weir.model.errors import NotAuthorisedError, TopicExistsError, TopicNotFoundError
from weir.model.registry import SYSTEM_TENANTS, TopicRecord
from weir.model.topics import TopicName

#: A topic config that Kafka's clients set is kept as a property of the topic, under its name behind this.
CONFIG_PREFIX = "kafka."
#: Ids of deleted topics that are remembered before all are forgotten.
_STALE_IDS = 1000
#: Partitions that were asked for and are remembered until a topic changes.
_KEPT_PARTS = 20_000


class Catalog:
    """Answers from the registry's memory; only `ensure` waits."""

    def __init__(self, registry: Registry, guard: Guard) -> None:
        self._registry = registry
        self._guard = guard
        self._ids: dict[bytes, TopicName] = {}
        self._ids_as_of = -1
        self._parts: dict[tuple[str | bytes, int], TopicName] = {}
        self._parts_as_of = -1

    def base(self, name: str) -> TopicName:
        """The topic as a whole that a client means, whether or not there is one. InvalidNameError, and
        TopicNotFoundError for those that brokers keep for themselves."""
        base = topic_of(name)
        if base.namespace.tenant in SYSTEM_TENANTS:
            raise TopicNotFoundError(f"there is no topic {name[:80]}")
        return base

    def topic(self, name: str) -> TopicRecord:
        """TopicNotFoundError, InvalidNameError."""
        record = self._registry.topics.find(self.base(name))
        if record is None or record.deleting:
            raise TopicNotFoundError(f"there is no topic {name[:80]}")
        return record

    async def look(self, name: str) -> TopicRecord:
        """`topic`; one that is not known here is asked of the metadata: another broker may just have made it."""
        record = await self._registry.topics.look(self.base(name))
        if record is None or record.deleting:
            raise TopicNotFoundError(f"there is no topic {name[:80]}")
        return record

    async def ensure(self, name: str) -> TopicRecord:
        """The topic, made now if its namespace lets topics come to be by being named."""
        base = self.base(name)
        found = await self._registry.topics.look(base)
        if found is None:
            policy = self._registry.policies(base.namespace).auto_topic_creation
            if policy is None or not policy.allowed:
                raise TopicNotFoundError(f"there is no topic {name[:80]}", hint="create it")
            try:
                return await self._registry.topics.create(base, partitions=max(1, policy.partitions))
            except TopicExistsError:
                found = await self._registry.topics.look(base)
        if found is None or found.deleting:
            raise TopicNotFoundError(f"there is no topic {name[:80]}")
        return found

    def part(self, name: str, index: int) -> TopicName:
        """The topic that holds partition `index`; TopicNotFoundError if there is none."""
        return self.part_of(self.topic(name), index)

    def find(self, topic: str | bytes, index: int) -> TopicName:
        """The same for a topic that is named, or known by its id: what every produce and every fetch asks."""
        if self._parts_as_of != self._registry.topics.revision or len(self._parts) > _KEPT_PARTS:
            self._parts, self._parts_as_of = {}, self._registry.topics.revision
        found = self._parts.get((topic, index))
        if found is None:
            record = self.topic(topic) if isinstance(topic, str) else self.by_id(topic)
            found = self._parts[topic, index] = self.part_of(record, index)
        return found

    async def look_part(self, topic: str | bytes, index: int, asked: set[TopicName] | None = None) -> TopicName:
        """`find`; a topic or partition that is not known here by its name is asked of the metadata: another broker
        may just have made it. Ids are known a moment later, and clients ask again until then. `asked`: the topics
        for which one request has asked already, which is enough, however many partitions of them it names."""
        return await self._looked(topic, index, self.base(topic) if isinstance(topic, str) else None, asked)

    async def _looked(
        self, topic: str | bytes, index: int, base: TopicName | None, asked: set[TopicName] | None
    ) -> TopicName:
        try:
            return self.find(topic, index)
        except TopicNotFoundError:
            if base is None or index < 0 or (asked is not None and base in asked):
                raise
            if asked is not None:
                asked.add(base)
            if await self._registry.topics.look(base.at(index)) is None:
                raise
        return self.find(topic, index)

    def part_of(self, record: TopicRecord, index: int) -> TopicName:
        if not 0 <= index < max(1, record.partitions):
            raise TopicNotFoundError(f"{record.name} has no partition {index}")
        return record.name.at(index) if record.partitions else record.name

    def partitions_of(self, record: TopicRecord) -> int:
        """How many partitions Kafka's clients see."""
        return max(1, record.partitions)

    def index_of(self, part: TopicName) -> int:
        """Which partition of its topic it is."""
        return part.partition or 0

    def name_of(self, base: TopicName) -> str:
        """How Kafka's clients call a topic (or the topic of a part); TopicNotFoundError if they cannot."""
        name = kafka_name(base.base)
        if name is None:
            raise TopicNotFoundError(f"{base} has no name in Kafka")
        return name

    def config(self, record: TopicRecord, name: str) -> str | None:
        """A topic config as it was set by a Kafka client; None if it was not."""
        return record.properties.get(CONFIG_PREFIX + name)

    def id_of(self, record: TopicRecord) -> bytes:
        """16 bytes that no other topic has, not even a later one of this name."""
        digest = hashlib.blake2b(f"{record.name}\0{record.created_ms}".encode(), digest_size=16).digest()
        if digest not in self._ids:
            if len(self._ids) > 2 * len(self._registry.topics) + _STALE_IDS:
                self._ids, self._ids_as_of = {}, -1
            self._ids[digest] = record.name
        return digest

    def by_id(self, topic_id: bytes) -> TopicRecord:
        """UnknownTopicIdError if there is none, or another has its name now."""
        topic_id = bytes(topic_id)
        if topic_id not in self._ids and self._ids_as_of != self._registry.topics.revision:
            self._ids_as_of = self._registry.topics.revision
            self._ids = {}
            for record in self._named():
                self.id_of(record)
        name = self._ids.get(topic_id)
        found = None if name is None else self._registry.topics.find(name)
        if found is None or found.deleting or self.id_of(found) != topic_id:
            raise UnknownTopicIdError("no topic has this id")
        return found

    def known_by_id(self, role: str, topic_id: bytes) -> TopicRecord:
        """The same for a role: what it may not know of has no id."""
        record = self.by_id(topic_id)
        if not self.may_know(role, record.name):
            raise UnknownTopicIdError("no topic has this id")
        return record

    def known(self, role: str, topic: str | bytes, index: int) -> TopicName:
        """What `find` finds, for a role; NotAuthorisedError, whether there is one or not, if it is named and the
        role may not know of it."""
        if isinstance(topic, str):
            self._guard.check(role, self.base(topic), None)
        else:
            self.known_by_id(role, topic)
        return self.find(topic, index)

    async def look_known(
        self, role: str, topic: str | bytes, index: int, asked: set[TopicName] | None = None
    ) -> TopicName:
        """`known`, as `look_part` finds it."""
        base = None
        if isinstance(topic, str):
            base = self.base(topic)
            self._guard.check(role, base, None)
        else:
            self.known_by_id(role, topic)
        return await self._looked(topic, index, base, asked)

    def all(self, role: str) -> list[TopicRecord]:
        """Every topic that has a name in Kafka and that the role may know of, in the order of names."""
        return [record for record in self._named() if not record.deleting and self.may_know(role, record.name)]

    def _named(self) -> list[TopicRecord]:
        return [
            record
            for tenant in self._registry.tenants.names()
            if tenant not in SYSTEM_TENANTS
            for namespace in self._registry.namespaces.names(tenant)
            for record in self._registry.topics.of(namespace)
            if record.name.persistent and kafka_name(record.name) is not None
        ]

    def may_know(self, role: str, base: TopicName) -> bool:
        """Whether the role may know of the topic, if there is one."""
        try:
            self._guard.check(role, base, None)
        except NotAuthorisedError:
            return False
        return True
