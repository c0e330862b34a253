"""What every gateway counts, as families of the metrics page: one for all of them, with the label `protocol`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from weir.admin.metrics import GatewayFamily
from weir.broker.api.consumers import ConsumerLimit
from weir.gateway.amqp.settings import AmqpMetrics
from weir.gateway.kafka.settings import KafkaMetrics
from weir.gateway.pulsar.settings import PulsarMetrics
from weir.gateway.rocketmq.settings import RocketmqMetrics
from weir.wire.kafka.api_table import API, ApiKey
from weir.wire.pulsar.commands import COMMANDS


class _Counts(Protocol):
    connections: int
    refused: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class GatewayMetrics:
    """The counts of one node's gateways."""

    pulsar: PulsarMetrics
    kafka: KafkaMetrics
    amqp: AmqpMetrics
    rocketmq: RocketmqMetrics

    @classmethod
    def empty(cls) -> "GatewayMetrics":
        return cls(PulsarMetrics(), KafkaMetrics(), AmqpMetrics(), RocketmqMetrics())


def gateway_families(metrics: GatewayMetrics, limit: ConsumerLimit) -> list[GatewayFamily]:
    counts: dict[str, _Counts] = {
        "pulsar": metrics.pulsar,
        "kafka": metrics.kafka,
        "amqp": metrics.amqp,
        "rocketmq": metrics.rocketmq,
    }
    requests = [
        ({"protocol": protocol, "api": api}, count)
        for protocol, counted in _requests(metrics).items()
        for api, count in sorted(counted.items())
    ]

    def each(count: Callable[[_Counts], int]) -> list[tuple[dict[str, str], int]]:
        return [({"protocol": protocol}, count(found)) for protocol, found in counts.items()]

    over_limit = [
        ({"limit": "connection"}, metrics.pulsar.over_limit + metrics.amqp.over_limit),
        ({"limit": "subscription"}, limit.refused),
    ]
    refused = "Connections that were ended for what they sent."
    return [
        GatewayFamily("weir_gateway_connections", "gauge", "Open connections.", each(lambda c: c.connections)),
        GatewayFamily("weir_gateway_refused_total", "counter", refused, each(lambda c: c.refused)),
        GatewayFamily("weir_gateway_requests_total", "counter", "Requests, by the label `api`.", requests),
        GatewayFamily(
            "weir_gateway_received_bytes_total", "counter", "Bytes received.", each(lambda c: c.bytes_in)
        ),
        GatewayFamily(
            "weir_consumers_refused_total",
            "counter",
            "Consumers (producers, watchers) over the limit of their connection, or of their subscription.",
            over_limit,
        ),
        GatewayFamily("weir_gateway_sent_bytes_total", "counter", "Bytes sent.", each(lambda c: c.bytes_out)),
    ]


def _requests(metrics: GatewayMetrics) -> dict[str, Mapping[str, int]]:
    """Of each protocol, by the name that the protocol itself gives them."""
    return {
        "pulsar": {COMMANDS[number].name: count for number, count in metrics.pulsar.requests.items()},
        "kafka": {API[ApiKey(key)].name: count for key, count in metrics.kafka.requests.items()},
        "amqp": metrics.amqp.requests,
        "rocketmq": metrics.rocketmq.requests,
    }
