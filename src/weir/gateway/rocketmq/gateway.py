"""The RocketMQ listener, and the metric families that only the RocketMQ gateway has."""

import logging
from ssl import SSLContext

from weir.admin.metrics import GatewayFamily
from weir.gateway.rocketmq.call import load_handlers
from weir.gateway.rocketmq.context import Services
from weir.gateway.rocketmq.session import Session
from weir.gateway.rocketmq.settings import RocketmqMetrics, RocketmqSettings
from weir.model.errors import TopicClosedError
from weir.runtime.budgets import ByteBudget, RequestBudget
from weir.runtime.interfaces import Connection
from weir.runtime.server import Server, ServingSettings

log = logging.getLogger(__name__)


class RocketmqServer:
    """Serves RocketMQ clients of one broker on one address. The caller owns `services` and closes them."""

    def __init__(
        self,
        services: Services,
        settings: RocketmqSettings,
        *,
        tls: SSLContext | None = None,
        request_budget: RequestBudget | None = None,
    ) -> None:
        """`request_budget`: receive budget of all listeners; None: one for this listener, from the settings."""
        load_handlers()
        self.services = services
        self._settings = settings
        most = settings.max_delivery_bytes_in_all
        self._delivery_budget = ByteBudget(most, resume_bytes=most // 2, equal_parts=False)
        self._request_budget = request_budget or RequestBudget(settings.max_received_bytes)
        serving = ServingSettings(
            settings.host,
            settings.port,
            settings.max_connections,
            settings.sweep_interval_s,
            settings.close_grace_s,
        )
        self._server: Server[Session] = Server(services.runtime, "rocketmq", serving, self._session, tls=tls)

    @property
    def host(self) -> str:
        return self._server.host

    @property
    def port(self) -> int:
        """The bound port; differs from the settings' if that was 0."""
        return self._server.port

    @property
    def sessions(self) -> list[Session]:
        return self._server.sessions

    async def start(self) -> None:
        """Bind, or raise AddressInUseError; then accept in the background."""
        await self._server.start()
        log.info("RocketMQ clients are served on %s:%d", self.host, self.port)

    async def close(self) -> None:
        """Stop accepting, store accepted messages within the grace time, and close every connection."""
        await self._server.close(TopicClosedError("shutdown"))

    def _session(self, connection: Connection) -> Session:
        settings = self._settings
        return Session(
            self.services,
            connection,
            settings=settings,
            advertised=(settings.advertised_host or self.host, settings.advertised_port or self.port),
            delivery_budget=self._delivery_budget,
            request_budget=self._request_budget,
        )


def rocketmq_families(metrics: RocketmqMetrics) -> list[GatewayFamily]:
    return [
        GatewayFamily(
            "weir_rocketmq_sent_total",
            "counter",
            "Messages stored for clients of this broker, on this or another broker.",
            [({}, metrics.sent)],
        ),
        GatewayFamily(
            "weir_rocketmq_received_total",
            "counter",
            "Messages delivered to clients of this broker, from this or another broker.",
            [({}, metrics.received)],
        ),
        GatewayFamily(
            "weir_rocketmq_handed_on_total",
            "counter",
            "Calls of clients of this broker that it forwarded to another broker.",
            [({}, metrics.handed_on)],
        ),
    ]
