"""The topics as Kafka's clients see them: by name, by id, with partitions counted from 0.

A Weir topic that is not partitioned is a Kafka topic whose one partition 0 is the topic itself.

The brokers as the clients of one listener see them: number, address, rack, and who leads which partition.

A client that came by `kafka_tls` is told where the others have theirs. A broker without such a listener is not
there for it.

Kafka's topic names and Weir's, both ways.

`orders` is `persistent://public/default/orders`. A topic of another namespace is `tenant..namespace..topic`, in
letters that Kafka allows; `tenant/namespace/topic` is understood, too, but never said. What cannot be named in
these letters does not exist for Kafka's clients.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from weir.broker.api.broker import Broker, Owner
from weir.broker.api.cluster import Balance
from weir.broker.api.metadata import Registry
from weir.broker.api.security import Guard
from weir.gateway.kafka.errors import Code, RefusedError, UnknownTopicIdError
from weir.model.errors import InvalidNameError, NotAuthorisedError, TopicExistsError, TopicNotFoundError
from weir.model.registry import SYSTEM_TENANTS, BrokerInfo, TopicRecord
from weir.model.topics import DEFAULT_NAMESPACE, Domain, NamespaceName, TopicName

_SEPARATOR = ".."
#: Clients name all of their topics in each request for metadata, again and again.
_KNOWN_NAMES = 16_384
_LEGAL = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


@lru_cache(_KNOWN_NAMES)
def topic_of(kafka_name: str) -> TopicName:
    """The topic as a whole that a Kafka client means; InvalidNameError if it cannot mean one."""
    if "/" in kafka_name:
        parts = kafka_name.split("/")
        if len(parts) != 3:
            raise _illegal(kafka_name)
    else:
        if not _LEGAL.fullmatch(kafka_name) or kafka_name in (".", ".."):
            raise _illegal(kafka_name)
        parts = kafka_name.split(_SEPARATOR)
    if len(parts) == 3 and all(parts):
        namespace, local = NamespaceName.parse("/".join(parts[:2])), parts[2]
    else:
        namespace, local = DEFAULT_NAMESPACE, kafka_name
    name = TopicName.parse(f"{Domain.PERSISTENT.value}://{namespace}/{local}")
    if name.partition is not None:
        raise InvalidNameError(f"{kafka_name[:80]!r} names a partition of another topic")
    return name


def kafka_name(base: TopicName) -> str | None:
    """How Kafka's clients call a topic; None if they cannot."""
    name = base.local
    if base.namespace != DEFAULT_NAMESPACE or len(name.split(_SEPARATOR)) == 3:
        name = _SEPARATOR.join((base.namespace.tenant, base.namespace.name, base.local))
    try:
        return name if _LEGAL.fullmatch(name) and topic_of(name) == base else None
    except InvalidNameError:
        return None


def _illegal(name: str) -> InvalidNameError:
    return InvalidNameError(
        f"{name[:80]!r} is not a topic name",
        hint="use up to 249 letters, digits and . _ -, or tenant..namespace..topic",
    )


#: In place of a broker's number: nobody that this client could reach.
NOBODY = -1
#: In place of an epoch: the client does not say, or nobody knows.
UNSAID = -1
_MAX_PORT = 65_535


class Node(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class Nodes:
    """Answers from memory: it may be a moment out of date."""

    def __init__(
        self,
        broker: Broker,
        *,
        node_id: int,
        listener: str,
        advertised: Callable[[], tuple[str, int]],
        balance: Balance | None = None,
    ) -> None:
        """`advertised`: where this broker's own listener is reached, whatever its registration says."""
        self._broker = broker
        self._listener = listener
        self._advertised = advertised
        self._balance = balance
        self.here = node_id

    def all(self) -> dict[int, Node]:
        """Every broker that clients of this listener can reach, by its number and in the order of these."""
        brokers = self._broker.brokers()
        found = self._reached(brokers)
        rack = next((info.rack or None for info in brokers if info.node_id == self.here), None)
        found[self.here] = Node(self.here, *self._advertised(), rack)
        return dict(sorted(found.items()))

    def known_by(self, nodes: Mapping[int, Node]) -> list[Node]:
        """These, and those whose lease has just ended. librdkafka takes leave of a broker that it is not told of
        any more, and forgets for a second who leads that broker's partitions now."""
        known = self._reached(self._broker.former_brokers()) | dict(nodes)
        return [known[number] for number in sorted(known)]

    def _reached(self, brokers: Sequence[BrokerInfo]) -> dict[int, Node]:
        return {
            info.node_id: Node(info.node_id, *address, info.rack or None)
            for info in brokers
            if (address := parse_address(info.listeners.get(self._listener, ""))) is not None
        }

    def controller(self, nodes: Mapping[int, Node]) -> int:
        """The elected leader, by its number among `all`. Any broker does what a controller does, so while none is
        elected, or its listener is of another kind, it is another one that all of them name."""
        leader = "" if self._balance is None else self._balance.leader()
        if leader:
            found = next((info.node_id for info in self._broker.brokers() if info.broker_id == leader), NOBODY)
            if found in nodes:
                return found
        return next(iter(nodes))

    def of(self, owner: Owner) -> Node | None:
        """Where clients of this listener find an owner; None if they cannot."""
        if owner.here:
            return Node(self.here, *self._advertised())
        address = parse_address(owner.listeners.get(self._listener, ""))
        return None if address is None or owner.node_id < 0 else Node(owner.node_id, *address)

    def number_of(self, owner: Owner) -> int:
        return self.here if owner.here else owner.node_id

    def leader(self, part: TopicName, may_be_here: bool = False) -> tuple[Node, int] | None:
        """Who leads a partition, and its epoch; None if that is not known yet, or if it would be this broker,
        which has just said that it is not."""
        owner = self._broker.owner_now(part)
        node = None if owner.here and not may_be_here else self.of(owner)
        return None if node is None else (node, owner.epoch)


def parse_address(text: str) -> tuple[str, int] | None:
    """Host and port of a listener as a broker registers it."""
    host, colon, port = text.rpartition("://")[2].rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def check_epoch(said: int, now: int, part: TopicName | None) -> None:
    """What a client believes of the leader that it asks: one that is behind must look for the leader again, one
    that is ahead knows of a leader that this broker has not heard of."""
    if said in (now, UNSAID):
        return
    if said < now:
        raise RefusedError(Code.FENCED_LEADER_EPOCH, f"{part} is led in epoch {now}, not in {said} any more")
    raise RefusedError(Code.UNKNOWN_LEADER_EPOCH, f"{part} is led in epoch {now}, as far as is known here")


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
