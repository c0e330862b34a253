"""What the RocketMQ gateway alone counts, as families of the metrics page."""

from weir.admin.metrics import GatewayFamily
from weir.gateway.rocketmq.metrics import RocketmqMetrics


def rocketmq_families(metrics: RocketmqMetrics) -> list[GatewayFamily]:
    return [
        GatewayFamily("weir_rocketmq_sent_total", "counter", "Messages stored for clients.", [({}, metrics.sent)]),
        GatewayFamily(
            "weir_rocketmq_handed_on_total", "counter", "Calls made at another broker.", [({}, metrics.handed_on)]
        ),
        GatewayFamily(
            "weir_rocketmq_received_total", "counter", "Messages sent to consumers.", [({}, metrics.received)]
        ),
    ]
