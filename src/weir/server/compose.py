"""The composition root: a broker with all its parts and gateways, over any runtime, metadata and ledgers.

`weir up`, the simulations and the stages of tests differ in the runtime, the metadata and the ledgers that they
give, and in the values of `Composition`; what is wired to what is said here alone.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from ssl import SSLContext

from weir.broker import ports
from weir.broker.access.exchanges import ExchangeAccess
from weir.broker.access.security import Authenticator, Authoriser, SecuritySettings, TopicGuard
from weir.broker.access.tokens import TokenVerifier
from weir.broker.access.topic_lists import GuardedTopicLists
from weir.broker.api import ConnectionDirectory, Queues
from weir.broker.balance.balancer import BalanceSettings
from weir.broker.broker import Broker
from weir.broker.bundles.moving import BundleMoves
from weir.broker.bundles.numbers import number_of
from weir.broker.bundles.ownership import BundleOwnership
from weir.broker.bundles.peer_parts import PeerParts
from weir.broker.bundles.peer_successor import PeerSuccessor
from weir.broker.bundles.settings import OwnershipSettings
from weir.broker.bundles.silent import PeerReach
from weir.broker.context import BrokerContext
from weir.broker.coordinator_shards import CLUSTER_SHARDS, CoordinatorShards, ShardCount
from weir.broker.exchanges.service import ExchangeService
from weir.broker.exchanges.table import Cluster
from weir.broker.feature_gate import FeatureGate
from weir.broker.groups.coordinator import GroupCoordinator
from weir.broker.groups.model import GroupSettings
from weir.broker.groups.offsets import GroupOffsets
from weir.broker.groups.owned import GroupAccess
from weir.broker.half.elsewhere import CheckersElsewhere
from weir.broker.parts.interface import Parts
from weir.broker.parts.local import LocalParts
from weir.broker.parts.routed import PartsService, RoutedParts
from weir.broker.peers.calls import LonePeers, PeerCalls, PeerHandlers
from weir.broker.peers.gateway_calls import PeerGatewayCalls
from weir.broker.peers.metrics import PeerMetrics
from weir.broker.peers.pool import PeerPool
from weir.broker.peers.server import PeerServer
from weir.broker.peers.settings import PeerLinks, PeerServerSettings
from weir.broker.queues.declared import DeclaredRules
from weir.broker.queues.replies import ReplyReceivers
from weir.broker.queues.service import forget_bindings
from weir.broker.registry.registry import Registry
from weir.broker.registry.topics import TopicLimits
from weir.broker.schemas.registry import SchemaRegistry
from weir.broker.settings import BrokerSettings
from weir.broker.tiered.rules import LakeRules
from weir.broker.trace.log import TraceLog
from weir.broker.tracing import Tracing
from weir.broker.transactions.coordinator import Transactions
from weir.broker.transactions.elsewhere import Elsewhere, TransactionsService
from weir.broker.transactions.model import TransactionSettings
from weir.broker.transactions.owned import TransactionAccess
from weir.broker.transactions.taking_part import TakingPart
from weir.gateway.amqp.connection.server import AmqpServer
from weir.gateway.amqp.connection.settings import AmqpSettings
from weir.gateway.amqp.metrics import AmqpMetrics
from weir.gateway.amqp.services import Services as AmqpServices
from weir.gateway.kafka.catalog import Catalog
from weir.gateway.kafka.connection.metrics import KafkaMetrics
from weir.gateway.kafka.connection.server import KafkaServer
from weir.gateway.kafka.connection.settings import KafkaSettings
from weir.gateway.kafka.grouping import topics_read
from weir.gateway.kafka.services import Services as KafkaServices
from weir.gateway.pulsar.metrics import PulsarMetrics
from weir.gateway.pulsar.server import PulsarServer
from weir.gateway.pulsar.settings import PulsarSettings
from weir.gateway.rocketmq.clients import Clients as RocketmqClients
from weir.gateway.rocketmq.cluster.handed_on import HandedOnCalls
from weir.gateway.rocketmq.cluster.routing import GATEWAY as ROCKETMQ
from weir.gateway.rocketmq.commands import ClientCommands
from weir.gateway.rocketmq.connection.server import RocketmqServer
from weir.gateway.rocketmq.connection.settings import RocketmqSettings
from weir.gateway.rocketmq.consume.announcing import Announcing
from weir.gateway.rocketmq.consume.groups import ConsumerGroups
from weir.gateway.rocketmq.metrics import RocketmqMetrics
from weir.gateway.rocketmq.services import Services as RocketmqServices
from weir.ledger.client import LedgerClient
from weir.ledger.idblocks import IdBlocks
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.model.features import FEATURES, TOPIC_INDEX, EveryFeature, FeaturesInUse
from weir.model.policies import Policies
from weir.model.registry import BrokerInfo
from weir.runtime.byte_budget import ByteBudget
from weir.runtime.interfaces import Clock, Runtime
from weir.runtime.movable import unmoved
from weir.runtime.object_store import ObjectStores
from weir.runtime.request_budget import RequestBudget
from weir.server.balance import ClusterBalance, compose_balance
from weir.server.queues import compose_queues
from weir.server.schema_port import GuardedSchemas
from weir.stream.context import StreamContext
from weir.stream.holding.area import HoldingArea
from weir.stream.holding.settings import HoldingSettings
from weir.stream.log import Stream
from weir.stream.settings import StreamSettings
from weir.stream.state import StateLog
from weir.stream.tail import TailCache


@dataclass(frozen=True, slots=True)
class Composition:
    """What is decided about a broker from outside."""

    name: str
    #: Where its clients find it, by the name of the listener.
    listeners: dict[str, str] = field(default_factory=dict)
    #: What holds where nobody has said otherwise; what these leave open is as Weir has it.
    policies: Policies = field(default_factory=Policies)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    tokens: TokenVerifier | None = None
    #: What access keys are made of, beside the secret of tokens.
    access_secret: bytes = b""
    ownership: OwnershipSettings = field(default_factory=OwnershipSettings)
    streams: StreamSettings = field(default_factory=StreamSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    topics: TopicLimits = field(default_factory=TopicLimits)
    holding: HoldingSettings = field(default_factory=HoldingSettings)
    groups: GroupSettings = field(default_factory=GroupSettings)
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    #: What was just written and is kept in memory for those who read at the end, over all topics.
    tail_bytes: int = 1 << 20
    #: Shards of coordinators, where it is not said yet how many there are; None: one for a broker on its own,
    #: `CLUSTER_SHARDS` for several.
    coordinator_shards: int | None = None
    #: Where it stands.
    rack: str = ""
    #: Ids of producers that are taken from the metadata at a time.
    producer_ids: int = 1000
    #: Stands in for the one that goes by tokens and certificates.
    authenticator: ports.Authenticator | None = None
    #: Stands in for ownership by a lease in the metadata.
    owner: ports.Ownership | None = None
    #: How it speaks with the other brokers; None: it is on its own, and asks nobody but itself.
    peers: PeerLinks | None = None
    #: What it says that it can do.
    features: tuple[str, ...] = FEATURES
    #: Stands in for the stores of the lake as the runtime reaches them.
    stores: ObjectStores | None = None
    #: Told at which step a ledger is on its way to the lake.
    reached: Callable[[str], None] = lambda step: None
    #: Its part in balance, if it speaks with other brokers; None: it is measured by nobody and leads nobody.
    balance: BalanceSettings | None = None
    #: Who hears of messages that carry a trace.
    tracing: Tracing | None = None


@dataclass(frozen=True, slots=True)
class ComposedBroker:
    """A broker that is started; its stack ends it, and the gateways that were added to it before."""

    name: str
    runtime: Runtime
    stack: AsyncExitStack
    registry: Registry
    authoriser: Authoriser
    guard: TopicGuard
    schemas: SchemaRegistry
    exchanges: ExchangeService
    context: BrokerContext
    broker: Broker
    #: Of the gateways' clients, those that are listed and can be closed.
    connections: ConnectionDirectory
    queues: Queues
    groups: GroupCoordinator
    transactions: Transactions
    #: The transactions, for every role.
    transaction_access: TransactionAccess
    group_access: GroupAccess
    #: What it has of the cluster; None if there can be no other broker.
    bundles: BundleMoves | None
    #: None if it takes no part in balance.
    balance: ClusterBalance | None
    #: Other brokers, and what this one answers them once `serve_peers` is called.
    peers: PeerCalls
    peer_handlers: PeerHandlers
    peer_metrics: PeerMetrics
    _peer_links: PeerLinks
    #: What all listeners for Kafka share, with settings that each has of its own.
    _kafka: KafkaServices
    #: What all listeners for AMQP share.
    _amqp: AmqpServices
    #: What all listeners for RocketMQ share.
    _rocketmq: RocketmqServices

    @property
    def client_commands(self) -> ClientCommands:
        """What can be asked of RocketMQ's clients."""
        return ClientCommands(self._rocketmq)

    @property
    def catalog(self) -> Catalog:
        return self._kafka.catalog

    def kafka_services(self, settings: KafkaSettings) -> KafkaServices:
        """What stands behind a listener for Kafka's clients. The broker's number is that of its registration."""
        return replace(self._kafka, settings=replace(settings, node_id=self._kafka.settings.node_id))

    async def leave(self) -> None:
        """Hand everything over, if there are other brokers: clients are told where to go while there is still
        somebody to tell them. Listeners that are added here do so before they close."""
        if self.bundles is not None and not self.bundles.draining:
            await self.bundles.leave()

    async def serve_peers(
        self, settings: PeerServerSettings, *, request_budget: RequestBudget | None = None
    ) -> PeerServer:
        """The listener for other brokers. Whoever has something to answer them says so before."""
        server = PeerServer(
            self.runtime,
            self.name,
            self.peer_handlers,
            settings,
            credentials=self._peer_links.credentials,
            metrics=self.peer_metrics,
            request_budget=request_budget,
        )
        await server.start()
        self.stack.push_async_callback(server.close)
        self.stack.push_async_callback(self.leave)
        return server

    async def serve_pulsar(
        self,
        settings: PulsarSettings,
        *,
        metrics: PulsarMetrics | None = None,
        tls: SSLContext | None = None,
        request_budget: RequestBudget | None = None,
    ) -> PulsarServer:
        """One more listener for Pulsar's clients."""
        server = PulsarServer(
            self.runtime,
            self.broker,
            settings,
            schemas=GuardedSchemas(self.schemas, self.guard),
            lists=GuardedTopicLists(self.registry, self.guard),
            metrics=metrics,
            tls=tls,
            request_budget=request_budget,
        )
        await server.start()
        self.stack.push_async_callback(server.close)
        self.stack.push_async_callback(self.leave)
        return server

    async def serve_kafka(
        self,
        settings: KafkaSettings,
        *,
        metrics: KafkaMetrics | None = None,
        tls: SSLContext | None = None,
        request_budget: RequestBudget | None = None,
        unread_budget: ByteBudget | None = None,
    ) -> KafkaServer:
        """One more listener for Kafka's clients."""
        server = KafkaServer(
            self.runtime,
            self.kafka_services(settings),
            metrics=metrics,
            tls=tls,
            request_budget=request_budget,
            unread_budget=unread_budget,
        )
        await server.start()
        self.stack.push_async_callback(server.close)
        self.stack.push_async_callback(self.leave)
        return server

    async def serve_amqp(
        self,
        settings: AmqpSettings,
        *,
        metrics: AmqpMetrics | None = None,
        tls: SSLContext | None = None,
        request_budget: RequestBudget | None = None,
    ) -> AmqpServer:
        """One more listener for RabbitMQ's clients."""
        services = self._amqp if metrics is None else replace(self._amqp, metrics=metrics)
        server = AmqpServer(services, settings, tls=tls, request_budget=request_budget)
        await server.start()
        self.stack.push_async_callback(server.close)
        self.stack.push_async_callback(self.leave)
        return server

    async def serve_rocketmq(
        self,
        settings: RocketmqSettings,
        *,
        metrics: RocketmqMetrics | None = None,
        tls: SSLContext | None = None,
        request_budget: RequestBudget | None = None,
    ) -> RocketmqServer:
        """One more listener for RocketMQ's clients."""
        services = self._rocketmq if metrics is None else replace(self._rocketmq, metrics=metrics)
        server = RocketmqServer(services, settings, tls=tls, request_budget=request_budget)
        await server.start()
        self.stack.push_async_callback(server.close)
        self.stack.push_async_callback(self.leave)
        return server


