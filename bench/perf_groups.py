"""`pulsar-perf` against Apache Pulsar and the shapes of Weir: the groups and their rows."""

from typing import Any

from bench import apache, perf_client
from bench.plan import Group, Row, Run, metric
from bench.report import Target

#: Key of a run to how it is called and what is started.
_SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "weir": ("one process", {"broker": "weir"}),
    "workers-1": ("1 worker", {"broker": "workers", "count": 1}),
    "workers-2": ("2 workers", {"broker": "workers", "count": 2}),
    "workers-3": ("3 workers", {"broker": "workers", "count": 3}),
}
_ONE, _MANY, _PACED = "1 topic", "4 topics", "1 topic, 5,000/s"
_HOPS = {"batched, 20,000/s": (20_000, True), "unbatched, 5,000/s": (5_000, False)}
#: What the hops stand beside.
_TOGETHER = "one process"
_LEVEL = Target(">= 1", lambda _value, ratio: ratio is not None and ratio.median >= 1)
_BELOW = Target("<= 1", lambda _value, ratio: ratio is not None and ratio.median <= 1)


def perf_groups(*, quick: bool) -> list[Group]:
    """Nothing where Maven cannot get the tool: no other client is measured here."""
    if apache.missing() or perf_client.ARTIFACTS.missing():
        return []
    seconds, warm_s = (3, 3) if quick else (5, 3)
    rounds = 1 if quick else 2
    return [_rates(seconds, warm_s, rounds), _hops(seconds, warm_s, 1)]


def _loads(shapes: dict[str, tuple[int, int, bool]], seconds: int, warm_s: int) -> list[dict[str, Any]]:
    return [
        {
            "key": key,
            "load": {"topics": topics, "rate": rate, "seconds": seconds, "warm_s": warm_s, "batching": batching},
        }
        for key, (topics, rate, batching) in shapes.items()
    ]


def _rates(seconds: int, warm_s: int, rounds: int) -> Group:
    unlimited = perf_client.UNLIMITED
    shapes = {_ONE: (1, unlimited, False), _MANY: (4, unlimited, False), _PACED: (1, 5000, False)}
    loads = _loads(shapes, seconds, warm_s)
    brokers = {"apache": {"broker": "apache"}} | {key: what for key, (_, what) in _SHAPES.items()}
    runs = [Run(key, "perf.produce", what | {"loads": loads}, timeout_s=400) for key, what in brokers.items()]
    rows = []
    for load in shapes:
        for key, (title, _) in _SHAPES.items():
            rows += _compared(load, key, title)
    title = f"pulsar-perf produce, 1 KiB unbatched, {perf_client.OUTSTANDING:,} under way, beside {apache.TITLE}"
    return Group("pulsar-perf", title, runs, rows, rounds, beside=apache.TITLE)


def _compared(load: str, key: str, title: str) -> list[Row]:
    def row(what: str, unit: str, name: str, *, target: Target | None = None, lower: bool = True) -> Row:
        return Row(
            f"{load}, {title}: {what}",
            unit,
            metric(key, f"{load} {name}"),
            apache.TITLE,
            metric("apache", f"{load} {name}"),
            lower_is_better=lower,
            target=target,
        )

    judged = key in {"weir", "workers-1"}
    if load == _PACED:
        found = [
            row("acknowledged, p50", "ms", "p50_ms"),
            row("acknowledged, p99", "ms", "p99_ms", target=_BELOW if judged else None),
            row("acknowledged, p99.9", "ms", "p999_ms"),
        ]
    else:
        found = [row("produce", "msg/s", "rate", target=_LEVEL if judged else None, lower=False)]
    found += [
        row("CPU of broker and storage per message", "us", "servers_us"),
        row("CPU of the client per message", "us", "client_us"),
        row("the client's share of the CPU", "", "client_share"),
    ]
    if key != "weir":
        own = metric(key, f"{load} storage_us")
        found.append(Row(f"{load}, {title}: of that the storage process", "us", own, lower_is_better=True))
    return found


def _hops(seconds: int, warm_s: int, rounds: int) -> Group:
    shapes = {key: (1, rate, batching) for key, (rate, batching) in _HOPS.items()}
    loads = _loads(shapes, seconds, warm_s)
    clusters = {"1 bookie": 1, "3 bookies, 2 copies": 3}
    runs = [Run("together", "perf.hops", {"broker": "weir", "loads": loads}, timeout_s=300)]
    for key, count in clusters.items():
        params = {"broker": "cluster", "count": count, "loads": loads}
        runs.append(Run(key, "perf.hops", params, timeout_s=300))
    rows = []
    for load in shapes:
        for key in clusters:
            rows += _hop_rows(load, key)
    title = "CPU per MB of each hop, 1 KiB by pulsar-perf: one broker and remote bookies beside one process"
    return Group("pulsar-hops", title, runs, rows, rounds, beside=_TOGETHER)


def _hop_rows(load: str, key: str) -> list[Row]:
    hops = {
        "client": "the client",
        "broker": "client to broker to bookies: the broker",
        "bookie loop": "from the broker: the bookies' loops",
        "bookie threads": "journal and entry log: the bookies' threads",
        "servers": "broker and bookies",
    }
    rows = []
    for name, title in hops.items():
        own = metric(key, f"{load} {name}")
        said = f"{load}, {key}: {title}"
        if name == "bookie loop":  # in one process the same loop does it
            rows.append(Row(said, "ms/MB", own, lower_is_better=True))
            continue
        beside = "broker threads" if name == "bookie threads" else name
        together = metric("together", f"{load} {beside}")
        rows.append(Row(said, "ms/MB", own, _TOGETHER, together, lower_is_better=True))
    return rows
