"""The AMQP listener, and the metric families that only the AMQP gateway has."""

import logging
from ssl import SSLContext

from weir.admin.metrics import GatewayFamily
from weir.gateway.amqp.context import Services
from weir.gateway.amqp.method_table import load_handlers
from weir.gateway.amqp.session import Session
from weir.gateway.amqp.settings import AmqpMetrics, AmqpSettings
from weir.model.errors import TopicClosedError
from weir.runtime.budgets import ByteBudget, RequestBudget
from weir.runtime.interfaces import Connection
from weir.runtime.server import Server, ServingSettings

log = logging.getLogger(__name__)


class AmqpServer:
    """Serves AMQP for one broker on one address. The caller owns `services` and closes them."""

    def __init__(
        self,
        services: Services,
        settings: AmqpSettings,
        *,
        tls: SSLContext | None = None,
        request_budget: RequestBudget | None = None,
    ) -> None:
        """`request_budget`: receive budget of all listeners; None: one for this listener, from the settings."""
        load_handlers()
        self.services = services
        self._settings = settings
        self._tls = tls
        most = settings.max_delivery_bytes_in_all
        # Consumers resume only when half of the budget is free, so that they do not stop and resume repeatedly.
        self._delivery_budget = ByteBudget(most, resume_bytes=most // 2, equal_parts=False)
        if request_budget is None:
            request_budget = RequestBudget(settings.max_received_bytes)
        self._request_budget = request_budget
        serving = ServingSettings(
            settings.host,
            settings.port,
            settings.max_connections,
            settings.sweep_interval_s,
            settings.close_grace_s,
        )
        self._server: Server[Session] = Server(services.runtime, "amqp", serving, self._session, tls=tls)

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
        log.info("AMQP clients are served on %s:%d", self.host, self.port)

    async def close(self) -> None:
        """Stop accepting, store accepted messages within the grace time, and close every connection."""
        await self._server.close(TopicClosedError("shutdown"))

    def _session(self, connection: Connection) -> Session:
        return Session(
            self.services,
            connection,
            limits=self._settings.limits,
            cluster_name=self._settings.cluster_name,
            served=self._settings.served,
            address=(self.host, self.port),
            secure=self._tls is not None,
            delivery_budget=self._delivery_budget,
            request_budget=self._request_budget,
        )


def amqp_families(metrics: AmqpMetrics) -> list[GatewayFamily]:
    return [
        GatewayFamily("weir_amqp_channels", "gauge", "Open channels.", [({}, metrics.channels)]),
        GatewayFamily("weir_amqp_consumers", "gauge", "Consumers of queues.", [({}, metrics.consumers)]),
        GatewayFamily(
            "weir_amqp_published_total",
            "counter",
            "Messages published to queues, counted once per queue.",
            [({}, metrics.published)],
        ),
        GatewayFamily("weir_amqp_delivered_total", "counter", "Messages delivered.", [({}, metrics.delivered)]),
        GatewayFamily(
            "weir_amqp_returned_total",
            "counter",
            "Mandatory messages without a queue.",
            [({}, metrics.returned)],
        ),
        GatewayFamily(
            "weir_amqp_nacked_total",
            "counter",
            "Messages that the broker nacked because it did not store them.",
            [({}, metrics.nacked)],
        ),
        GatewayFamily(
            "weir_amqp_blocked_total",
            "counter",
            "Times that the broker blocked a publisher (connection.blocked).",
            [({}, metrics.blocked)],
        ),
    ]
