"""What the RocketMQ gateway alone counts, as families of the metrics page."""

from weir.admin.metrics import GatewayFamily
from weir.gateway.rocketmq.metrics import RocketmqMetrics


def rocketmq_families(metrics: RocketmqMetrics) -> list[GatewayFamily]:
    return [
        GatewayFamily(
            "weir_rocketmq_sent_total",
            "counter",
            "Messages stored for the clients of this broker, here or at another.",
            [({}, metrics.sent)],
        ),
        GatewayFamily(
            "weir_rocketmq_received_total",
            "counter",
            "Messages sent to the clients of this broker, from here or from another.",
            [({}, metrics.received)],
        ),
        GatewayFamily(
            "weir_rocketmq_handed_on_total",
            "counter",
            "Calls of the clients of this broker that were made at another.",
            [({}, metrics.handed_on)],
        ),
    ]
