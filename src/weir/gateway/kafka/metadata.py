"""The topics and brokers as Kafka clients see them.

Names: `orders` is `persistent://public/default/orders`. A topic of another namespace is
`tenant..namespace..topic`, in characters that Kafka permits; requests may also use `tenant/namespace/topic`, but
responses never do. A topic with other characters in its name does not exist for Kafka clients.

Topics have names, ids, and partitions numbered from 0. A Weir topic without partitions is a Kafka topic with one
partition 0, which is the topic itself.

Brokers have number, address, rack, and led partitions. Clients get the brokers' addresses on their own listener:
a client of `kafka_tls` gets the `kafka_tls` addresses, and does not see a broker without this listener.
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
#: Size of the name cache: clients name all of their topics in each Metadata request.
_KNOWN_NAMES = 16_384
_LEGAL = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


@lru_cache(_KNOWN_NAMES)
def topic_of(kafka_name: str) -> TopicName:
    """Translate a Kafka name to the topic's Weir name; InvalidNameError."""
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
    """Translate a topic's Weir name to its Kafka name; None if it has none."""
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


#: The node id in place of a broker that this client cannot reach.
NOBODY = -1
#: The epoch of a client that does not send one, and the value for an unknown epoch.
UNSAID = -1
_MAX_PORT = 65_535


