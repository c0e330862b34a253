"""Dependencies of the admin API, and helpers shared by its resources."""

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

#: Maximum partitions that one call loads.
_MAX_PARTS = 1_000


async def _well() -> None:
    """The default probe, which always succeeds."""


async def _unknown(broker_id: str) -> BrokerLoad | None:
    """The default load source, which has no measurements."""
    return None


@dataclass(frozen=True, slots=True)
class ServiceUrls:
    """Addresses of this broker by listener name: a URL, or the format of the protocol's clients (Kafka:
    `host:port`)."""

    listeners: Mapping[str, str] = field(default_factory=dict)
    #: The data folder on this machine.
    data: str = ""

    def url(self, *names: str) -> str:
        """The address of the first of these listeners that exists; "" if none does."""
        return next((self.listeners[name] for name in names if self.listeners.get(name)), "")


@dataclass(frozen=True, slots=True)
class AdminSettings:
    #: Maximum topics with series of their own; a scrape of more would delay other work.
    metrics_topics: int = 1_000
    #: Superusers that may deploy functions; empty: every superuser.
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
    #: Raises if this broker is not healthy now.
    probe: Callable[[], Awaitable[None]] = _well
    #: Metric families of the gateways.
    gateways: Callable[[], Sequence[GatewayFamily]] = tuple
    #: The transaction coordinator; None without one.
    transactions: RoleTransactions | None = None
    #: The coordinator of consumer groups; None without one.
    groups: RoleGroups | None = None
    #: Definitions of SQL streams; None if this broker stores none.
    sql_streams: SqlStreams | None = None
    #: Definitions of connectors; None if this broker stores none.
    connectors: Connectors | None = None

    #: Deployed functions; None if this broker stores none.
    functions: Functions | None = None

    replays: Replays | None = None
    #: The ID of this broker in its cluster.
    broker_id: str = "sole"
    #: A random ID of this server start, which commands compare with the ID in the data folder.
    instance: str = ""
    #: Sends a call to another broker.
    ask_peer: AskPeer = nobody
    #: Administration of the storage layer (bookies); None if this broker does not manage it.
    storage: StorageAdmin | None = None
    #: The load report of a broker, including this one; None if the broker sends none.
    load_of: Callable[[str], Awaitable[BrokerLoad | None]] = _unknown
    #: The balancer with its elected leader; None if the brokers elect none.
    balance: Balance | None = None
    #: Exchanges, queues, and connections that can be closed, for RabbitMQ's management API.
    exchanges: Exchanges | None = None
    queues: Queues | None = None
    connections: Connections = field(default_factory=ConnectionDirectory)

    # --- topics of calls ----------------------------------------------------------------------------------------

    async def names(self, name: TopicName) -> list[TopicName]:
        """The topics that a call applies to: all partitions of a partitioned topic, else the topic itself. 404 if
        the topic does not exist."""
        record = await self.registry.ensure_topic(name, create=False)
        names = record.parts() if name.partition is None else [name]
        if len(names) > _MAX_PARTS:
            raise NotAllowedError(
                f"{name} has {len(names)} partitions, too many for one call", hint="name its partitions one by one"
            )
        return names

    async def partitions(self, name: TopicName) -> list[TopicName] | None:
        """The partitions of a topic; None if it is a partition or not partitioned. 404 if it does not exist."""
        names = await self.names(name)
        return None if names == [name] else names

    async def on_partitions(
        self, call: Call, name: TopicName, *, route: Route | None = None, fine: Collection[int] = ()
    ) -> dict[TopicName, Any] | None:
        """Run the call on each partition, at the owners of the partitions (see `PartCalls.each`). Returns None if
        the topic is not partitioned: then this broker handles the call, or redirects the client to the owner."""
        parts = await self.partitions(name)
        return None if parts is None else await self.on_topics(call, parts, route=route, fine=fine)

    async def on_topics(
        self, call: Call, topics: Sequence[TopicName], *, route: Route | None = None, fine: Collection[int] = ()
    ) -> dict[TopicName, Any]:
        """Run the call on each of these topics, at their owners."""
        targets = [topic_target(self.broker, topic) for topic in topics]
        return await PartCalls(self.clock, self.ask_peer).each(call, targets, route=route, fine=fine)

    async def on_bundles(self, call: Call, bundles: Sequence[BundleName], *, route: Route) -> None:
        """Run the call of this route on each of these bundles, at their owners."""
        targets = [CallTarget(one, {"bundle": one.range}, partial(self.bundle_owner, one)) for one in bundles]
        await PartCalls(self.clock, self.ask_peer).each(call, targets, route=route)

    # --- other brokers ------------------------------------------------------------------------------------------

    def bundle_owner(self, bundle: BundleName) -> Owner:
        """The owner of a bundle; this broker if no live broker owns it, because then the call has no effect."""
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
        """Unload this topic if this broker owns it; else redirect the client to the owner (NotOwnerError)."""
        await self.registry.ensure_topic(name, create=False)
        owner = self.broker.owner_now(name)
        if not owner.here:
            raise NotOwnerError(f"{name} is served by {owner.broker_id}", listeners=owner.listeners)
        await self.broker.unload(name)

    async def stored_one(self, name: TopicName) -> StoredTopic:
        """Load this stored topic; 405 for a partitioned topic."""
        record = await self.registry.ensure_topic(name, create=False)
        if record.partitions and name.partition is None:
            raise RefusedError(405, f"{name} is partitioned", hint="name one of its partitions")
        topic = (await self.load(name)).stored
        if topic is None:
            raise NotAllowedError(f"{name} stores nothing")
        return topic

    async def load(self, name: TopicName) -> Topic:
        """Load this topic; 404 for a partitioned topic."""
        record = await self.registry.ensure_topic(name, create=False)
        if record.partitions and name.partition is None:
            raise TopicNotFoundError(f"{name} is partitioned", hint="name one of its partitions")
        return await self.broker.load(name, create=False)
