"""A broker that is put together and started: its parts, and the listeners that are added to it.

What is decided about a broker from outside, before it is put together.
"""

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

    async def _listen(self, server: _ServerT) -> _ServerT:
        await server.start()
        self.stack.push_async_callback(server.close)
        self.stack.push_async_callback(self.leave)
        return server

    async def serve_peers(
        self, settings: PeerServerSettings, *, request_budget: RequestBudget | None = None
    ) -> PeerServer:
        """The listener for other brokers. Whoever has something to answer them says so before."""
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
        """One more listener for Pulsar's clients."""
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
        """One more listener for Kafka's clients."""
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
        """One more listener for RabbitMQ's clients."""
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
        """One more listener for RocketMQ's clients."""
        services = self._rocketmq if metrics is None else replace(self._rocketmq, metrics=metrics)
        return await self._listen(RocketmqServer(services, settings, tls=tls, request_budget=request_budget))


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
    authenticator: Authenticator | None = None
    #: Stands in for ownership by a lease in the metadata.
    owner: Ownership | None = None
    #: How it speaks with the other brokers; None: it is on its own, and asks nobody but itself.
    peers: PeerLinks | None = None
    #: What it says that it can do.
    features: tuple[str, ...] = FEATURES
    #: The catalog of the lake that there is although no superuser has defined it.
    default_lake: LakeCatalog | None = None
    #: Stands in for the stores of the lake as the runtime reaches them.
    stores: ObjectStores | None = None
    #: Told at which step a ledger is on its way to the lake.
    reached: Callable[[str], None] = lambda step: None
    #: Its part in balance, if it speaks with other brokers; None: it is measured by nobody and leads nobody.
    balance: BalanceSettings | None = None
    #: Who hears of messages that carry a trace.
    tracing: Tracing | None = None