class Node(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class Nodes:
    """The brokers of one listener. Reads from memory, which may lag the metadata slightly."""

    def __init__(
        self,
        broker: Broker,
        *,
        node_id: int,
        listener: str,
        advertised: Callable[[], tuple[str, int]],
        balance: Balance | None = None,
    ) -> None:
        """`advertised`: the address of this broker's own listener, which overrides its registration."""
        self._broker = broker
        self._listener = listener
        self._advertised = advertised
        self._balance = balance
        self.here = node_id

    def all(self) -> dict[int, Node]:
        """Every broker that clients of this listener can reach, by node id in ascending order."""
        brokers = self._broker.brokers()
        found = self._reached(brokers)
        rack = next((info.rack or None for info in brokers if info.node_id == self.here), None)
        found[self.here] = Node(self.here, *self._advertised(), rack)
        return dict(sorted(found.items()))

    def known_by(self, nodes: Mapping[int, Node]) -> list[Node]:
        """The given brokers, and those with a lease that has just expired. librdkafka decommissions a broker that
        Metadata omits, and for a second does not know the new leaders of its partitions."""
        known = self._reached(self._broker.former_brokers()) | dict(nodes)
        return [known[number] for number in sorted(known)]

    def _reached(self, brokers: Sequence[BrokerInfo]) -> dict[int, Node]:
        return {
            info.node_id: Node(info.node_id, *address, info.rack or None)
            for info in brokers
            if (address := parse_address(info.listeners.get(self._listener, ""))) is not None
        }

    def controller(self, nodes: Mapping[int, Node]) -> int:
        """The node id of the elected leader of the cluster. Every broker serves the controller's APIs, so without
        a leader that this listener reaches, it is the first of `nodes`, on which all brokers agree."""
        leader = "" if self._balance is None else self._balance.leader()
        if leader:
            found = next((info.node_id for info in self._broker.brokers() if info.broker_id == leader), NOBODY)
            if found in nodes:
                return found
        return next(iter(nodes))

    def of(self, owner: Owner) -> Node | None:
        """The address of an owner for clients of this listener; None if it has none."""
        if owner.here:
            return Node(self.here, *self._advertised())
        address = parse_address(owner.listeners.get(self._listener, ""))
        return None if address is None or owner.node_id < 0 else Node(owner.node_id, *address)

    def number_of(self, owner: Owner) -> int:
        return self.here if owner.here else owner.node_id

    def leader(self, part: TopicName, may_be_here: bool = False) -> tuple[Node, int] | None:
        """The leader of a partition and its epoch. None if it is unknown, or if the metadata still name this
        broker, which has just refused as not the leader."""
        owner = self._broker.owner_now(part)
        node = None if owner.here and not may_be_here else self.of(owner)
        return None if node is None else (node, owner.epoch)


def parse_address(text: str) -> tuple[str, int] | None:
    """Parse host and port from a listener's registered address."""
    host, colon, port = text.rpartition("://")[2].rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def check_epoch(said: int, now: int, part: TopicName | None) -> None:
    """Check the leader epoch of a request. A client with an older epoch must refresh its metadata; a client with a
    newer one knows a leader that this broker does not know yet."""
    if said in (now, UNSAID):
        return
    if said < now:
        raise RefusedError(Code.FENCED_LEADER_EPOCH, f"{part} has leader epoch {now}, not {said}")
    raise RefusedError(Code.UNKNOWN_LEADER_EPOCH, f"{part} has leader epoch {now} on this broker, not {said} yet")


#: Prefix of the topic properties that store the configs set by Kafka clients.
CONFIG_PREFIX = "kafka."
#: Partitions in the cache, which is cleared when any topic changes.
_KEPT_PARTS = 20_000


class Catalog:
    """Finds topics: those in use in the registry's memory, all others in the metadata store."""

    def __init__(self, registry: Registry, guard: Guard) -> None:
        self._registry = registry
        self._guard = guard
        self._parts: dict[tuple[str | bytes, int], TopicName] = {}
        self._parts_as_of = -1

    def base(self, name: str) -> TopicName:
        """The Weir name of a topic, which need not exist. InvalidNameError, and TopicNotFoundError for topics of
        the brokers' system tenants."""
        base = topic_of(name)
        if base.namespace.tenant in SYSTEM_TENANTS:
            raise TopicNotFoundError(f"there is no topic {name[:80]}")
        return base

    def topic(self, name: str) -> TopicRecord:
        """A topic in the registry's memory; TopicNotFoundError, InvalidNameError."""
        record = self._registry.topics.find(self.base(name))
        if record is None or record.deleting:
            raise TopicNotFoundError(f"there is no topic {name[:80]}")
        return record

    async def look(self, name: str) -> TopicRecord:
        """Like `topic`, but reads the metadata store for an unknown topic: another broker may just have created
        it."""
        record = await self._registry.topics.look(self.base(name))
        if record is None or record.deleting:
            raise TopicNotFoundError(f"there is no topic {name[:80]}")
        return record

    async def ensure(self, name: str) -> TopicRecord:
        """The topic; creates it if the namespace permits automatic creation."""
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
        """The Weir topic of partition `index` of a topic, given by name or id, from the cache; TopicNotFoundError
        if it is not cached."""
        found = self._parts_now().get((topic, index))
        if found is None:
            raise TopicNotFoundError("the topic has changed, or is not cached yet")
        return found

    def _parts_now(self) -> dict[tuple[str | bytes, int], TopicName]:
        if self._parts_as_of != self._registry.topics.revision or len(self._parts) > _KEPT_PARTS:
            self._parts, self._parts_as_of = {}, self._registry.topics.revision
        return self._parts

    async def look_part(self, topic: str | bytes, index: int, asked: set[TopicName] | None = None) -> TopicName:
        """The Weir topic of partition `index` of a topic, given by name or id; TopicNotFoundError. Every produce
        and fetch calls this. `asked`: topics for which the current request has read the metadata store already;
        one read per topic suffices for all its partitions."""
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
        """The topic, with partitions that another broker has just created."""
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
        """The number of partitions that Kafka clients see."""
        return max(1, record.partitions)

    def index_of(self, part: TopicName) -> int:
        """The partition's number in its topic."""
        return part.partition or 0

    def name_of(self, base: TopicName) -> str:
        """The Kafka name of a topic (or of a partition's topic); TopicNotFoundError if it has none."""
        name = kafka_name(base.base)
        if name is None:
            raise TopicNotFoundError(f"{base} has no name in Kafka")
        return name

    def config(self, record: TopicRecord, name: str) -> str | None:
        """A topic config that a Kafka client has set; None if it is not set."""
        return record.properties.get(CONFIG_PREFIX + name)

    def id_of(self, record: TopicRecord) -> bytes:
        """The topic's unique id of 16 bytes; a later topic of the same name gets another one."""
        return record.topic_id

    async def by_id(self, topic_id: bytes) -> TopicRecord:
        """Find a topic by id; UnknownTopicIdError if none has it, or if another topic has its name now."""
        found = await self._registry.topics.by_id(bytes(topic_id))
        if found is None or found.deleting:
            raise UnknownTopicIdError("no topic has this id")
        return found

    async def known_by_id(self, role: str, topic_id: bytes) -> TopicRecord:
        """Like `by_id` for a role: UnknownTopicIdError, too, for a topic that the role may not see."""
        record = await self.by_id(topic_id)
        if not self.may_know(role, record.name):
            raise UnknownTopicIdError("no topic has this id")
        return record

    async def look_known(
        self, role: str, topic: str | bytes, index: int, asked: set[TopicName] | None = None
    ) -> TopicName:
        """Like `look_part` for a role. A request by name gets NotAuthorisedError if the role may not see the
        topic, whether it exists or not."""
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
        """Every topic that has a Kafka name and that the role may see, in the order of names; reads pages and
        yields between them."""
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
        """Whether the role may see the topic; the topic need not exist."""
        try:
            self._guard.check(role, base, None)
        except NotAuthorisedError:
            return False
        return True
