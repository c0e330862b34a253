"""What the admin API asks of the rest of Weir, and the few things that every resource needs."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from weir.admin.metrics import GatewayFamily
from weir.broker.api.broker import Broker, Owner
from weir.broker.api.cluster import Balance, StorageAdmin
from weir.broker.api.connections import ConnectionDirectory, Connections
from weir.broker.api.definitions import Connectors, Functions, Replays, SqlStreams
from weir.broker.api.groups import RoleGroups
from weir.broker.api.metadata import Registry
from weir.broker.api.queues import Exchanges, Queues
from weir.broker.api.schemas import SchemaVersions
from weir.broker.api.security import Authoriser
from weir.broker.api.topics import StoredTopic, Topic
from weir.broker.api.transactions import RoleTransactions
from weir.model.cluster import BrokerLoad, BundleName
from weir.model.errors import NotAllowedError, NotOwnerError, TopicNotFoundError
from weir.model.registry import Action
from weir.model.retry import RetryPolicy
from weir.model.topics import TopicName
from weir.rest.forwarding import AskPeer, CallTarget, PartCalls, nobody, topic_target
from weir.rest.routes import Call, RefusedError, Route
from weir.runtime.interfaces import Clock

#: How much of a partitioned topic one call loads.
_MAX_PARTS = 1_000


async def _well() -> None:
    """Nothing is known to be wrong."""


async def _unknown(broker_id: str) -> BrokerLoad | None:
    """Nobody measures."""
    return None


@dataclass(frozen=True, slots=True)
class ServiceUrls:
    """Where this broker is reached, by the names of its listeners: as a URL, or as clients of a protocol write
    it (Kafka's: `host:port`)."""

    listeners: Mapping[str, str] = field(default_factory=dict)
    #: Where the data is, on this machine.
    data: str = ""

    def url(self, *names: str) -> str:
        """The first of these listeners that there is; "" if there is none."""
        return next((self.listeners[name] for name in names if self.listeners.get(name)), "")


@dataclass(frozen=True, slots=True)
class AdminSettings:
    #: Series per topic are given for so many topics; a scrape of more would hold the others up.
    metrics_topics: int = 1_000
    #: Roles that may deploy functions, superusers all of them; empty: every superuser.
    function_deployers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AdminContext:
    clock: Clock
    broker: Broker
    registry: Registry
    schemas: SchemaVersions
    authoriser: Authoriser
    urls: ServiceUrls = field(default_factory=ServiceUrls)
    settings: AdminSettings = field(default_factory=AdminSettings)
    #: Raises if this broker cannot do its work now.
    probe: Callable[[], Awaitable[None]] = _well
    #: What the gateways have counted.
    gateways: Callable[[], Sequence[GatewayFamily]] = tuple
    #: The coordinator, where there is one.
    transactions: RoleTransactions | None = None
    #: The coordinator of consumer groups, where there is one.
    groups: RoleGroups | None = None
    #: What SQL has defined, where that is kept.
    sql_streams: SqlStreams | None = None
    #: What is carried between topics and other systems, where that is kept.
    connectors: Connectors | None = None

    #: Functions that are deployed, where that is kept.
    functions: Functions | None = None

    replays: Replays | None = None
    #: This broker's, among the others of its cluster.
    broker_id: str = "sole"
    #: A random id of this start of the server, which commands compare with that of the data folder at hand.
    instance: str = ""
    #: How other brokers are asked for what they have.
    ask_peer: AskPeer = nobody
    #: What lies below the brokers, where it is looked after.
    storage: StorageAdmin | None = None
    #: What a broker says of its work, itself among them; None if it does not say.
    load_of: Callable[[str], Awaitable[BrokerLoad | None]] = _unknown
    #: Who leads, where brokers elect a leader.
    balance: Balance | None = None
    #: Exchanges, queues, and connections that can be closed, for RabbitMQ's management API.
    exchanges: Exchanges | None = None
    queues: Queues | None = None
    connections: Connections = field(default_factory=ConnectionDirectory)

    # --- topics as calls name them ------------------------------------------------------------------------------

    async def names(self, name: TopicName) -> list[TopicName]:
        """The topics with messages that a call is about: each partition of a partitioned one. 404 if there is
        none."""
        record = await self.registry.ensure_topic(name, create=False)
        names = record.parts() if name.partition is None else [name]
        if len(names) > _MAX_PARTS:
            raise NotAllowedError(
                f"{name} has {len(names)} partitions, too many for one call", hint="name its partitions one by one"
            )
        return names

    async def partitions(self, name: TopicName) -> list[TopicName] | None:
        """Of a partitioned topic; None of one that is not, and of a partition. 404 if there is none."""
        names = await self.names(name)
        return None if names == [name] else names

    async def on_partitions(
        self, call: Call, name: TopicName, *, route: Route | None = None, fine: Collection[int] = ()
    ) -> dict[TopicName, Any] | None:
        """The call done on each partition, by the brokers that have them (see `PartCalls.each`); None if the topic
        is not partitioned: then it is for this broker, or for the one that the client is sent to."""
        parts = await self.partitions(name)
        return None if parts is None else await self.on_topics(call, parts, route=route, fine=fine)

    async def on_topics(
        self, call: Call, topics: Sequence[TopicName], *, route: Route | None = None, fine: Collection[int] = ()
    ) -> dict[TopicName, Any]:
        """The call done on each of these."""
        targets = [topic_target(self.broker, topic) for topic in topics]
        return await PartCalls(self.clock, self.ask_peer).each(call, targets, route=route, fine=fine)

    async def on_bundles(self, call: Call, bundles: Sequence[BundleName], *, route: Route) -> None:
        """The call of this route done on each of these, as far as anybody has them."""
        targets = [CallTarget(one, {"bundle": one.range}, partial(self.bundle_owner, one)) for one in bundles]
        await PartCalls(self.clock, self.ask_peer).each(call, targets, route=route)

    # --- other brokers ------------------------------------------------------------------------------------------

    def bundle_owner(self, bundle: BundleName) -> Owner:
        """Who has a bundle; this broker where nobody that is there has it, since nothing is to be done then."""
        found = self.broker.bundles.info(bundle).owner
        known = {broker.broker_id: broker.listeners for broker in self.broker.brokers()}
        if found == self.broker_id or found not in known:
            return Owner(True, broker_id=self.broker_id)
        return Owner(False, known[found], found)

    def check_dead_letters(self, role: str, topic: TopicName, policy: RetryPolicy | None) -> None:
        """NotAuthorisedError if the policy names a topic for dead letters that the role may not produce to.

        The broker writes dead letters with more rights than the role that names their topic.
        """
        named = None if policy is None else policy.named_topic(topic)
        if named is not None:
            self.authoriser.check(role, Action.PRODUCE, named)

    async def unload(self, name: TopicName) -> None:
        """Exactly this topic, if it is this broker's; else the client is sent on."""
        await self.registry.ensure_topic(name, create=False)
        owner = self.broker.owner_now(name)
        if not owner.here:
            raise NotOwnerError(f"{name} is served by {owner.broker_id}", listeners=owner.listeners)
        await self.broker.unload(name)

    async def stored_one(self, name: TopicName) -> StoredTopic:
        """Exactly this topic, loaded; 405 for one that is partitioned."""
        record = await self.registry.ensure_topic(name, create=False)
        if record.partitions and name.partition is None:
            raise RefusedError(405, f"{name} is partitioned", hint="name one of its partitions")
        topic = (await self.load(name)).stored
        if topic is None:
            raise NotAllowedError(f"{name} stores nothing")
        return topic

    async def load(self, name: TopicName) -> Topic:
        """Exactly this topic, loaded; 404 for one that is partitioned."""
        record = await self.registry.ensure_topic(name, create=False)
        if record.partitions and name.partition is None:
            raise TopicNotFoundError(f"{name} is partitioned", hint="name one of its partitions")
        return await self.broker.load(name, create=False)
