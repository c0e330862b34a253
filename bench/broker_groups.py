"""Weir beside Apache Pulsar: the groups, their rows, and what is left of them where Apache Pulsar cannot run."""

from dataclasses import dataclass
from typing import Any

from bench import apache
from bench.plan import Group, Row, Run, metric
from bench.report import Target

KIB = 1024
#: All names of these groups begin so.
NAME = "pulsar"


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much each measurement moves."""

    rounds: int
    seconds: float
    warm_s: float
    latency_s: int
    topics: int
    topic_rounds: int


FULL = Amounts(rounds=2, seconds=3.0, warm_s=3.0, latency_s=5, topics=10_000, topic_rounds=2)
QUICK = Amounts(rounds=1, seconds=1.0, warm_s=0.5, latency_s=2, topics=200, topic_rounds=2)

_SHAPES = {
    f"{name}, {'batched' if batching else 'unbatched'}": {"size": size, "batching": batching}
    for name, size in (("100 B", 100), ("1 KiB", KIB))
    for batching in (True, False)
}
_LATENCIES: dict[str, dict[str, Any]] = {
    "1 KiB unbatched, 1,000/s": {"size": KIB, "batching": False, "rate": 1000},
    "100 B batched, 10,000/s": {"size": 100, "batching": True, "rate": 10_000},
}
_AHEAD = Target("ahead", lambda _value, ratio: ratio is not None and ratio.median >= 1)
_BELOW = Target("below", lambda _value, ratio: ratio is not None and ratio.median <= 1)


def broker_groups(*, quick: bool) -> list[Group]:
    """All groups; the first call on a machine lets Maven download Apache Pulsar."""
    amounts = QUICK if quick else FULL
    absent = apache.missing()
    return [_load(amounts, absent), _topics(amounts, absent)]


def _runs(case: str, params: dict[str, Any], absent: str) -> list[Run]:
    names = ["weir"] if absent else ["weir", "pulsar"]
    return [Run(name, case, params | {"broker": name}, timeout_s=400) for name in names]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows that compare the same number of both."""

    absent: str

    def row(self, title: str, unit: str, name: str, *, lower: bool = False, judged: bool = True) -> Row:
        if self.absent:
            return Row(title, unit, metric("weir", name), f"skipped: {self.absent}", lower_is_better=lower)
        target = (_BELOW if lower else _AHEAD) if judged else None
        return Row(
            title,
            unit,
            metric("weir", name),
            apache.TITLE,
            metric("pulsar", name),
            lower_is_better=lower,
            target=target,
        )

    def low(self, title: str, unit: str, name: str) -> Row:
        return self.row(title, unit, name, lower=True)


def _load(amounts: Amounts, absent: str) -> Group:
    rows = _Rows(absent)
    table = [
        rows.low("start, until the first message is acknowledged", "s", "start_s"),
        rows.low("memory, idle after the start", "MB", "idle_mb"),
    ]
    for key in _SHAPES:
        table += [
            rows.row(f"{key}: produce", "msg/s", f"{key} produce_s"),
            rows.row(f"{key}: consume", "msg/s", f"{key} consume_s"),
            rows.low(f"{key}: broker CPU per million produced", "s", f"{key} produce_cpu_s"),
            rows.low(f"{key}: broker CPU per million consumed", "s", f"{key} consume_cpu_s"),
            rows.row(f"{key}: cores of the producers", "", f"{key} produce_client_cores", judged=False),
            rows.row(f"{key}: cores of the consumer", "", f"{key} consume_client_cores", judged=False),
        ]
    for key in _LATENCIES:
        table += [rows.low(f"{key}: end to end, {p}", "us", f"{key} {p}_us") for p in ("p50", "p99", "p999")]
        table += [rows.low(f"{key}: acknowledged, {p}", "us", f"{key} ack_{p}_us") for p in ("p50", "p99")]
        table += [rows.low(f"{key}: broker CPU per million", "s", f"{key} cpu_s")]
    table += [rows.low("memory, after all that", "MB", "loaded_mb")]
    params = {
        "producers": 2,
        "warm_s": amounts.warm_s,
        "shapes": [{"key": key, "load": shape | {"seconds": amounts.seconds}} for key, shape in _SHAPES.items()],
        "latencies": [
            {"key": key, "load": load | {"count": load["rate"] * amounts.latency_s, "warm": load["rate"]}}
            for key, load in _LATENCIES.items()
        ],
    }
    title = f"Weir beside {apache.TITLE}: 1 topic"
    return Group(
        f"{NAME}-load", title, _runs("broker.load", params, absent), table, amounts.rounds, beside=apache.TITLE
    )


def _topics(amounts: Amounts, absent: str) -> Group:
    rows, count = _Rows(absent), f"{amounts.topics:,}"
    table = [
        rows.row(f"{count} topics made by subscribing to each", "topics/s", "subscribe_s"),
        rows.row("a producer and a first message on each of them", "topics/s", "create_s"),
        rows.row("both: from nothing to a first message on each", "topics/s", "ready_s"),
        rows.row("produce, one message per topic in turn", "msg/s", "send_s"),
        rows.row("consume, topic by topic, each acknowledged", "msg/s", "read_s"),
        rows.low("broker CPU for all that", "s", "cpu_s"),
        rows.low("memory, all topics in use", "MB", "mb"),
        rows.low("memory, beyond idle", "MB", "added_mb"),
        rows.low("restart, until the first message is acknowledged", "s", "restart_s"),
        rows.low("memory after the restart", "MB", "restarted_mb"),
    ]
    params = {"topics": amounts.topics, "rounds": amounts.topic_rounds, "size": 100}
    title = f"Weir beside {apache.TITLE}: {count} topics"
    runs = _runs("broker.topics", params, absent)
    return Group(f"{NAME}-topics", title, runs, table, 1, beside=apache.TITLE)
