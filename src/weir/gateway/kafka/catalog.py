"""The topics as Kafka's clients see them: by name, by id, with partitions counted from 0.

A Weir topic that is not partitioned is a Kafka topic whose one partition 0 is the topic itself.
"""

from collections.abc import AsyncIterator

from weir.broker.api import Guard, Registry
from weir.gateway.kafka.errors import UnknownTopicIdError
from weir.gateway.kafka.names import kafka_name, topic_of
from weir.model.errors import NotAuthorisedError, TopicExistsError, TopicNotFoundError
from weir.model.registry import SYSTEM_TENANTS, TopicRecord
from weir.model.topics import Domain, TopicName

#: A topic config that Kafka's clients set is kept as a property of the topic, under its name behind this.
CONFIG_PREFIX = "kafka."
#: Partitions that were asked for and are remembered until a topic changes.
_KEPT_PARTS = 20_000


class Catalog:
    """What is in use is in the registry's memory; of the rest the metadata is asked."""

    def __init__(self, registry: Registry, guard: Guard) -> None:
        self._registry = registry
        self._guard = guard
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

    def find(self, topic: str | bytes, index: int) -> TopicName:
        """The topic that holds partition `index` of a topic that is named, or known by its id, if it was looked
        for a moment ago; TopicNotFoundError else."""
        found = self._parts_now().get((topic, index))
        if found is None:
            raise TopicNotFoundError("the topic was not looked for yet, or has changed since")
        return found

    def _parts_now(self) -> dict[tuple[str | bytes, int], TopicName]:
        if self._parts_as_of != self._registry.topics.revision or len(self._parts) > _KEPT_PARTS:
            self._parts, self._parts_as_of = {}, self._registry.topics.revision
        return self._parts

    async def look_part(self, topic: str | bytes, index: int, asked: set[TopicName] | None = None) -> TopicName:
        """The topic that holds partition `index` of a topic that is named, or known by its id: what every produce
        and every fetch asks. TopicNotFoundError if there is none. `asked`: the topics for which one request has
        asked the metadata already, which is enough, however many partitions of them it names."""
        found = self._parts_now().get((topic, index))
        if found is not None:
            return found
        return await self._looked(topic, index, self.base(topic) if isinstance(topic, str) else topic, asked)

    async def _looked(
        self, topic: str | bytes, index: int, known_as: TopicName | bytes, asked: set[TopicName] | None
    ) -> TopicName:
        revision = self._registry.topics.revision
        if isinstance(known_as, TopicName):
            record = await self._with_part(known_as, index, set() if asked is None else asked)
        else:
            record = await self.by_id(known_as)
        found = self.part_of(record, index)
        if revision == self._registry.topics.revision:
            self._parts_now()[topic, index] = found
        return found

    async def _with_part(self, base: TopicName, index: int, asked: set[TopicName]) -> TopicRecord:
        """The topic; with the partition, if another broker has just made that."""
        topics = self._registry.topics
        record = topics.find(base)
        if base not in asked and (record is None or index >= max(1, record.partitions)):
            asked.add(base)
            record = await topics.look(base) if record is None else await topics.look(base.at(index)) or record
        if record is None or record.deleting:
            raise TopicNotFoundError(f"there is no topic {base}")
        return record

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
        return record.topic_id

    async def by_id(self, topic_id: bytes) -> TopicRecord:
        """UnknownTopicIdError if there is none, or another has its name now."""
        found = await self._registry.topics.by_id(bytes(topic_id))
        if found is None or found.deleting:
            raise UnknownTopicIdError("no topic has this id")
        return found

    async def known_by_id(self, role: str, topic_id: bytes) -> TopicRecord:
        """The same for a role: what it may not know of has no id."""
        record = await self.by_id(topic_id)
        if not self.may_know(role, record.name):
            raise UnknownTopicIdError("no topic has this id")
        return record

    async def look_known(
        self, role: str, topic: str | bytes, index: int, asked: set[TopicName] | None = None
    ) -> TopicName:
        """What `look_part` finds, for a role; NotAuthorisedError, whether there is one or not, if it is named and
        the role may not know of it."""
        found = self._parts_now().get((topic, index))
        if found is not None:
            if isinstance(topic, str):
                self._guard.check(role, found.base, None)
            elif not self.may_know(role, found.base):
                raise UnknownTopicIdError("no topic has this id")
            return found
        if isinstance(topic, str):
            base = self.base(topic)
            self._guard.check(role, base, None)
            return await self._looked(topic, index, base, asked)
        await self.known_by_id(role, topic)
        return await self._looked(topic, index, topic, asked)

    async def all(self, role: str) -> AsyncIterator[TopicRecord]:
        """Every topic that has a name in Kafka and that the role may know of, in the order of names: read in
        pages, with turns for others."""
        for tenant in self._registry.tenants.names():
            if tenant in SYSTEM_TENANTS:
                continue
            for namespace in self._registry.namespaces.names(tenant):
                async for record in self._registry.topics.of(namespace, Domain.PERSISTENT):
                    if (
                        not record.deleting
                        and kafka_name(record.name) is not None
                        and self.may_know(role, record.name)
                    ):
                        yield record

    def may_know(self, role: str, base: TopicName) -> bool:
        """Whether the role may know of the topic, if there is one."""
        try:
            self._guard.check(role, base, None)
        except NotAuthorisedError:
            return False
        return True
