"""Calls between brokers, as families of the metrics page."""

from weir.admin.metrics import GatewayFamily
from weir.broker.peers.metrics import CallCounts, PeerMetrics


def peer_families(metrics: PeerMetrics) -> list[GatewayFamily]:
    return [
        *_calls("asked", "to other brokers", metrics.asked),
        *_calls("served", "for other brokers", metrics.served),
        GatewayFamily(
            "weir_peer_strangers_total",
            "counter",
            "Connections to the listener for brokers that did not prove to belong to the cluster.",
            [({}, metrics.strangers)],
        ),
    ]


def _calls(word: str, whose: str, counts: CallCounts) -> list[GatewayFamily]:
    return [
        GatewayFamily(
            f"weir_peer_calls_{word}_total",
            "counter",
            f"Calls {whose}, by how they ended; error is empty for those that were answered.",
            [({"call": call, "error": error}, count) for (call, error), count in sorted(counts.outcomes.items())],
        ),
        GatewayFamily(
            f"weir_peer_calls_{word}_seconds_total",
            "counter",
            f"Time that calls {whose} took.",
            [({"call": call}, seconds) for call, seconds in sorted(counts.seconds.items())],
        ),
        GatewayFamily(
            f"weir_peer_calls_{word}_under_way",
            "gauge",
            f"Calls {whose} that are not answered yet.",
            [({}, counts.under_way)],
        ),
    ]
