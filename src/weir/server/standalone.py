"""Everything in one process: storage, broker and gateways, started in order and ended in the opposite one."""

import logging
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from ssl import SSLContext

from weir.admin.http import Request
from weir.admin.routes import AdminContext, ServiceUrls, admin_routes
from weir.admin.routing import Route
from weir.admin.server import AdminServer, Authenticate
from weir.broker.access.security import Authenticator, Authoriser, TopicGuard
from weir.broker.access.tokens import TokenVerifier, load_public_key, load_secret, read_key
from weir.broker.access.topic_lists import GuardedTopicLists
from weir.broker.broker import Broker
from weir.broker.context import BrokerContext
from weir.broker.coordinator_shards import CoordinatorShards
from weir.broker.groups.coordinator import GroupCoordinator
from weir.broker.groups.offsets import GroupOffsets
from weir.broker.groups.owned import GroupAccess
from weir.broker.ownership import Ownership
from weir.broker.registry.registry import Registry
from weir.broker.registry.sql_streams import SqlStreams
from weir.broker.schemas.registry import SchemaRegistry
from weir.broker.transactions.coordinator import Transactions
from weir.broker.transactions.owned import TransactionAccess
from weir.gateway.kafka.catalog import Catalog
from weir.gateway.kafka.connection.metrics import KafkaMetrics
from weir.gateway.kafka.connection.server import KafkaServer, unread_budget_of
from weir.gateway.kafka.connection.settings import KafkaSettings
from weir.gateway.kafka.grouping import topics_read
from weir.gateway.kafka.services import Services as KafkaServices
from weir.gateway.pulsar.server import PulsarServer
from weir.ledger.idblocks import IdBlocks
from weir.meta import keys
from weir.model.registry import STANDALONE, BrokerInfo
from weir.runtime.byte_budget import ByteBudget
from weir.runtime.interfaces import Disk, Runtime
from weir.runtime.request_budget import RequestBudget
from weir.server import config_parts as parts
from weir.server.addresses import Address
from weir.server.budget_metrics import budget_families
from weir.server.config import Config
from weir.server.config_parts import TokenSettings
from weir.server.kafka_metrics import kafka_families
from weir.server.listening import BoundNetwork
from weir.server.loop_metrics import loop_families
from weir.server.schema_port import GuardedSchemas
from weir.server.storage import LocalStorage
from weir.server.storage_metrics import damage_families
from weir.stream.context import StreamContext
from weir.stream.holding.area import HoldingArea
from weir.stream.log import Stream
from weir.stream.state import StateLog
from weir.stream.tail import TailCache

log = logging.getLogger(__name__)

_BROKER_ID = "standalone"
#: How clients write the addresses of listeners; Kafka's need no scheme.
_SCHEMES = {"pulsar": "pulsar://", "pulsar_tls": "pulsar+ssl://", "http": "http://", "https": "https://"}
#: Ids of producers that are taken from the metadata at a time.
_PRODUCER_IDS = 1000