async def compose_broker(
    runtime: Runtime, meta: MetaStore, ledgers: LedgerClient, how: Composition, stack: AsyncExitStack
) -> ComposedBroker:
    """Start a broker, part by part; the stack ends them in the opposite order. Metadata and ledgers are the
    caller's, and outlive it."""

    def may_index() -> bool:
        return features.uses(TOPIC_INDEX)

    registry = Registry(meta, runtime, how.policies, limits=how.topics, may_index=may_index)
    await registry.start()
    stack.push_async_callback(registry.close)
    peer_handlers, peer_metrics = PeerHandlers(), PeerMetrics()

    def brokers() -> list[BrokerInfo]:
        return ownership.brokers()

    peers = _peers(runtime, how, peer_handlers, peer_metrics, brokers=brokers, stack=stack)
    bundles = None if how.owner is not None else await _own(runtime, meta, how, registry, stack)
    ownership = how.owner or (ports.SoleOwner() if bundles is None else bundles.ownership)
    features = EveryFeature() if bundles is None else FeatureGate(lambda: bundles.ownership.registration.live)
    authoriser = Authoriser(registry, how.security)
    guard = TopicGuard(authoriser)
    schemas = SchemaRegistry(meta, runtime, registry)
    cluster = None if bundles is None or how.peers is None else _cluster(bundles.ownership)
    exchanges = ExchangeService(meta, runtime, registry, ExchangeAccess(authoriser), cluster=cluster)
    stack.push_async_callback(exchanges.close)
    context = BrokerContext(
        runtime,
        _streams(runtime, meta, ledgers, how, features=features, stack=stack),
        how.broker,
        ByteBudget(how.broker.in_flight_bytes),
        guard=guard,
        schemas=schemas,
        open_holding=partial(_open_holding, how.holding),
        queue_rules=DeclaredRules(registry),
        tiering=LakeRules(registry),
        queue_deleted=partial(forget_bindings, exchanges),
        tracing=how.tracing,
        trace=TraceLog(runtime.clock),
    )
    authenticator = how.authenticator or Authenticator(
        runtime.clock, how.security, tokens=how.tokens, users=registry.users, access_secret=how.access_secret
    )
    broker = Broker(context, registry, ownership, authenticator, bundles)
    if bundles is not None:
        _join(bundles, broker, context, how, peers=peers, handlers=peer_handlers)
    broker.start()
    stack.push_async_callback(broker.close)
    others = None if how.peers is None else peers
    queues = compose_queues(
        context,
        registry,
        broker,
        exchanges,
        name=how.name,
        peers=others,
        handlers=peer_handlers,
        authoriser=authoriser,
        schemas=schemas,
        stack=stack,
    )
    replies = ReplyReceivers(how.name, runtime, others, peer_handlers)
    catalog = Catalog(registry, guard)
    wanted = how.coordinator_shards or (1 if others is None else CLUSTER_SHARDS)
    count = ShardCount(meta, wanted, bundles)
    shards = CoordinatorShards(broker, count, several_brokers=others is not None)
    parts = compose_parts(broker, runtime.clock, others, peer_handlers)
    groups = _coordinate_groups(context, parts, shards, catalog, how)
    groups.start()
    stack.push_async_callback(groups.close)
    transactions = compose_transactions(
        context,
        parts,
        shards,
        groups.offsets,
        may_use_all=authoriser.is_superuser,
        settings=how.transactions,
        ids_at_once=how.producer_ids,
        peers=others,
        handlers=peer_handlers,
    )
    transactions.start()
    stack.push_async_callback(transactions.close)
    elsewhere = None if others is None else Elsewhere(others)
    transaction_access = TransactionAccess(transactions, authoriser, elsewhere)
    TransactionsService(transaction_access).answer(peer_handlers)
    group_access = GroupAccess(groups, authoriser, registry, runtime.clock, others)
    group_access.answer(peer_handlers)
    balance = None
    if bundles is not None and others is not None and how.balance is not None:
        balance = await compose_balance(
            runtime,
            meta,
            broker,
            bundles,
            registry,
            peers=others,
            handlers=peer_handlers,
            settings=how.balance,
            stack=stack,
        )
    connections = ConnectionDirectory()
    kafka = KafkaServices(
        runtime.clock,
        broker,
        registry,
        catalog,
        guard,
        authoriser,
        KafkaSettings(node_id=_number_of(broker, how.name)),
        groups=group_access,
        transactions=transaction_access,
        balance=balance,
    )
    return ComposedBroker(
        how.name,
        runtime,
        stack,
        registry,
        authoriser,
        guard,
        schemas,
        exchanges,
        context,
        broker,
        connections,
        queues,
        groups,
        transactions,
        transaction_access,
        group_access,
        bundles,
        balance,
        peers,
        peer_handlers,
        peer_metrics,
        how.peers or PeerLinks(),
        kafka,
        AmqpServices(runtime, broker, exchanges, queues, guard, replies, connections),
        _rocketmq(
            runtime,
            broker,
            guard,
            registry,
            positions=group_access,
            name=how.name,
            calls=PeerGatewayCalls(peers, peer_handlers),
            stack=stack,
        ),
    )


