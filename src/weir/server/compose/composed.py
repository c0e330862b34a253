"""A composed and started broker, its listeners, and the external settings of a composition."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from ssl import SSLContext
from typing import Protocol, TypeVar

from weir.broker.api.connections import ConnectionDirectory
from weir.broker.api.queues import Queues
from weir.broker.balance.balancer import BalanceSettings
from weir.broker.broker import Broker
from weir.broker.cluster.bundle_handover import BundleMoves
from weir.broker.cluster.registration import OwnershipSettings
from weir.broker.context import BrokerContext
from weir.broker.exchanges.exchange_table import ExchangeService
from weir.broker.groups.group import GroupSettings
from weir.broker.groups.group_access import GroupAccess
from weir.broker.groups.group_coordinator import GroupCoordinator
from weir.broker.metadata.registry import Registry
from weir.broker.metadata.topic_records import TopicLimits
from weir.broker.peers.peer_calls import PeerCalls, PeerHandlers, PeerLinks, PeerMetrics, PeerServerSettings
from weir.broker.peers.peer_server import PeerServer
from weir.broker.ports import Authenticator, Ownership
from weir.broker.schemas.role_schemas import GuardedSchemas
from weir.broker.schemas.schema_registry import SchemaRegistry
from weir.broker.security.authentication import SecuritySettings
from weir.broker.security.authorization import Authoriser, GuardedTopicLists, TopicGuard
from weir.broker.security.tokens import TokenVerifier
from weir.broker.settings import BrokerSettings
from weir.broker.trace.spans import Tracing
from weir.broker.transactions.transaction import TransactionSettings
from weir.broker.transactions.transaction_access import TransactionAccess
from weir.broker.transactions.transaction_coordinator import Transactions
from weir.gateway.amqp.context import Services as AmqpServices
from weir.gateway.amqp.gateway import AmqpServer
from weir.gateway.amqp.settings import AmqpMetrics, AmqpSettings
from weir.gateway.kafka.context import Services as KafkaServices
from weir.gateway.kafka.gateway import KafkaServer
from weir.gateway.kafka.metadata import Catalog
from weir.gateway.kafka.settings import KafkaMetrics, KafkaSettings
from weir.gateway.pulsar.gateway import PulsarServer
from weir.gateway.pulsar.settings import PulsarMetrics, PulsarSettings
from weir.gateway.rocketmq.client_commands import ClientCommands
from weir.gateway.rocketmq.context import Services as RocketmqServices
from weir.gateway.rocketmq.gateway import RocketmqServer
from weir.gateway.rocketmq.settings import RocketmqMetrics, RocketmqSettings
from weir.model.cluster import FEATURES
from weir.model.lake import LakeCatalog
from weir.model.policies import Policies
from weir.runtime.budgets import ByteBudget, RequestBudget
from weir.runtime.interfaces import Runtime
from weir.runtime.object_store import ObjectStores
from weir.server.compose.cluster_balance import ClusterBalance
from weir.stream.settings import HoldingSettings, StreamSettings


class _Server(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None: ...


_ServerT = TypeVar("_ServerT", bound=_Server)


@dataclass(frozen=True, slots=True)
class ComposedBroker:
    """A started broker; its stack closes it after the gateways that were added to it."""

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
    #: Gateway clients that can be listed and closed.
    connections: ConnectionDirectory
    queues: Queues
    groups: GroupCoordinator
    transactions: Transactions
    #: Transactions, for every role.
    transaction_access: TransactionAccess
    group_access: GroupAccess
    #: Its view of the cluster; None if no other broker can exist.
    bundles: BundleMoves | None
    #: None if it takes no part in balance.
    balance: ClusterBalance | None
    #: Other brokers, and the calls that this one serves for them once `serve_peers` has been called.
    peers: PeerCalls
    peer_handlers: PeerHandlers
    peer_metrics: PeerMetrics
    _peer_links: PeerLinks
    #: Shared by all listeners for Kafka; each has its own settings.
    _kafka: KafkaServices
    #: Shared by all listeners for AMQP.
    _amqp: AmqpServices
    #: Shared by all listeners for RocketMQ.
    _rocketmq: RocketmqServices

    @property
    def client_commands(self) -> ClientCommands:
        """Commands that the broker can send to RocketMQ clients."""
        return ClientCommands(self._rocketmq)

    @property
    def catalog(self) -> Catalog:
        return self._kafka.catalog

    def kafka_services(self, settings: KafkaSettings) -> KafkaServices:
        """The services behind a listener for Kafka clients. The broker's number comes from its registration."""
        return replace(self._kafka, settings=replace(settings, node_id=self._kafka.settings.node_id))

    async def leave(self) -> None:
        """Hand all bundles over, if other brokers exist, while clients are still connected and can be redirected.
        Listeners that were added here do so before they close."""
        if self.bundles is not None and not self.bundles.draining:
            await self.bundles.leave()

    async def _listen(self, server: _ServerT) -> _ServerT:
        await server.start()
        self.stack.push_async_callback(server.close)
        self.stack.push_async_callback(self.leave)
        return server

    async def serve_peers(
        self, settings: PeerServerSettings, *, request_budget: RequestBudget | None = None
    ) -> PeerServer:
        """The listener for other brokers. Parts must register their handlers before."""
        return await self._listen(
            PeerServer(
                self.runtime,
                self.name,
                self.peer_handlers,
                settings,
                credentials=self._peer_links.credentials,
                metrics=self.peer_metrics,
                request_budget=request_budget,
            )
        )

    async def serve_pulsar(
        self,
        settings: PulsarSettings,
        *,
        metrics: PulsarMetrics | None = None,
        tls: SSLContext | None = None,
        request_budget: RequestBudget | None = None,
    ) -> PulsarServer:
        """Add a listener for Pulsar clients."""
        return await self._listen(
            PulsarServer(
                self.runtime,
                self.broker,
                settings,
                schemas=GuardedSchemas(self.schemas, self.guard),
                lists=GuardedTopicLists(self.registry, self.guard),
                metrics=metrics,
                tls=tls,
                request_budget=request_budget,
            )
        )

    async def serve_kafka(
        self,
        settings: KafkaSettings,
        *,
        metrics: KafkaMetrics | None = None,
        tls: SSLContext | None = None,
        request_budget: RequestBudget | None = None,
        unread_budget: ByteBudget | None = None,
    ) -> KafkaServer:
        """Add a listener for Kafka clients."""
        return await self._listen(
            KafkaServer(
                self.runtime,
                self.kafka_services(settings),
                metrics=metrics,
                tls=tls,
                request_budget=request_budget,
                unread_budget=unread_budget,
            )
        )

    async def serve_amqp(
        self,
        settings: AmqpSettings,
        *,
        metrics: AmqpMetrics | None = None,
        tls: SSLContext | None = None,
        request_budget: RequestBudget | None = None,
    ) -> AmqpServer:
        """Add a listener for RabbitMQ clients."""
        services = self._amqp if metrics is None else replace(self._amqp, metrics=metrics)
        return await self._listen(AmqpServer(services, settings, tls=tls, request_budget=request_budget))

    async def serve_rocketmq(
        self,
        settings: RocketmqSettings,
        *,
        metrics: RocketmqMetrics | None = None,
        tls: SSLContext | None = None,
        request_budget: RequestBudget | None = None,
    ) -> RocketmqServer:
        """Add a listener for RocketMQ clients."""
        services = self._rocketmq if metrics is None else replace(self._rocketmq, metrics=metrics)
        return await self._listen(RocketmqServer(services, settings, tls=tls, request_budget=request_budget))


