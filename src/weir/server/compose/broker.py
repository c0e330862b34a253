"""The composition root: a broker with all its parts and gateways, over any runtime, metadata and ledgers.

`weir up`, the simulations and test stages differ in the runtime, the metadata and the ledgers that they pass, and
in the values of `Composition`; this module alone decides how parts are connected.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial

from weir.broker.api.connections import ConnectionDirectory
from weir.broker.api.consumers import ConsumerLimit
from weir.broker.api.queues import Queues
from weir.broker.broker import Broker
from weir.broker.cluster.bundle_handover import BundleMoves
from weir.broker.cluster.ownership import BundleOwnership
from weir.broker.cluster.registration import FeatureGate, PeerReach, number_of
from weir.broker.cluster.topic_calls import CheckersElsewhere, PeerParts, PeerSuccessor
from weir.broker.context import BrokerContext
from weir.broker.coordination.partition_ops import LocalParts, Parts
from weir.broker.coordination.remote_partition_ops import PartsService, RoutedParts
from weir.broker.coordination.shards import CLUSTER_SHARDS, CoordinatorShards, ShardCount
from weir.broker.exchanges.exchange_table import Cluster, ExchangeService
from weir.broker.groups.group_access import GroupAccess
from weir.broker.groups.group_coordinator import GroupCoordinator
from weir.broker.groups.group_offsets import GroupOffsets
from weir.broker.metadata.lake_rules import LakeRules
from weir.broker.metadata.registry import Registry
from weir.broker.peers.peer_calls import (
    LonePeers,
    PeerCalls,
    PeerGatewayCalls,
    PeerHandlers,
    PeerLinks,
    PeerMetrics,
)
from weir.broker.peers.peer_client import PeerPool
from weir.broker.queues.cluster_queues import ReplyReceivers, RoutedQueues
from weir.broker.queues.partitioned_queue import WholeTopicQueues
from weir.broker.queues.queue_policies import DeclaredRules
from weir.broker.queues.queue_relay_server import RelayedQueues
from weir.broker.queues.queue_service import PolicedExchangeService, QueueService, forget_bindings
from weir.broker.schemas.schema_registry import SchemaRegistry
from weir.broker.security.authentication import Authenticator
from weir.broker.security.authorization import Authoriser, ExchangeAccess, TopicGuard
from weir.broker.standalone import SoleOwner
from weir.broker.trace.trace_log import TraceLog
from weir.broker.transactions.remote_transactions import (
    RemoteCoordinators,
    TransactionParticipants,
    TransactionsService,
)
from weir.broker.transactions.transaction import TransactionSettings
from weir.broker.transactions.transaction_access import TransactionAccess
from weir.broker.transactions.transaction_coordinator import Transactions
from weir.gateway.amqp.context import Services as AmqpServices
from weir.gateway.kafka.context import Services as KafkaServices
from weir.gateway.kafka.handlers.groups import topics_read
from weir.gateway.kafka.metadata import Catalog
from weir.gateway.kafka.settings import KafkaSettings
from weir.ledger.client import LedgerClient
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.update import IdBlocks
from weir.model.cluster import TOPIC_INDEX, EveryFeature, FeaturesInUse
from weir.model.registry import BrokerInfo
from weir.runtime.adjustable_clock import unmoved
from weir.runtime.budgets import ByteBudget
from weir.runtime.interfaces import Clock, Runtime
from weir.server.compose.cluster_balance import compose_balance
from weir.server.compose.composed import ComposedBroker, Composition
from weir.server.compose.rocketmq import compose_rocketmq
from weir.stream.context import StreamContext
from weir.stream.holding.area import HoldingArea
from weir.stream.log import Stream
from weir.stream.settings import HoldingSettings
from weir.stream.state_log import StateLog
from weir.stream.tail import TailCache


@dataclass(frozen=True, slots=True)
class Coordinators:
    """Coordinators of consumer groups and transactions, the same for every role, wherever their shard is."""

    groups: GroupCoordinator
    transactions: Transactions
    transaction_access: TransactionAccess
    group_access: GroupAccess


def compose_coordinators(
    context: BrokerContext,
    broker: Broker,
    registry: Registry,
    how: Composition,
    *,
    authoriser: Authoriser,
    catalog: Catalog,
    bundles: BundleMoves | None,
    peers: PeerCalls | None,
    handlers: PeerHandlers,
    stack: AsyncExitStack,
) -> Coordinators:
    """Start the coordinators, and serve calls of other brokers for them."""
    clock = context.runtime.clock
    wanted = how.coordinator_shards or (1 if peers is None else CLUSTER_SHARDS)
    count = ShardCount(context.streams.meta, wanted, bundles)
    shards = CoordinatorShards(broker, count, several_brokers=peers is not None)
    parts = compose_parts(broker, clock, peers, handlers)
    groups = _groups(context, parts, shards, catalog, how)
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
        peers=peers,
        handlers=handlers,
    )
    transactions.start()
    stack.push_async_callback(transactions.close)
    elsewhere = None if peers is None else RemoteCoordinators(peers)
    transaction_access = TransactionAccess(transactions, authoriser, elsewhere)
    TransactionsService(transaction_access).answer(handlers)
    group_access = GroupAccess(groups, authoriser, registry, clock, peers)
    group_access.answer(handlers)
    return Coordinators(groups, transactions, transaction_access, group_access)


def compose_parts(broker: Broker, clock: Clock, peers: PeerCalls | None, handlers: PeerHandlers | None) -> Parts:
    """The partitions that coordinators use: those of all brokers, if there are others."""
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
    """Transactions of all protocols."""
    clock = context.runtime.clock
    taking_part = TransactionParticipants(parts, offsets, shards, peers)
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


def _groups(
    context: BrokerContext, parts: Parts, shards: CoordinatorShards, catalog: Catalog, how: Composition
) -> GroupCoordinator:
    """Consumer groups of all protocols."""
    return GroupCoordinator(
        context.runtime,
        shards,
        GroupOffsets(parts, shards, context.runtime.clock),
        context.members,
        how.groups,
        topics_read=partial(topics_read, catalog),
        guard=context.guard,
    )


def compose_peers(
    runtime: Runtime,
    how: Composition,
    handlers: PeerHandlers,
    metrics: PeerMetrics,
    *,
    brokers: Callable[[], list[BrokerInfo]],
    stack: AsyncExitStack,
) -> PeerCalls:
    """The calls of the broker's parts to other brokers."""
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