def _join(
    bundles: BundleMoves,
    broker: Broker,
    context: BrokerContext,
    how: Composition,
    *,
    peers: PeerCalls,
    handlers: PeerHandlers,
) -> None:
    """What a broker asks others for, and answers them."""
    bundles.serve(broker, PeerSuccessor(peers, handlers, bundles))
    bundles.ownership.silent.reach = PeerReach(peers, context.runtime.clock)
    broker.elsewhere = PeerParts(context.runtime.clock, peers, handlers, broker)
    if how.peers is not None:
        here = context.half_checkers
        elsewhere = CheckersElsewhere(
            here, context.guard, peers, handlers, broker_id=how.name, brokers=bundles.ownership.brokers
        )
        here.elsewhere = elsewhere.ask


def _streams(
    runtime: Runtime,
    meta: MetaStore,
    ledgers: LedgerClient,
    how: Composition,
    *,
    features: FeaturesInUse,
    stack: AsyncExitStack,
) -> StreamContext:
    context = StreamContext(
        runtime,
        meta,
        ledgers,
        TailCache(how.tail_bytes),
        how.streams,
        features,
        ByteBudget(how.broker.queue_memory_bytes),
        stores=how.stores,
        reached=how.reached,
    )
    stack.push_async_callback(context.segments.close)
    return context