@dataclass(frozen=True, slots=True)
class Composition:
    """External settings and replaceable parts of a broker."""

    name: str
    #: Addresses for clients, by listener name.
    listeners: dict[str, str] = field(default_factory=dict)
    #: Policies of namespaces and topics without their own; unset ones have Weir's defaults.
    policies: Policies = field(default_factory=Policies)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    tokens: TokenVerifier | None = None
    #: The source of access keys, besides the secret of tokens.
    access_secret: bytes = b""
    ownership: OwnershipSettings = field(default_factory=OwnershipSettings)
    streams: StreamSettings = field(default_factory=StreamSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    topics: TopicLimits = field(default_factory=TopicLimits)
    holding: HoldingSettings = field(default_factory=HoldingSettings)
    groups: GroupSettings = field(default_factory=GroupSettings)
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    #: Bytes of new messages kept in memory for tailing readers, over all topics.
    tail_bytes: int = 1 << 20
    #: Shards of coordinators, if not stored yet; None: one for a standalone broker, `CLUSTER_SHARDS` for several.
    coordinator_shards: int | None = None
    #: The rack.
    rack: str = ""
    #: Producer ids that the broker reserves in the metadata at a time.
    producer_ids: int = 1000
    #: Replaces the authenticator by tokens and certificates.
    authenticator: Authenticator | None = None
    #: Replaces ownership by a lease in the metadata.
    owner: Ownership | None = None
    #: Calls to other brokers; None: the broker is standalone.
    peers: PeerLinks | None = None
    #: The features that it announces.
    features: tuple[str, ...] = FEATURES
    #: The lake catalog that exists without a superuser's definition.
    default_lake: LakeCatalog | None = None
    #: Replaces the stores of the lake that the runtime reaches.
    stores: ObjectStores | None = None
    #: Called with each step of a ledger's export to the lake.
    reached: Callable[[str], None] = lambda step: None
    #: Its part in balance, if it calls other brokers; None: it neither reports load nor leads.
    balance: BalanceSettings | None = None
    #: Receives messages that carry a trace.
    tracing: Tracing | None = None
