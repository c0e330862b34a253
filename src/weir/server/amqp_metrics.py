"""What the AMQP gateway counts, as families of the metrics page."""

from weir.admin.metrics import GatewayFamily
from weir.gateway.amqp.metrics import AmqpMetrics

_GATEWAY = {"protocol": "amqp"}


def amqp_families(metrics: AmqpMetrics) -> list[GatewayFamily]:
    return [
        GatewayFamily("weir_amqp_connections", "gauge", "Open connections.", [(_GATEWAY, metrics.connections)]),
        GatewayFamily(
            "weir_amqp_refused_total",
            "counter",
            "Connections that were ended for what they sent.",
            [(_GATEWAY, metrics.refused)],
        ),
        GatewayFamily(
            "weir_amqp_received_bytes_total", "counter", "Bytes received.", [(_GATEWAY, metrics.bytes_in)]
        ),
        GatewayFamily("weir_amqp_channels", "gauge", "Open channels.", [(_GATEWAY, metrics.channels)]),
        GatewayFamily("weir_amqp_consumers", "gauge", "Consumers of queues.", [(_GATEWAY, metrics.consumers)]),
        GatewayFamily(
            "weir_amqp_published_total",
            "counter",
            "Messages handed to queues, once for each queue.",
            [(_GATEWAY, metrics.published)],
        ),
        GatewayFamily(
            "weir_amqp_delivered_total", "counter", "Messages delivered.", [(_GATEWAY, metrics.delivered)]
        ),
        GatewayFamily(
            "weir_amqp_returned_total",
            "counter",
            "Mandatory messages without a queue.",
            [(_GATEWAY, metrics.returned)],
        ),
        GatewayFamily(
            "weir_amqp_nacked_total",
            "counter",
            "Messages that were to be confirmed and were not stored.",
            [(_GATEWAY, metrics.nacked)],
        ),
        GatewayFamily(
            "weir_amqp_blocked_total",
            "counter",
            "Times that a publisher was told to wait.",
            [(_GATEWAY, metrics.blocked)],
        ),
    ]