def _rocketmq(
    runtime: Runtime,
    broker: Broker,
    guard: TopicGuard,
    registry: Registry,
    *,
    positions: GroupAccess,
    name: str,
    calls: PeerGatewayCalls,
    stack: AsyncExitStack,
) -> RocketmqServices:
    groups = ConsumerGroups(runtime, broker, registry)
    stack.push_async_callback(groups.close)
    clients = RocketmqClients()
    announcing = Announcing(runtime.clock, clients)
    stack.push_async_callback(announcing.close)
    services = RocketmqServices(
        runtime, broker, guard, registry, groups, clients, announcing, positions, name, calls
    )
    calls.answer(ROCKETMQ, HandedOnCalls(services).answer)
    groups.client_lives = lambda client: services.clients.find(client) is not None
    services.clients.on_gone += [groups.client_gone, services.polls.client_gone]
    stack.push_async_callback(services.polls.close)
    return services


def compose_parts(broker: Broker, clock: Clock, peers: PeerCalls | None, handlers: PeerHandlers | None) -> Parts:
    """The partitions that coordinators have to do with: of all brokers, if there are others."""
    local = LocalParts(broker, clock)
    if handlers is not None:
        PartsService(local).answer(handlers)
    return local if peers is None else RoutedParts(local, broker, peers, clock)


