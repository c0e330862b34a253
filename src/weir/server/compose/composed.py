"""A broker that is put together and started: its parts, and the listeners that are added to it."""

from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from ssl import SSLContext
from typing import Protocol, TypeVar

from weir.broker.access.security import Authoriser, TopicGuard
from weir.broker.access.topic_lists import GuardedTopicLists
from weir.broker.api import ConnectionDirectory, Queues
from weir.broker.broker import Broker
from weir.broker.bundles.moving import BundleMoves
from weir.broker.context import BrokerContext
from weir.broker.exchanges.service import ExchangeService
from weir.broker.groups.coordinator import GroupCoordinator
from weir.broker.groups.owned import GroupAccess
from weir.broker.peers.calls import PeerCalls, PeerHandlers
from weir.broker.peers.metrics import PeerMetrics
from weir.broker.peers.server import PeerServer
from weir.broker.peers.settings import PeerLinks, PeerServerSettings
from weir.broker.registry.registry import Registry
from weir.broker.schemas.registry import SchemaRegistry
from weir.broker.transactions.coordinator import Transactions
from weir.broker.transactions.owned import TransactionAccess
from weir.gateway.amqp.connection.server import AmqpServer
from weir.gateway.amqp.connection.settings import AmqpSettings
from weir.gateway.amqp.metrics import AmqpMetrics
from weir.gateway.amqp.services import Services as AmqpServices
from weir.gateway.kafka.catalog import Catalog
from weir.gateway.kafka.connection.metrics import KafkaMetrics
from weir.gateway.kafka.connection.server import KafkaServer
from weir.gateway.kafka.connection.settings import KafkaSettings
from weir.gateway.kafka.services import Services as KafkaServices
from weir.gateway.pulsar.metrics import PulsarMetrics
from weir.gateway.pulsar.server import PulsarServer
from weir.gateway.pulsar.settings import PulsarSettings
from weir.gateway.rocketmq.commands import ClientCommands
from weir.gateway.rocketmq.connection.server import RocketmqServer
from weir.gateway.rocketmq.connection.settings import RocketmqSettings
from weir.gateway.rocketmq.metrics import RocketmqMetrics
from weir.gateway.rocketmq.services import Services as RocketmqServices
from weir.runtime.byte_budget import ByteBudget
from weir.runtime.interfaces import Runtime
from weir.runtime.request_budget import RequestBudget
from weir.server.compose.balance import ClusterBalance
from weir.server.schema_port import GuardedSchemas


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