class Standalone:
    """`start`, then `close`."""

    def __init__(
        self,
        runtime: Runtime,
        config: Config,
        *,
        on_locked: Callable[[], None] | None = None,
        accept_loss: bool = False,
    ) -> None:
        """`on_locked` is called when the data folder is known to be nobody else's; `accept_loss`: go on without
        what was acknowledged and is gone from it."""
        self._net = BoundNetwork(runtime.net)
        self._runtime = replace(runtime, net=self._net)
        self._config = config
        storage = replace(parts.storage_settings(config), accept_loss=accept_loss)
        self._storage = LocalStorage(self._runtime, storage, on_locked=on_locked)
        self._started = AsyncExitStack()
        self._bound: dict[str, Address] = {}
        self._kafka_metrics = KafkaMetrics()
        self._request_budget = RequestBudget(config.limits.received_bytes)
        self._unread_budget = unread_budget_of(KafkaSettings())

    @property
    def addresses(self) -> dict[str, Address]:
        """Where each listener is, by its name in the configuration."""
        return dict(self._bound)

    async def start(self) -> None:
        """Serve. If anything fails, all is undone."""
        try:
            await self._start()
        except BaseException:
            await self._started.aclose()
            raise

    async def close(self) -> None:
        """Take nothing new, finish what is under way, write down what must not be lost, let go of the folder."""
        await self._started.aclose()

    async def failed(self) -> None:
        """Wait until the disk failed for good; then close this, and start anew."""
        await self._storage.failed()

    async def _start(self) -> None:
        config = self._config
        tls = parts.tls_context(config)
        tokens = await _verifier(self._runtime.disk, parts.token_settings(config))
        self._started.callback(self._net.release)
        await self._bind(tls)
        await self._storage.start()
        self._started.push_async_callback(self._storage.close)
        registry = Registry(self._storage.meta, self._runtime, parts.default_policies(config))
        await registry.start()
        self._started.push_async_callback(registry.close)
        ownership = await self._own()
        security = parts.security_settings(config)
        authoriser = Authoriser(registry, security)
        guard = TopicGuard(authoriser)
        schemas = SchemaRegistry(self._storage.meta, self._runtime, registry)
        authenticator = Authenticator(self._runtime.clock, security, tokens=tokens)
        context = self._context(guard, schemas)
        broker = Broker(context, registry, ownership, authenticator)
        broker.start()
        self._started.push_async_callback(broker.close)
        shards = CoordinatorShards(broker)
        catalog = Catalog(registry, guard)
        groups = self._coordinate(broker, shards, context, catalog)
        transactions = TransactionAccess(self._transact(broker, shards, context, groups, authoriser), authoriser)
        await self._serve_pulsar(broker, GuardedSchemas(schemas, guard), registry, tls)
        await self._serve_kafka(
            broker,
            registry,
            authoriser,
            catalog,
            tls,
            groups=GroupAccess(groups, authoriser, registry, self._runtime.clock),
            transactions=transactions,
        )
        admin = AdminContext(
            self._runtime.clock,
            broker,
            registry,
            schemas,
            authoriser,
            self._urls(),
            probe=self._probe,
            gateways=lambda: [
                *loop_families(self._runtime.loop_holds),
                *budget_families(self._request_budget, self._unread_budget, self._net),
                *damage_families(self._storage.bookie.damages, self._storage.ledgers.context.losses.entries),
                *kafka_families(self._kafka_metrics),
            ],
            transactions=transactions,
            sql_streams=SqlStreams(self._storage.meta, self._runtime),
        )
        await self._serve_http(broker, admin_routes(admin), tls)

    async def _bind(self, tls: SSLContext | None) -> None:
        listeners = self._config.listeners
        for name, address in (
            ("pulsar", listeners.pulsar),
            ("pulsar_tls", listeners.pulsar_tls),
            ("kafka", listeners.kafka),
            ("kafka_tls", listeners.kafka_tls),
            ("http", listeners.http),
            ("https", listeners.https),
        ):
            if address is not None:
                tls_of = tls if _secure(name) else None
                reserve = name in ("http", "https")  # health is answered even without file descriptors
                self._bound[name] = await self._net.bind(address, tls=tls_of, reserve=reserve)

    async def _own(self) -> Ownership:
        instance = f"{self._runtime.rng.getrandbits(64):016x}"
        info = BrokerInfo(_BROKER_ID, instance, self._listeners())
        ownership = Ownership(self._storage.meta, self._runtime, info)
        await ownership.start()
        self._started.push_async_callback(ownership.close)
        return ownership

    def _urls(self) -> ServiceUrls:
        return ServiceUrls(self._listeners(), data=os.path.abspath(self._config.data))

    def _listeners(self) -> dict[str, str]:
        """Every listener, as its clients write it."""
        return {
            name: _SCHEMES.get(name, "") + str(parts.reachable(self._config, bound))
            for name, bound in self._bound.items()
        }

    async def _probe(self) -> None:
        """The metadata answers and something can be stored; without that a broker can do little."""
        await self._storage.meta.get(keys.cluster(STANDALONE))
        self._storage.check_writable()

    def _context(self, guard: TopicGuard, schemas: SchemaRegistry) -> BrokerContext:
        settings = parts.broker_settings(self._config)
        return BrokerContext(
            self._runtime,
            StreamContext(
                self._runtime,
                self._storage.meta,
                self._storage.ledgers,
                TailCache(self._config.storage.cache_bytes),
                parts.stream_settings(self._config),
            ),
            settings,
            ByteBudget(settings.in_flight_bytes),
            guard=guard,
            schemas=schemas,
            open_holding=_open_holding,
        )

    async def _serve_pulsar(
        self, broker: Broker, schemas: GuardedSchemas, registry: Registry, tls: SSLContext | None
    ) -> None:
        for name in ("pulsar", "pulsar_tls"):
            bound = self._bound.get(name)
            if bound is None:
                continue
            secure = _secure(name)
            server = PulsarServer(
                self._runtime,
                broker,
                parts.pulsar_settings(self._config, bound, secure=secure),
                schemas=schemas,
                lists=GuardedTopicLists(registry, schemas.guard),
                tls=tls if secure else None,
                request_budget=self._request_budget,
            )
            await server.start()
            self._started.push_async_callback(server.close)

    def _coordinate(
        self, broker: Broker, shards: CoordinatorShards, context: BrokerContext, catalog: Catalog
    ) -> GroupCoordinator:
        """Consumer groups, of whatever protocol has them."""
        offsets = GroupOffsets(broker, shards, self._runtime.clock)
        groups = GroupCoordinator(
            self._runtime,
            shards,
            offsets,
            context.members,
            parts.group_settings(self._config),
            topics_read=partial(topics_read, catalog),
            guard=context.guard,
        )
        groups.start()
        self._started.push_async_callback(groups.close)
        return groups

    def _transact(
        self,
        broker: Broker,
        shards: CoordinatorShards,
        context: BrokerContext,
        groups: GroupCoordinator,
        authoriser: Authoriser,
    ) -> Transactions:
        """Transactions, of whatever protocol has them."""
        clock = self._runtime.clock
        transactions = Transactions(
            clock,
            shards,
            topics=broker,
            positions=groups.offsets,
            ids=IdBlocks(clock, self._storage.meta, size=_PRODUCER_IDS, counter=keys.PRODUCER_COUNTER),
            gate=context.transactions,
            may_use_all=authoriser.is_superuser,
        )
        transactions.start()
        self._started.push_async_callback(transactions.close)
        return transactions

    async def _serve_kafka(
        self,
        broker: Broker,
        registry: Registry,
        authoriser: Authoriser,
        catalog: Catalog,
        tls: SSLContext | None,
        *,
        groups: GroupAccess,
        transactions: TransactionAccess,
    ) -> None:
        guard = TopicGuard(authoriser)
        shared = KafkaServices(
            self._runtime.clock,
            broker,
            registry,
            catalog,
            guard,
            authoriser,
            KafkaSettings(),
            groups=groups,
            transactions=transactions,
        )
        for name in ("kafka", "kafka_tls"):
            bound = self._bound.get(name)
            if bound is None:
                continue
            secure = _secure(name)
            urls = self._urls()
            http_url = urls.url("https", "http") if secure else urls.url("http", "https")
            settings = replace(parts.kafka_settings(self._config, bound), http_url=http_url)
            services = replace(shared, settings=settings)
            server = KafkaServer(
                self._runtime,
                services,
                metrics=self._kafka_metrics,
                tls=tls if secure else None,
                request_budget=self._request_budget,
                unread_budget=self._unread_budget,
            )
            await server.start()
            self._started.push_async_callback(server.close)

    async def _serve_http(self, broker: Broker, routes: list[Route], tls: SSLContext | None) -> None:
        for name in ("http", "https"):
            bound = self._bound.get(name)
            if bound is None:
                continue
            settings = parts.http_settings(self._config, bound)
            secure = _secure(name)
            server = AdminServer(
                self._runtime,
                settings,
                routes,
                _authenticate(broker),
                tls=tls if secure else None,
                request_budget=self._request_budget,
            )
            await server.start()
            self._started.push_async_callback(server.close)


def _authenticate(broker: Broker) -> Authenticate:
    """Who is behind a request, by its bearer token or its certificate. Whoever comes with credentials of another
    kind meant to be somebody, and is refused rather than taken for nobody."""

    async def authenticate(request: Request) -> str:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        method = {"bearer": "token", "": "none"}.get(scheme.lower(), f"HTTP {scheme}")
        found = await broker.authenticate(method, token.strip().encode(), certificate=request.certificate)
        return found.role

    return authenticate


async def _open_holding(context: StreamContext, stream: Stream, state: StateLog) -> HoldingArea:
    return await HoldingArea.open(context, stream.name, stream, state)


async def _verifier(disk: Disk, settings: TokenSettings) -> TokenVerifier | None:
    if settings.secret:
        return TokenVerifier(load_secret(await read_key(settings.secret, disk)), settings.rules)
    if settings.public_key:
        return TokenVerifier(load_public_key(await read_key(settings.public_key, disk)), settings.rules)
    return None


def _secure(name: str) -> bool:
    return name in ("pulsar_tls", "kafka_tls", "https")