def compose_transactions(
    context: BrokerContext,
    parts: Parts,
    shards: CoordinatorShards,
    offsets: GroupOffsets,
    *,
    may_use_all: Callable[[str], bool] = lambda role: True,
    settings: TransactionSettings | None = None,
    ids_at_once: int,
    peers: PeerCalls | None = None,
    handlers: PeerHandlers | None = None,
) -> Transactions:
    """Transactions, of whatever protocol has them."""
    clock = context.runtime.clock
    taking_part = TakingPart(parts, offsets, shards, peers)
    transactions = Transactions(
        clock,
        shards,
        takes_part=taking_part,
        positions=offsets,
        ids=IdBlocks(clock, context.streams.meta, size=ids_at_once, counter=keys.PRODUCER_COUNTER),
        gate=context.transactions,
        settings=settings,
        may_use_all=may_use_all,
        peers=peers,
    )
    if handlers is not None:
        taking_part.answer(handlers)
        transactions.answer(handlers)
    return transactions


def _coordinate_groups(
    context: BrokerContext, parts: Parts, shards: CoordinatorShards, catalog: Catalog, how: Composition
) -> GroupCoordinator:
    """Consumer groups, of whatever protocol has them."""
    return GroupCoordinator(
        context.runtime,
        shards,
        GroupOffsets(parts, shards, context.runtime.clock),
        context.members,
        how.groups,
        topics_read=partial(topics_read, catalog),
        guard=context.guard,
    )


