"""Weir's source and sink beside Spark's own Kafka connector: the groups and their rows."""

from typing import Any

from bench import kafka_peer, spark_peer
from bench.plan import Group, Row, Run, metric
from bench.report import Target

#: All names of these groups begin so.
NAME = "spark"
_TITLE = spark_peer.TITLE
_LEVEL = Target(">= 1", lambda _value, ratio: ratio is not None and ratio.median >= 1)
_SECOND = Target("< 1 s", lambda value, _ratio: value.median < 1000)


def spark_groups(*, quick: bool) -> list[Group]:
    """All groups; the first call on a machine downloads the peers."""
    absent = kafka_peer.missing() or spark_peer.missing()
    batch = {"rows": 200_000 if quick else 4_000_000, "size": 100, "rounds": 1 if quick else 3}
    live = {"count": 200 if quick else 3000, "rate": 100}
    return [
        Group(
            f"{NAME}-batch",
            f"Topics as tables, {batch['rows']:,} rows of 100 B in 4 partitions, local[2]",
            _runs("spark.batch", batch, absent),
            [
                _row(absent, "topic to no-op", "rows/s", "noop_s", _LEVEL),
                _row(
                    absent, "topic to topic (Weir: exactly once; Kafka: at least once)", "rows/s", "topic_s", None
                ),
                _row(absent, "topic to Parquet", "rows/s", "parquet_s", None),
            ],
            1,
            beside=_TITLE,
        ),
        Group(
            f"{NAME}-latency",
            f"A stateless query, topic to topic, {live['rate']} messages per second",
            _runs("spark.latency", live, absent),
            [
                *(
                    _row(absent, f"end to end, {p}", "ms", f"{p}_us", _SECOND if p == "p50" else None, scale=1e-3)
                    for p in ("p50", "p99")
                ),
                _row(absent, "a micro-batch, median", "ms", "batch_ms", None, lower=True),
            ],
            1,
            beside=_TITLE,
        ),
    ]


def _runs(case: str, params: dict[str, Any], absent: str) -> list[Run]:
    names = ["weir"] if absent else ["weir", "kafka"]
    return [Run(name, case, params | {"broker": name}, timeout_s=900) for name in names]


def _row(
    absent: str,
    title: str,
    unit: str,
    name: str,
    target: Target | None,
    *,
    lower: bool = False,
    scale: float | None = None,
) -> Row:
    factor, lower = scale or 1.0, lower or scale is not None
    ours, theirs = metric("weir", name), metric("kafka", name)
    if absent:
        return Row(
            title, unit, lambda r: ours(r) * factor, f"skipped: {absent}", lower_is_better=lower, target=target
        )
    return Row(
        title,
        unit,
        lambda r: ours(r) * factor,
        _TITLE,
        lambda r: theirs(r) * factor,
        lower_is_better=lower,
        target=target,
    )
