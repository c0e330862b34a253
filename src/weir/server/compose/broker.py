"""A broker with all its parts, started one by one."""

from contextlib import AsyncExitStack
from functools import partial

from weir.broker import ports
from weir.broker.access.exchanges import ExchangeAccess
from weir.broker.access.security import Authenticator, Authoriser, TopicGuard
from weir.broker.api import ConnectionDirectory
from weir.broker.broker import Broker
from weir.broker.context import BrokerContext
from weir.broker.dispatch.consumer_limit import ConsumerLimit
from weir.broker.exchanges.service import ExchangeService
from weir.broker.feature_gate import FeatureGate
from weir.broker.peers.calls import PeerHandlers
from weir.broker.peers.gateway_calls import PeerGatewayCalls
from weir.broker.peers.metrics import PeerMetrics
from weir.broker.peers.settings import PeerLinks
from weir.broker.queues.declared import DeclaredRules
from weir.broker.queues.replies import ReplyReceivers
from weir.broker.queues.service import forget_bindings
from weir.broker.registry.registry import Registry
from weir.broker.schemas.registry import SchemaRegistry
from weir.broker.tiered.rules import LakeRules
from weir.broker.trace.log import TraceLog
from weir.gateway.amqp.services import Services as AmqpServices
from weir.gateway.kafka.catalog import Catalog
from weir.gateway.kafka.connection.settings import KafkaSettings
from weir.gateway.kafka.services import Services as KafkaServices
from weir.ledger.client import LedgerClient
from weir.meta.interfaces import MetaStore
from weir.model.features import TOPIC_INDEX, EveryFeature
from weir.model.registry import BrokerInfo
from weir.runtime.byte_budget import ByteBudget
from weir.runtime.interfaces import Runtime
from weir.server.compose.balance import compose_balance
from weir.server.compose.composed import ComposedBroker
from weir.server.compose.composition import Composition
from weir.server.compose.coordinators import compose_coordinators
from weir.server.compose.membership import cluster_of, compose_peers, join_cluster, own_bundles
from weir.server.compose.queues import compose_queues
from weir.server.compose.rocketmq import compose_rocketmq
from weir.server.compose.streams import compose_streams, open_holding


async def compose_broker(
    runtime: Runtime, meta: MetaStore, ledgers: LedgerClient, how: Composition, stack: AsyncExitStack
) -> ComposedBroker:
    """Start a broker, part by part; the stack ends them in the opposite order. Metadata and ledgers are the
    caller's, and outlive it."""

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
    ownership = how.owner or (ports.SoleOwner() if bundles is None else bundles.ownership)
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
