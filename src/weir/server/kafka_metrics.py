"""What the Kafka gateway counts, as families of the metrics page."""

from weir.admin.metrics import GatewayFamily
from weir.gateway.kafka.connection.metrics import KafkaMetrics
from weir.wire.kafka.apis import API, ApiKey

_GATEWAY = {"protocol": "kafka"}


def kafka_families(metrics: KafkaMetrics) -> list[GatewayFamily]:
    requests = [
        (_GATEWAY | {"api": API[ApiKey(key)].name}, count) for key, count in sorted(metrics.requests.items())
    ]
    return [
        GatewayFamily("weir_gateway_connections", "gauge", "Open connections.", [(_GATEWAY, metrics.connections)]),
        GatewayFamily(
            "weir_gateway_refused_total",
            "counter",
            "Connections that were ended for what they sent.",
            [(_GATEWAY, metrics.refused)],
        ),
        GatewayFamily("weir_gateway_requests_total", "counter", "Requests, by the label `api`.", requests),
        GatewayFamily(
            "weir_gateway_received_bytes_total", "counter", "Bytes received.", [(_GATEWAY, metrics.bytes_in)]
        ),
        GatewayFamily("weir_gateway_sent_bytes_total", "counter", "Bytes sent.", [(_GATEWAY, metrics.bytes_out)]),
    ]
