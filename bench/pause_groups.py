"""Pauses of producers when brokers change: the group and its rows."""

from bench.plan import Group, Row, Run, metric
from bench.report import ALONE, Target

NAME = "pauses"
_PLANNED_MS, _KILLED_MS = 300, 6_000
_DEEDS = {
    "move": ("a bundle is moved", _PLANNED_MS),
    "drain": ("a broker is drained", _PLANNED_MS),
    "sigterm": ("a broker gets SIGTERM", _PLANNED_MS),
    "sigkill": ("a broker gets SIGKILL", _KILLED_MS),
}
_PROTOCOLS = {"kafka": "Kafka", "pulsar": "Pulsar"}
_FULL = {"move": 60, "drain": 8, "sigterm": 8, "sigkill": 8}
_QUICK = {"move": 4, "drain": 1, "sigterm": 1, "sigkill": 1}


def pause_groups(*, quick: bool) -> list[Group]:
    params = {"brokers": 3, "partitions": 8, **(_QUICK if quick else _FULL)}
    run = Run("pauses", "pauses", params, timeout_s=900)
    title = "Pauses of producers: 3 brokers, 3 bookies and an etcd on this machine, clients with their defaults"
    return [Group(NAME, title, [run], _rows(), 1, beside=ALONE)]


def _rows() -> list[Row]:
    return [
        Row(
            f"{says}: {_PROTOCOLS[protocol]}, {share}",
            "ms",
            metric("pauses", f"{protocol} {deed} {share}"),
            lower_is_better=True,
            target=_below(limit_ms) if share == "p99" else None,
        )
        for deed, (says, limit_ms) in _DEEDS.items()
        for protocol in _PROTOCOLS
        for share in ("p50", "p99", "max")
    ]


def _below(limit_ms: int) -> Target:
    return Target(f"< {limit_ms:,} ms", lambda found, _ratio: found.median < limit_ms)
