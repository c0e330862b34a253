"""The Pulsar gateway on the network."""

import logging
from ssl import SSLContext

from weir.broker.api import Broker, Schemas, TopicLists
from weir.gateway.pulsar.metrics import PulsarMetrics
from weir.gateway.pulsar.ports import NoSchemas, NoTopicLists
from weir.gateway.pulsar.registry import load_handlers
from weir.gateway.pulsar.session import Services, Session
from weir.gateway.pulsar.settings import PulsarSettings
from weir.model.errors import TopicClosedError
from weir.runtime.byte_budget import ByteBudget
from weir.runtime.interfaces import Connection, Runtime
from weir.runtime.request_budget import RequestBudget
from weir.runtime.serving import Server, ServingSettings

log = logging.getLogger(__name__)


class PulsarServer:
    """Serves one broker on one address. `start`, then `close`; the broker belongs to whoever made it."""

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
        """`request_budget`: what all listeners together may receive; None: as the settings say, for this one."""
        load_handlers()
        self._clock = runtime.clock
        most = settings.max_delivery_bytes_in_all
        # Half is free before anyone is told, so that they are not told again and again.
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
        """How clients reach it."""
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
        """Accept nothing more, store what was accepted within the grace time, and end every connection."""
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
