"""What the AMQP gateway alone counts, as families of the metrics page."""

from weir.admin.metrics import GatewayFamily
from weir.gateway.amqp.metrics import AmqpMetrics


def amqp_families(metrics: AmqpMetrics) -> list[GatewayFamily]:
    return [
        GatewayFamily("weir_amqp_channels", "gauge", "Open channels.", [({}, metrics.channels)]),
        GatewayFamily("weir_amqp_consumers", "gauge", "Consumers of queues.", [({}, metrics.consumers)]),
        GatewayFamily(
            "weir_amqp_published_total",
            "counter",
            "Messages handed to queues, once for each queue.",
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
            "Messages that were to be confirmed and were not stored.",
            [({}, metrics.nacked)],
        ),
        GatewayFamily(
            "weir_amqp_blocked_total",
            "counter",
            "Times that a publisher was told to wait.",
            [({}, metrics.blocked)],
        ),
    ]
