"""Weir beside Apache Kafka: the groups, their rows, and what is left of them where Apache Kafka cannot run."""

from dataclasses import dataclass
from typing import Any

from bench import kafka_peer
from bench.plan import Group, Row, Run, metric
from bench.report import Target

KIB = 1024
#: All names of these groups begin so.
NAME = "kafka"


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much each measurement moves."""

    rounds: int
    seconds: float
    warm_s: float
    latency_s: int
    partitions: int


FULL = Amounts(rounds=2, seconds=3.0, warm_s=4.0, latency_s=10, partitions=10_000)
QUICK = Amounts(rounds=1, seconds=1.0, warm_s=1.0, latency_s=3, partitions=2_000)

_SHAPES: dict[str, dict[str, Any]] = {
    f"{title}, {compression}, {partitions} partition{'s' if partitions > 1 else ''}": {
        "size": size,
        "compression": compression,
        "partitions": partitions,
    }
    for title, size in (("100 B", 100), ("1 KiB", KIB), ("10 KiB", 10 * KIB))
    for compression in ("none", "lz4")
    for partitions in (1, 64)
}
_UNSYNCED = ("1 KiB, none, 1 partition", "1 KiB, none, 64 partitions")
#: With the pause of librdkafka's default, which makes batches, and with none: a request for each message.
_LATENCIES: dict[str, dict[str, Any]] = {
    "1 KiB, 5,000/s, linger 5 ms": {"size": KIB, "rate": 5000, "linger_ms": 5},
    "1 KiB, 5,000/s, no linger": {"size": KIB, "rate": 5000, "linger_ms": 0},
}
_LEVEL = Target(">= 1", lambda _value, ratio: ratio is not None and ratio.median >= 1)
_BELOW = Target("below", lambda _value, ratio: ratio is not None and ratio.median <= 1)
_TENTH = Target("a tenth", lambda _value, ratio: ratio is not None and ratio.median <= 0.1)


def kafka_groups(*, quick: bool) -> list[Group]:
    """All groups; the first call on a machine lets Maven download Apache Kafka."""
    amounts = QUICK if quick else FULL
    absent = kafka_peer.missing()
    return [
        _load(amounts, absent, sync=True),
        _load(amounts, absent, sync=False),
        _partitions(amounts, absent),
    ]


def _runs(case: str, params: dict[str, Any], absent: str) -> list[Run]:
    names = ["weir"] if absent else ["weir", "kafka"]
    return [Run(name, case, params | {"broker": name}, timeout_s=600) for name in names]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows that compare the same number of both."""

    absent: str

    def row(self, title: str, unit: str, name: str, target: Target | None, *, lower: bool = False) -> Row:
        if self.absent:
            return Row(title, unit, metric("weir", name), f"skipped: {self.absent}", lower_is_better=lower)
        ours, theirs = metric("weir", name), metric("kafka", name)
        return Row(title, unit, ours, kafka_peer.TITLE, theirs, lower_is_better=lower, target=target)

    def low(self, title: str, unit: str, name: str, target: Target | None = _BELOW) -> Row:
        return self.row(title, unit, name, target, lower=True)


def _load(amounts: Amounts, absent: str, *, sync: bool) -> Group:
    rows = _Rows(absent)
    shapes = _SHAPES if sync else {key: _SHAPES[key] for key in _UNSYNCED}
    table = []
    if sync:
        table += [
            rows.low("start, until the first message is acknowledged", "s", "start_s", _TENTH),
            rows.low("memory, idle after the start", "MB", "idle_mb", _TENTH),
        ]
    for key in shapes:
        table += [
            rows.row(f"{key}: produce", "msg/s", f"{key} produce_s", _LEVEL),
            rows.row(f"{key}: consume", "msg/s", f"{key} consume_s", _LEVEL),
            rows.low(f"{key}: broker CPU per million produced", "s", f"{key} produce_cpu_s"),
            rows.low(f"{key}: broker CPU per million consumed", "s", f"{key} consume_cpu_s"),
        ]
    for key in _LATENCIES:
        table += [rows.low(f"{key}: end to end, {p}", "us", f"{key} {p}_us") for p in ("p50", "p99", "p999")]
        table += [rows.low(f"{key}: acknowledged, {p}", "us", f"{key} ack_{p}_us") for p in ("p50", "p99")]
        table += [rows.low(f"{key}: broker CPU per million", "s", f"{key} cpu_s")]
    table += [rows.low("memory, after all that", "MB", "loaded_mb", None)]
    params = {
        "sync": sync,
        "producers": 2,
        "warm_s": amounts.warm_s,
        "shapes": [{"key": key, "load": shape | {"seconds": amounts.seconds}} for key, shape in shapes.items()],
        "latencies": [
            {"key": key, "load": load | {"count": load["rate"] * amounts.latency_s, "warm": load["rate"]}}
            for key, load in _LATENCIES.items()
        ],
    }
    flush = "every append flushed in both" if sync else "flushed now and then in both"
    name = f"{NAME}-load" if sync else f"{NAME}-unsynced"
    title = f"Weir beside {kafka_peer.TITLE}: {flush}"
    return Group(name, title, _runs("kafka.load", params, absent), table, amounts.rounds, beside=kafka_peer.TITLE)


def _partitions(amounts: Amounts, absent: str) -> Group:
    rows, count = _Rows(absent), f"{amounts.partitions:,}"
    table = [
        rows.row(f"{count} partitions made", "partitions/s", "made_s", _LEVEL),
        rows.low("memory, all of them idle", "MB", "mb", _TENTH),
        rows.low("cores used, all of them idle", "", "idle_cores", None),
        rows.low("restart, until the first message is acknowledged", "s", "restart_s", _TENTH),
        rows.low("memory after the restart", "MB", "restarted_mb", _TENTH),
    ]
    params = {"partitions": amounts.partitions, "sync": True}
    title = f"Weir beside {kafka_peer.TITLE}: {count} idle partitions"
    runs = _runs("kafka.partitions", params, absent)
    return Group(f"{NAME}-partitions", title, runs, table, 1, beside=kafka_peer.TITLE)
