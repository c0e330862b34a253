"""The server of one Pulsar listener, and substitutes for optional services: schemas and topic lists."""

import logging
from ssl import SSLContext

from weir.broker.api.broker import Broker, TopicLists, TopicListWatch
from weir.broker.api.schemas import SchemaData, Schemas
from weir.gateway.pulsar.command_table import load_handlers
from weir.gateway.pulsar.session import Services, Session
from weir.gateway.pulsar.settings import PulsarMetrics, PulsarSettings
from weir.model.errors import NotAllowedError, TopicClosedError
from weir.model.topics import Domain, NamespaceName, TopicName
from weir.runtime.budgets import ByteBudget, RequestBudget
from weir.runtime.interfaces import Connection, Runtime
from weir.runtime.server import Server, ServingSettings


class NoSchemas:
    """Substitute for a broker without a schema registry."""

    async def get(self, topic: TopicName, version: bytes | None, *, role: str) -> tuple[SchemaData, bytes] | None:
        return None

    async def add(self, topic: TopicName, schema: SchemaData | None, *, role: str) -> bytes:
        raise NotAllowedError("this broker has no schema registry")


class NoTopicLists:
    """Substitute for a broker without topic list watches."""

    async def watch_topics(
        self,
        namespace: NamespaceName,
        *,
        role: str,
        pattern: str | None = None,
        domain: Domain | None = None,
        known_hash: str = "",
    ) -> TopicListWatch:
        raise NotAllowedError("this broker does not support topic list watchers")


log = logging.getLogger(__name__)


class PulsarServer:
    """Serves one broker on one address. Call `start`, then `close`; the caller owns the broker."""

    def __init__(
        self,
        runtime: Runtime,
        broker: Broker,
        settings: PulsarSettings,
        *,
        schemas: Schemas | None = None,
        lists: TopicLists | None = None,
        tls: SSLContext | None = None,
        request_budget: RequestBudget | None = None,
        metrics: PulsarMetrics | None = None,
    ) -> None:
        """`request_budget`: bytes of requests, shared by all listeners; None: a budget from the settings."""
        load_handlers()
        self._clock = runtime.clock
        most = settings.max_delivery_bytes_in_all
        # Waiters resume only when half of the budget is free, to avoid frequent wakeups.
        deliveries = ByteBudget(most, resume_bytes=most // 2, equal_parts=False)
        request_budget = (
            request_budget if request_budget is not None else RequestBudget(settings.max_received_bytes)
        )
        self._services = Services(
            broker,
            schemas or NoSchemas(),
            lists or NoTopicLists(),
            deliveries,
            request_budget,
            metrics or PulsarMetrics(),
        )
        self._settings = settings
        self._tls = tls
        serving = ServingSettings(
            settings.host,
            settings.port,
            settings.max_connections,
            settings.sweep_interval_s,
            settings.close_grace_s,
        )
        self._server: Server[Session] = Server(runtime, "pulsar", serving, self._session, tls=tls)

    @property
    def host(self) -> str:
        return self._server.host

    @property
    def port(self) -> int:
        """The bound port; differs from the settings' if that was 0."""
        return self._server.port

    @property
    def service_url(self) -> str:
        """The URL that clients use."""
        scheme = "pulsar" if self._tls is None else "pulsar+ssl"
        return self._settings.advertise or f"{scheme}://{self.host}:{self.port}"

    @property
    def sessions(self) -> list[Session]:
        return self._server.sessions

    @property
    def connections(self) -> int:
        return len(self._server.sessions)

    async def start(self) -> None:
        """Bind, or raise AddressInUseError; then accept in the background."""
        await self._server.start()
        log.info("Pulsar clients are served on %s", self.service_url)

    async def close(self) -> None:
        """Stop accepting, store accepted sends within the grace time, and close every connection."""
        await self._server.close(TopicClosedError("the broker shuts down"))

    def _session(self, connection: Connection) -> Session:
        return Session(
            self._services,
            connection,
            clock=self._clock,
            limits=self._settings.limits,
            service_url=self.service_url,
            served=self._settings.served,
        )
