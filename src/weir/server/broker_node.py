"""A broker's process: storage or its connection, the broker and its gateways, closed in reverse order.

The cluster's own id is in the metadata: the first broker creates it, and it never changes. Kafka clients and tools
distinguish clusters by it. It is a random UUID in Kafka's form: 22 characters of URL-safe base64 without a leading
dash, which tools would parse as an option.
"""

import asyncio
import base64
import binascii
import logging
import os
from base64 import urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from ssl import SSLContext
from uuid import UUID

from weir.admin.api import admin_routes
from weir.admin.clients import AccessKeyRoutes, ClientCommandRoutes, ConnectionBody, ConnectionRoutes
from weir.admin.context import AdminContext, AdminSettings, ServiceUrls
from weir.broker.broker import Broker
from weir.broker.metadata.definitions import Connectors, Functions, Replays, SqlStreams
from weir.broker.peers.peer_calls import LISTENER as PEER
from weir.broker.peers.peer_calls import PeerLinks
from weir.broker.security.cluster_credentials import check_known, load_credentials
from weir.broker.security.tokens import TokenVerifier, access_key_secret, load_public_key, load_secret, read_key
from weir.broker.trace.spans import Tracing
from weir.console.app import ConsoleParts
from weir.gateway.amqp.gateway import AmqpServer, amqp_families
from weir.gateway.amqp.management.api import management_routes
from weir.gateway.amqp.settings import AmqpSettings
from weir.gateway.kafka.gateway import KafkaServer, unread_budget_of
from weir.gateway.kafka.settings import KafkaSettings
from weir.gateway.pulsar.gateway import PulsarServer
from weir.gateway.pulsar.settings import PulsarSettings
from weir.gateway.rocketmq.gateway import RocketmqServer, rocketmq_families
from weir.gateway.rocketmq.settings import RocketmqSettings
from weir.meta import keys
from weir.meta.interfaces import ABSENT, MetaStore
from weir.model.check import check
from weir.model.cluster import BrokerLoad
from weir.model.errors import ConfigError, MetaConflictError, NotAuthenticatedError, WeirError
from weir.model.lake import LakeCatalog, local_catalog
from weir.model.registry import STANDALONE
from weir.rest.forwarding import AdminPeerHandler
from weir.rest.http import Request
from weir.rest.routes import Route
from weir.rest.server import AdminServer, Authenticate
from weir.runtime.adjustable_clock import unmoved
from weir.runtime.budgets import RequestBudget
from weir.runtime.interfaces import Disk, Runtime
from weir.runtime.real import stop_at
from weir.server.addresses import Address
from weir.server.admin_service import ConsoleService, disk_of, session_key, shared_secret, token_maker
from weir.server.compose.broker import compose_broker
from weir.server.compose.composed import ComposedBroker, Composition
from weir.server.config import part_settings
from weir.server.config.part_settings import TokenSettings
from weir.server.config.tree import Config
from weir.server.decommission import StorageAdministration
from weir.server.gateway_metrics import GatewayMetrics, gateway_families
from weir.server.listeners import BoundNetwork, log_open, naming_setting, open_families
from weir.server.local_storage import BrokerStorage, LocalStorage
from weir.server.metrics import (
    balance_families,
    budget_families,
    cluster_families,
    damage_families,
    loop_families,
    peer_families,
    process_families,
    space_families,
)
from weir.server.node import Node
from weir.server.own_certificate import OwnCertificate
from weir.server.telemetry import Telemetry
from weir.stream.settings import HoldingSettings
from weir.wire.entry import OPENED
from weir.wire.first_bytes import ServedPort
from weir.wire.peer.calls import AdminCall, ReportLoad


async def stored_cluster_id(meta: MetaStore, runtime: Runtime) -> str:
    """The id of the cluster with this metadata; the first broker creates it."""
    found = await meta.get(keys.CLUSTER_ID)
    if found is None:
        with suppress(MetaConflictError):  # another broker was faster
            await meta.put(keys.CLUSTER_ID, new_cluster_id(runtime.rng).encode(), expect=ABSENT)
        found = await meta.get(keys.CLUSTER_ID)
    check(found is not None, "the cluster's id was just put")
    return "" if found is None else found.value.decode()


