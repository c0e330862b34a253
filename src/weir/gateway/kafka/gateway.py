"""The server of one Kafka listener."""

import logging
from ssl import SSLContext

from weir.gateway.kafka.api_table import load_handlers
from weir.gateway.kafka.context import Services
from weir.gateway.kafka.fetch.fetch_sessions import FetchSessions
from weir.gateway.kafka.metadata import Nodes
from weir.gateway.kafka.session import Session
from weir.gateway.kafka.settings import KafkaMetrics, KafkaSettings
from weir.model.errors import TopicClosedError
from weir.runtime.budgets import ByteBudget, RequestBudget
from weir.runtime.interfaces import Connection, Runtime
from weir.runtime.server import Server, ServingSettings

log = logging.getLogger(__name__)


def unread_budget_of(settings: KafkaSettings) -> ByteBudget:
    """The budget of bytes that clients have not read; a fetch that waits for capacity holds none of it."""
    return ByteBudget(settings.max_unread_bytes, max_waiting=settings.max_connections)


class KafkaServer:
    """Serves one broker on one address. Call `start`, then `close`; the caller owns the services."""

    def __init__(
        self,
        runtime: Runtime,
        services: Services,
        *,
        metrics: KafkaMetrics | None = None,
        tls: SSLContext | None = None,
        request_budget: RequestBudget | None = None,
        unread_budget: ByteBudget | None = None,
    ) -> None:
        """`request_budget`, `unread_budget`: bytes of requests and of unread responses, shared by all listeners;
        None: a separate budget from the settings."""
        load_handlers()
        settings = services.settings
        self.services = services
        self._settings = settings
        self.metrics = metrics if metrics is not None else KafkaMetrics()
        self._fetch_sessions = FetchSessions(
            runtime,
            max_sessions=settings.max_fetch_sessions,
            max_partitions=settings.max_fetch_session_partitions,
        )
        self.unread_budget = unread_budget if unread_budget is not None else unread_budget_of(settings)
        if request_budget is None:
            request_budget = RequestBudget(settings.max_received_bytes, settings.receive_patience_s)
        self._request_budget = request_budget
        serving = ServingSettings(
            settings.host,
            settings.port,
            settings.max_connections,
            settings.sweep_interval_s,
            settings.close_grace_s,
        )
        self._nodes = Nodes(
            services.broker,
            node_id=settings.node_id,
            listener=settings.listener,
            advertised=lambda: self.advertised,
            balance=services.balance,
        )
        self._server: Server[Session] = Server(runtime, "kafka", serving, self._session, tls=tls)

    @property
    def host(self) -> str:
        return self._server.host

    @property
    def port(self) -> int:
        """The bound port; differs from the settings' if that was 0."""
        return self._server.port

    @property
    def advertised(self) -> tuple[str, int]:
        """The address that Metadata returns for this broker."""
        return self._settings.advertised_host or self.host, self._settings.advertised_port or self.port

    @property
    def sessions(self) -> list[Session]:
        return self._server.sessions

    async def start(self) -> None:
        """Bind, or raise AddressInUseError; then accept in the background."""
        await self._server.start()
        log.info("Kafka clients are served on %s:%d", *self.advertised)

    async def close(self) -> None:
        """Stop accepting, store accepted requests within the grace time, and close every connection."""
        await self._server.close(TopicClosedError("the broker shuts down"))

    def _session(self, connection: Connection) -> Session:
        return Session(
            self.services,
            connection,
            advertised=self.advertised,
            nodes=self._nodes,
            metrics=self.metrics,
            fetch_sessions=self._fetch_sessions,
            unread_budget=self.unread_budget,
            request_budget=self._request_budget,
        )