async def own_bundles(
    runtime: Runtime, meta: MetaStore, how: Composition, registry: Registry, stack: AsyncExitStack
) -> BundleMoves:
    runtime = replace(runtime, clock=unmoved(runtime.clock))  # for lease renewal
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


def join_cluster(
    bundles: BundleMoves,
    broker: Broker,
    context: BrokerContext,
    how: Composition,
    *,
    peers: PeerCalls,
    handlers: PeerHandlers,
) -> None:
    """The calls that a broker sends to others, and serves for them."""
    bundles.serve(broker, PeerSuccessor(peers, handlers, bundles))
    bundles.ownership.silent.reach = PeerReach(peers, context.runtime.clock)
    broker.deletions.elsewhere = PeerParts(context.runtime.clock, peers, handlers, broker)
    if how.peers is not None:
        here = context.half_checkers
        elsewhere = CheckersElsewhere(
            here, context.guard, peers, handlers, broker_id=how.name, brokers=bundles.ownership.brokers
        )
        here.elsewhere = elsewhere.ask


def cluster_of(ownership: BundleOwnership) -> Cluster:
    return Cluster(ownership.me.instance, lambda: {info.instance for info in ownership.brokers()})


def compose_streams(
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


async def open_holding(
    settings: HoldingSettings, context: StreamContext, stream: Stream, state: StateLog
) -> HoldingArea:
    return await HoldingArea.open(context, stream.name, stream, state, settings)


def compose_queues(
    context: BrokerContext,
    registry: Registry,
    broker: Broker,
    exchanges: PolicedExchangeService,
    *,
    name: str,
    peers: PeerCalls | None,
    handlers: PeerHandlers,
    authoriser: Authoriser,
    schemas: SchemaRegistry,
    stack: AsyncExitStack,
) -> Queues:
    """The queues of this broker; in a cluster, also those of other brokers, whose calls it serves."""
    local = QueueService(context, registry, broker, exchanges)
    stack.push_async_callback(local.close)
    logs = _queues_of_logs(
        context, registry, broker, local, name=name, peers=peers, handlers=handlers, stack=stack
    )
    clock = context.runtime.clock
    queues = WholeTopicQueues(logs, exchanges, registry, broker, authoriser=authoriser, clock=clock)
    local.lead_to(queues)
    local.start()
    if context.trace is not None:
        context.trace.lead_to(queues, registry, schemas, name)
        stack.push_async_callback(context.trace.close)
    return queues


def _queues_of_logs(
    context: BrokerContext,
    registry: Registry,
    broker: Broker,
    local: QueueService,
    *,
    name: str,
    peers: PeerCalls | None,
    handlers: PeerHandlers,
    stack: AsyncExitStack,
) -> Queues:
    """Queues that consist of one log each."""
    if peers is None:
        return local
    clock = context.runtime.clock
    relayed = RelayedQueues(clock, local, handlers, lambda other: other in {b.broker_id for b in broker.brokers()})
    stack.push_async_callback(relayed.close)
    routed = RoutedQueues(local, registry, broker, peers, handlers, runtime=context.runtime, broker_id=name)
    stack.push_async_callback(routed.close)
    return routed


async def compose_broker(
    runtime: Runtime, meta: MetaStore, ledgers: LedgerClient, how: Composition, stack: AsyncExitStack
) -> ComposedBroker:
    """Start a broker, part by part; the stack closes the parts in reverse order. The caller owns metadata and
    ledgers, which outlive the broker."""

    def may_index() -> bool:
        return features.uses(TOPIC_INDEX)

    registry = Registry(
        meta, runtime, how.policies, limits=how.topics, may_index=may_index, default_lake=how.default_lake
    )
    await registry.start()
    stack.push_async_callback(registry.close)
    peer_handlers, peer_metrics = PeerHandlers(), PeerMetrics()

    def brokers() -> list[BrokerInfo]:
        return ownership.brokers()

    peers = compose_peers(runtime, how, peer_handlers, peer_metrics, brokers=brokers, stack=stack)
    bundles = None if how.owner is not None else await own_bundles(runtime, meta, how, registry, stack)
    ownership = how.owner or (SoleOwner() if bundles is None else bundles.ownership)
    features = EveryFeature() if bundles is None else FeatureGate(lambda: bundles.ownership.registration.live)
    authoriser = Authoriser(registry, how.security)
    guard = TopicGuard(authoriser)
    schemas = SchemaRegistry(meta, runtime, registry)
    cluster = None if bundles is None or how.peers is None else cluster_of(bundles.ownership)
    exchanges = ExchangeService(meta, runtime, registry, ExchangeAccess(authoriser), cluster=cluster)
    stack.push_async_callback(exchanges.close)
    context = BrokerContext(
        runtime,
        compose_streams(runtime, meta, ledgers, how, features=features, stack=stack),
        how.broker,
        ByteBudget(how.broker.in_flight_bytes),
        consumer_limit=ConsumerLimit(how.broker.subscription_consumers),
        guard=guard,
        schemas=schemas,
        open_holding=partial(open_holding, how.holding),
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
        join_cluster(bundles, broker, context, how, peers=peers, handlers=peer_handlers)
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
    coordinators = compose_coordinators(
        context,
        broker,
        registry,
        how,
        authoriser=authoriser,
        catalog=catalog,
        bundles=bundles,
        peers=others,
        handlers=peer_handlers,
        stack=stack,
    )
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
        groups=coordinators.group_access,
        transactions=coordinators.transaction_access,
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
        coordinators.groups,
        coordinators.transactions,
        coordinators.transaction_access,
        coordinators.group_access,
        bundles,
        balance,
        peers,
        peer_handlers,
        peer_metrics,
        how.peers or PeerLinks(),
        kafka,
        AmqpServices(runtime, broker, exchanges, queues, guard, replies, connections),
        compose_rocketmq(
            runtime,
            broker,
            guard,
            registry,
            positions=coordinators.group_access,
            name=how.name,
            calls=PeerGatewayCalls(peers, peer_handlers),
            stack=stack,
        ),
    )


def _number_of(broker: Broker, name: str) -> int:
    return next((info.node_id for info in broker.brokers() if info.broker_id == name), 0)


__all__ = ["ComposedBroker", "Composition", "compose_broker"]