def new_cluster_id(rng: Random) -> str:
    while True:
        text = urlsafe_b64encode(UUID(bytes=rng.randbytes(16), version=4).bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


log = logging.getLogger(__name__)

#: For tests: names a step of a ledger's export to the lake at which the process exits or halts.
_TIERED_STOP_AT = "WEIR_TIERED_STOP_AT"

#: The id of the start that this process belongs to, if a supervisor started it (`weir.server.workers`).
INSTANCE = "WEIR_INSTANCE"

#: URL schemes of listeners in client configurations; Kafka needs none.
_SCHEMES = {
    "pulsar": "pulsar://",
    "pulsar_tls": "pulsar+ssl://",
    "amqp": "amqp://",
    "amqps": "amqps://",
    "http": "http://",
    "https": "https://",
}


class BrokerNode(Node):
    """A broker with its gateways, over storage in its own or other processes. `close` rejects new requests,
    finishes pending ones, stores state that must survive, and releases the folder."""

    def __init__(
        self,
        runtime: Runtime,
        config: Config,
        *,
        on_locked: Callable[[], None] | None = None,
        accept_loss: bool = False,
        storage: BrokerStorage | None = None,
        adjust_pulsar: Callable[[PulsarSettings], PulsarSettings] = lambda settings: settings,
        adjust_kafka: Callable[[KafkaSettings], KafkaSettings] = lambda settings: settings,
        adjust_amqp: Callable[[AmqpSettings], AmqpSettings] = lambda settings: settings,
        adjust_rocketmq: Callable[[RocketmqSettings], RocketmqSettings] = lambda settings: settings,
        request_budget: RequestBudget | None = None,
        holding: HoldingSettings | None = None,
    ) -> None:
        """`on_locked` is called once this process has locked the data folder; `accept_loss`: accept the loss of
        acknowledged data that the disk lacks; `storage`: used instead of that folder; `adjust_*`: change listener
        settings beyond the configuration; `request_budget`: the memory of all requests; `holding`: settings of
        delayed messages."""
        self._net = BoundNetwork(runtime.net)
        self._runtime = replace(runtime, net=self._net)
        self._config = config
        steady = replace(self._runtime, clock=unmoved(runtime.clock))  # for lease renewal
        folder = part_settings.storage_settings(config, accept_loss=accept_loss)
        self._storage = storage or LocalStorage(steady, folder, on_locked=on_locked)
        super().__init__()
        #: A random id of this start; see `weir.cli.remote`.
        self.instance = os.environ.get(INSTANCE) or new_instance(runtime.rng)
        self._bound: dict[str, Address] = {}
        self._http2_tls: SSLContext | None = None
        #: For the listener that serves TLS and plaintext on one port.
        self._shared_tls: SSLContext | None = None
        folder_of_own = None if storage is not None else Path(os.path.abspath(config.data)) / "tls"
        self._own_certificate = OwnCertificate(folder_of_own)
        self._peers: PeerLinks | None = None
        self._storage_admin: StorageAdministration | None = None
        self._holding = holding or HoldingSettings()
        self._adjust_pulsar = adjust_pulsar
        self._adjust_kafka = adjust_kafka
        self._adjust_amqp = adjust_amqp
        self._adjust_rocketmq = adjust_rocketmq
        #: The broker with its parts, set by `start`.
        self.composed: ComposedBroker
        #: The started gateway servers, by listener name.
        self.pulsar_servers: dict[str, PulsarServer] = {}
        self.kafka_servers: dict[str, KafkaServer] = {}
        self.amqp_servers: dict[str, AmqpServer] = {}
        self.rocketmq_servers: dict[str, RocketmqServer] = {}
        self._metrics = GatewayMetrics.empty()
        self._started_ms = runtime.clock.wall_ms()
        self._request_budget = request_budget or RequestBudget(config.limits.received_bytes)
        self._unread_budget = unread_budget_of(adjust_kafka(KafkaSettings()))

    @property
    def addresses(self) -> dict[str, Address]:
        """The address of each listener, by its name in the configuration."""
        return dict(self._bound)

    async def failed(self) -> None:
        """Wait until the disk has failed for good; then close this node and start a new one."""
        await self._storage.failed()

    async def _start(self) -> None:
        config = self._config
        tls = part_settings.tls_context(config)
        self._http2_tls = part_settings.http2_tls_context(config)
        if config.listeners.rocketmq is not None:
            self._shared_tls = (
                part_settings.shared_http2_tls_context(config) or await self._own_certificate.context()
            )
        tokens = await _verifier(self._runtime.disk, part_settings.token_settings(config))
        self._started.callback(self._net.release)
        credentials = await load_credentials(self._runtime.disk, part_settings.cluster_credentials(config))
        if config.listeners.peer is not None:
            self._peers = PeerLinks(check_known(credentials))
        await self._bind(tls)
        log_open(config, self._bound)
        await self._storage.start()
        self._started.push_async_callback(self._storage.close)
        if self._own_certificate.used:
            await self._own_certificate.keep(self._storage.meta)
        self._access_secret = await shared_secret(self._storage.meta, self._runtime, keys.ACCESS_KEYS)
        how = replace(
            self._composition(tokens), tracing=self._start_telemetry(), access_secret=self._access_secret
        )
        self.composed = await compose_broker(
            self._runtime, self._storage.meta, self._storage.ledgers, how, self._started
        )
        self._storage_admin = StorageAdministration(self._runtime, self._storage.meta, self._storage.ledgers)
        self._started.push_async_callback(self._storage_admin.close)
        context = self._admin()
        console = await self._console(context)
        routes = [
            *admin_routes(context),
            *management_routes(context),
            *ConnectionRoutes(context.authoriser, self._listed_connections).routes(),
            *ClientCommandRoutes(context.authoriser, self.composed.client_commands).routes(),
            *AccessKeyRoutes(context.authoriser, partial(access_key_secret, self._access_secret)).routes(),
            *([] if console is None else console.api()),
        ]
        self.composed.peer_handlers.on(AdminCall, AdminPeerHandler(routes).perform)
        await self._serve_peers()
        await self._serve_pulsar(tls)
        await self._serve_kafka(tls)
        await self._serve_amqp(tls)
        await self._serve_rocketmq()
        await self._serve_http(tls, routes, console)

    async def _console(self, context: AdminContext) -> ConsoleService | None:
        if not self._config.console.enabled or not {"http", "https"} & self._bound.keys():
            return None
        parts_of_it = ConsoleParts(
            await session_key(self._storage.meta, self._runtime),
            disk_of(self._urls().data, self._config.storage.low_water_bytes),
            await token_maker(self._runtime, part_settings.token_settings(self._config)),
            self._connections,
        )
        service = ConsoleService(context, parts_of_it)
        service.start(self._started)
        return service

    def _listed_connections(self) -> list[ConnectionBody]:
        name = part_settings.broker_name(self._config)
        return [
            *(
                ConnectionBody(name, "Pulsar", one.peer, one.role, one.client_version)
                for server in self.pulsar_servers.values()
                for one in server.sessions
            ),
            *(
                ConnectionBody(name, "Kafka", one.peer, one.role, one.client_id)
                for server in self.kafka_servers.values()
                for one in server.sessions
            ),
            *(
                ConnectionBody(name, "AMQP", one.peer, one.role, one.user)
                for server in self.amqp_servers.values()
                for one in server.sessions
            ),
            *(
                ConnectionBody(name, "RocketMQ", one.peer, one.role, one.client_id)
                for server in self.rocketmq_servers.values()
                for one in server.sessions
            ),
        ]

    def _connections(self) -> list[tuple[str, int]]:
        """The number of connections per protocol."""
        gateways = (
            ("Pulsar", self.pulsar_servers),
            ("Kafka", self.kafka_servers),
            ("AMQP", self.amqp_servers),
            ("RocketMQ", self.rocketmq_servers),
        )
        return [(name, sum(len(one.sessions) for one in servers.values())) for name, servers in gateways]

    def _start_telemetry(self) -> Tracing | None:
        settings = self._config.telemetry
        if not settings.endpoint:
            return None
        telemetry = Telemetry(settings, self._runtime.clock, node=part_settings.broker_name(self._config))
        self._started.push_async_callback(asyncio.to_thread, telemetry.close)
        return telemetry.tracing

    def _composition(self, tokens: TokenVerifier | None) -> Composition:
        config = self._config
        OPENED.follow(config.limits.message_bytes)
        return Composition(
            part_settings.broker_name(self._config),
            self._listeners(),
            part_settings.default_policies(config),
            part_settings.security_settings(config),
            tokens,
            streams=part_settings.stream_settings(config),
            broker=part_settings.broker_settings(config),
            groups=part_settings.group_settings(config),
            holding=self._holding,
            tail_bytes=config.storage.cache_bytes,
            rack=config.cluster.rack,
            peers=self._peers,
            balance=part_settings.balance_settings(config),
            topics=part_settings.topic_limits(config),
            default_lake=self._default_lake(),
            reached=stop_at(os.environ.get(_TIERED_STOP_AT)),
        )

    def _default_lake(self) -> LakeCatalog | None:
        """A catalog beside the data of a standalone broker; several brokers share no folder."""
        if self._peers is not None:
            return None
        return local_catalog(os.path.abspath(self._config.data))

    async def _bind(self, tls: SSLContext | None) -> None:
        listeners = self._config.listeners
        for name, address in (
            ("pulsar", listeners.pulsar),
            ("pulsar_tls", listeners.pulsar_tls),
            ("kafka", listeners.kafka),
            ("kafka_tls", listeners.kafka_tls),
            ("amqp", listeners.amqp),
            ("amqps", listeners.amqps),
            ("rocketmq", listeners.rocketmq),
            ("rocketmq_tls", listeners.rocketmq_tls),
            ("http", listeners.http),
            ("https", listeners.https),
            (PEER, listeners.peer),
        ):
            if address is not None:
                tls_of = self._tls_of(name, tls)
                reserve = name in ("http", "https")  # health checks must work even without free file descriptors
                with naming_setting(name):
                    self._bound[name] = await self._net.bind(
                        address, tls=tls_of, reserve=reserve, clear_too=name == "rocketmq"
                    )

    def _tls_of(self, name: str, tls: SSLContext | None) -> SSLContext | None:
        if name == PEER:
            return self._peers.credentials.server_tls if self._peers is not None else None
        if name == "rocketmq_tls":
            return self._http2_tls
        if name == "rocketmq":
            return self._shared_tls
        return tls if _secure(name) else None

    def _urls(self) -> ServiceUrls:
        return ServiceUrls(self._listeners(), data=os.path.abspath(self._config.data))

    def _listeners(self) -> dict[str, str]:
        """The URL of every listener."""
        return {
            name: _SCHEMES.get(name, "") + str(part_settings.reachable(self._config, bound))
            for name, bound in self._bound.items()
        }

    def _served_port(self, name: str) -> ServedPort:
        return ServedPort(name, self._listeners())

    def storage_warning(self) -> str:
        """Why writes fail, or soon will; empty if storage is healthy."""
        try:
            self._storage.check_writable()
        except WeirError as refused:
            return f"no messages are taken: {refused}"
        space = self._storage.space
        return "" if space is None else space.warning()

    async def _probe(self) -> None:
        """Check that the metadata answers and storage accepts writes; the broker needs both."""
        await self._storage.meta.get(keys.cluster(STANDALONE))
        self._storage.check_writable()

    async def _serve_peers(self) -> None:
        bound = self._bound.get(PEER)
        if bound is not None:
            settings = part_settings.peer_settings(self._config, bound)
            await self.composed.serve_peers(settings, request_budget=self._request_budget)

    async def _serve_pulsar(self, tls: SSLContext | None) -> None:
        for name in ("pulsar", "pulsar_tls"):
            bound = self._bound.get(name)
            if bound is None:
                continue
            secure = _secure(name)
            self.pulsar_servers[name] = await self.composed.serve_pulsar(
                self._adjust_pulsar(
                    replace(
                        part_settings.pulsar_settings(self._config, bound, secure=secure),
                        served=self._served_port(name),
                    )
                ),
                metrics=self._metrics.pulsar,
                tls=tls if secure else None,
                request_budget=self._request_budget,
            )

    async def _serve_kafka(self, tls: SSLContext | None) -> None:
        urls = self._urls()
        cluster_id = await stored_cluster_id(self._storage.meta, self._runtime)
        for name in ("kafka", "kafka_tls"):
            bound = self._bound.get(name)
            if bound is None:
                continue
            secure = _secure(name)
            http_url = urls.url("https", "http") if secure else urls.url("http", "https")
            settings = replace(
                part_settings.kafka_settings(self._config, bound, name),
                http_url=http_url,
                cluster_id=cluster_id,
                served=self._served_port(name),
            )
            self.kafka_servers[name] = await self.composed.serve_kafka(
                self._adjust_kafka(settings),
                metrics=self._metrics.kafka,
                tls=tls if secure else None,
                request_budget=self._request_budget,
                unread_budget=self._unread_budget,
            )

    async def _serve_amqp(self, tls: SSLContext | None) -> None:
        for name in ("amqp", "amqps"):
            bound = self._bound.get(name)
            if bound is None:
                continue
            self.amqp_servers[name] = await self.composed.serve_amqp(
                self._adjust_amqp(
                    replace(part_settings.amqp_settings(self._config, bound), served=self._served_port(name))
                ),
                metrics=self._metrics.amqp,
                tls=tls if _secure(name) else None,
                request_budget=self._request_budget,
            )

    async def _serve_rocketmq(self) -> None:
        for name in ("rocketmq", "rocketmq_tls"):
            bound = self._bound.get(name)
            if bound is None:
                continue
            self.rocketmq_servers[name] = await self.composed.serve_rocketmq(
                self._adjust_rocketmq(
                    replace(
                        part_settings.rocketmq_settings(self._config, bound, name), served=self._served_port(name)
                    )
                ),
                metrics=self._metrics.rocketmq,
                tls=self._http2_tls if _secure(name) else self._shared_tls,
                request_budget=self._request_budget,
            )

    def _admin(self) -> AdminContext:
        composed = self.composed
        return AdminContext(
            self._runtime.clock,
            composed.broker,
            composed.registry,
            composed.schemas,
            composed.authoriser,
            self._urls(),
            probe=self._probe,
            gateways=lambda: [
                *process_families(self._runtime.resources, self._started_ms / 1000),
                *open_families(self._config, self._bound),
                *loop_families(self._runtime.loop_holds),
                *budget_families(
                    self._request_budget, self._unread_budget, composed.context.queue_budget, self._net
                ),
                *damage_families(self._storage.damages, self._storage.ledgers.context.losses.entries),
                *space_families(self._storage.space, writable=self._is_writable()),
                *gateway_families(self._metrics, composed.context.consumer_limit),
                *amqp_families(self._metrics.amqp),
                *rocketmq_families(self._metrics.rocketmq),
                *peer_families(composed.peer_metrics),
                *cluster_families(
                    len(composed.broker.brokers()),
                    composed.broker.bundles.all(),
                    part_settings.broker_name(self._config),
                    draining=composed.broker.bundles.draining,
                ),
                *balance_families(composed.balance),
            ],
            transactions=composed.transaction_access,
            groups=composed.group_access,
            sql_streams=SqlStreams(self._storage.meta, self._runtime),
            connectors=Connectors(self._storage.meta, self._runtime),
            functions=Functions(self._storage.meta, self._runtime),
            settings=AdminSettings(function_deployers=self._config.functions.deployers),
            replays=Replays(self._storage.meta, self._runtime),
            broker_id=part_settings.broker_name(self._config),
            instance=self.instance,
            ask_peer=composed.peers.ask,
            storage=self._storage_admin,
            load_of=self._load_of,
            balance=composed.balance,
            exchanges=composed.exchanges,
            queues=composed.queues,
            connections=composed.connections,
        )

    def _is_writable(self) -> bool:
        try:
            self._storage.check_writable()
        except WeirError:
            return False
        return True

    async def _load_of(self, broker_id: str) -> BrokerLoad | None:
        try:
            return await self.composed.peers.ask(broker_id, ReportLoad())
        except WeirError as silent:
            log.debug("broker %s did not report its load: %s", broker_id, silent)
            return None

    async def _serve_http(
        self, tls: SSLContext | None, routes: list[Route], console: ConsoleService | None
    ) -> None:
        authenticate = _authenticate(self.composed.broker)
        for name in ("http", "https"):
            bound = self._bound.get(name)
            if bound is None:
                continue
            secure = _secure(name)
            server = AdminServer(
                self._runtime,
                replace(part_settings.http_settings(self._config, bound), served=self._served_port(name)),
                routes,
                authenticate,
                tls=tls if secure else None,
                request_budget=self._request_budget,
                pages=[] if console is None else console.pages(routes, authenticate, tls=secure),
            )
            await server.start()
            self._started.push_async_callback(server.close)


def new_instance(rng: Random) -> str:
    """An id that is unique to this start of a server."""
    return rng.randbytes(16).hex()


def _authenticate(broker: Broker) -> Authenticate:
    """The role of a request, from its bearer token, its name and password, or its certificate. Credentials of an
    unsupported kind are an error, never anonymous access."""

    async def authenticate(request: Request) -> str:
        scheme, _, said = request.headers.get("authorization", "").partition(" ")
        method = {"bearer": "token", "basic": "password", "": "none"}.get(scheme.lower(), f"HTTP {scheme}")
        credentials = said.strip().encode()
        if method == "password":
            credentials = _name_and_password(credentials)
        found = await broker.authenticate(method, credentials, certificate=request.certificate)
        return found.role

    return authenticate


def _name_and_password(basic: bytes) -> bytes:
    """The credentials of HTTP basic authentication, as `Broker.authenticate` expects them."""
    try:
        name, _, password = base64.b64decode(basic, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        raise NotAuthenticatedError("the name and password cannot be decoded") from None
    return name + b"\0" + password


async def _verifier(disk: Disk, settings: TokenSettings) -> TokenVerifier | None:
    named, source = ("auth.token_secret", settings.secret)
    if not source:
        named, source = ("auth.token_public_key", settings.public_key)
    if not source:
        return None
    try:
        key = await read_key(source, disk)
        if not settings.secret:
            return TokenVerifier(load_public_key(key), settings.rules)
        secret = load_secret(key)
        verifier = TokenVerifier(secret, settings.rules)
    except ConfigError as wrong:
        raise ConfigError(f"{named}: {wrong.what}", hint=wrong.hint) from None
    if secret.changed:
        log.warning(
            "auth.token_secret: earlier releases used the text of this secret as the key; this one decodes it as"
            " docs/how-to/security.md describes. This broker accepts tokens of both keys, but brokers of earlier"
            " releases"
            " reject new ones. To end the old use, create a secret with `weir token secret`, and new tokens."
        )
    return verifier


def _secure(name: str) -> bool:
    return name in ("pulsar_tls", "kafka_tls", "amqps", "rocketmq_tls", "https")