def _peers(
    runtime: Runtime,
    how: Composition,
    handlers: PeerHandlers,
    metrics: PeerMetrics,
    *,
    brokers: Callable[[], list[BrokerInfo]],
    stack: AsyncExitStack,
) -> PeerCalls:
    """How the broker's parts ask other brokers."""
    if how.peers is None:
        return LonePeers(how.name, handlers)
    pool = PeerPool(
        runtime,
        how.name,
        handlers,
        brokers,
        settings=how.peers.client,
        credentials=how.peers.credentials,
        metrics=metrics,
    )
    stack.push_async_callback(pool.close)
    return pool


def _cluster(ownership: BundleOwnership) -> Cluster:
    return Cluster(ownership.me.instance, lambda: {info.instance for info in ownership.brokers()})


def _number_of(broker: Broker, name: str) -> int:
    return next((info.node_id for info in broker.brokers() if info.broker_id == name), 0)


async def _own(
    runtime: Runtime, meta: MetaStore, how: Composition, registry: Registry, stack: AsyncExitStack
) -> BundleMoves:
    runtime = replace(runtime, clock=unmoved(runtime.clock))  # leases are renewed by it
    number = await number_of(meta, runtime, how.name)
    instance = f"{runtime.rng.getrandbits(64):016x}"
    info = BrokerInfo(how.name, instance, how.listeners, number, rack=how.rack, features=how.features)
    ownership = BundleOwnership(
        meta,
        runtime,
        info,
        how.ownership,
        isolation_of=registry.isolation,
    )
    bundles = BundleMoves(ownership)
    await ownership.start()
    stack.push_async_callback(ownership.close)
    return bundles


async def _open_holding(
    settings: HoldingSettings, context: StreamContext, stream: Stream, state: StateLog
) -> HoldingArea:
    return await HoldingArea.open(context, stream.name, stream, state, settings)
