"""What the leader of balance does, as families of the metrics page; a broker that never led says zeros."""

from weir.admin.metrics import GatewayFamily
from weir.server.compose.balance import ClusterBalance


def balance_families(balance: ClusterBalance | None) -> list[GatewayFamily]:
    """None of a broker that is on its own."""
    if balance is None:
        return []
    metrics = balance.metrics
    return [
        GatewayFamily(
            "weir_balance_leader",
            "gauge",
            "1 if this broker moves and splits bundles for all.",
            [({}, float(balance.leading))],
        ),
        GatewayFamily("weir_balance_rounds_total", "counter", "Rounds that it led.", [({}, metrics.rounds)]),
        GatewayFamily(
            "weir_balance_actions_total",
            "counter",
            "Bundles that were moved, by the reason, or split, while it led.",
            [({"what": what}, count) for what, count in sorted(metrics.done.items())],
        ),
        GatewayFamily(
            "weir_balance_failures_total",
            "counter",
            "Moves and splits that did not come about.",
            [({"what": what}, count) for what, count in sorted(metrics.failed.items())],
        ),
        GatewayFamily(
            "weir_balance_usage",
            "gauge",
            "Usage of brokers in the last round: 1 is all that one can do.",
            [({"of": "busiest"}, metrics.busiest), ({"of": "mean"}, metrics.mean)],
        ),
        GatewayFamily(
            "weir_balance_uneven_brokers",
            "gauge",
            "Brokers that were being relieved or filled in the last round.",
            [({}, metrics.uneven)],
        ),
        GatewayFamily(
            "weir_balance_silent_brokers",
            "gauge",
            "Brokers that did not say how much work they have in the last round.",
            [({}, metrics.silent)],
        ),
    ]
