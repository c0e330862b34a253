"""How far a stream is, by what Spark tells of its query."""

import json
from types import SimpleNamespace
from typing import Any

from weir.spark.sql.progress import Meter, told


class Query:
    """What is looked at of a running query."""

    def __init__(self) -> None:
        self.recentProgress: list[Any] = []

    def batch(self, number: int, rows: int) -> None:
        self._tell({"batchId": number, "numInputRows": rows, "durationMs": {"addBatch": 5, "triggerExecution": 9}})

    def idle(self, number: int) -> None:
        """As Spark tells after ten seconds without messages: with the number of the batch to come."""
        self._tell(
            {"batchId": number, "numInputRows": 0, "durationMs": {"latestOffset": 1, "triggerExecution": 1}}
        )

    def _tell(self, progress: dict[str, Any]) -> None:
        self.recentProgress.append(SimpleNamespace(json=json.dumps(progress)))


def test_rows_after_an_idle_time_are_counted() -> None:
    query, meter = Query(), Meter()
    query.batch(0, 6)
    assert meter.look(query, "s", 10.0).rows == 6  # type: ignore[arg-type]
    query.idle(1)
    found = meter.look(query, "s", 20.0)  # type: ignore[arg-type]
    assert (found.rows, found.batch, found.rows_per_second) == (6, 0, 0.0)
    query.batch(1, 8)
    found = meter.look(query, "s", 24.0)  # type: ignore[arg-type]
    assert (found.rows, found.batch, found.rows_per_second) == (14, 1, 2.0)


def test_a_stream_that_is_started_again_goes_on_counting() -> None:
    query, meter = Query(), Meter()
    query.batch(0, 6)
    meter.look(query, "s", 10.0)  # type: ignore[arg-type]
    again, other = meter.again(0), Query()
    other.batch(1, 4)
    found = again.look(other, "s", 30.0)  # type: ignore[arg-type]
    assert (found.rows, found.batch) == (10, 1)


def test_what_spark_says_is_a_sentence_without_codes() -> None:
    wrong = ValueError("[UNRESOLVED] `no` cannot be resolved. SQLSTATE: 42703; line 2 pos 7;\n'Project ['no]")
    assert told(wrong) == "`no` cannot be resolved (line 2, column 8)"
    assert told(ValueError("[P] Syntax error. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL ==")) == (
        "Syntax error (line 1, column 1)"
    )
    assert told(ValueError("[DIVIDE] Division by zero. SQLSTATE: 22012")) == "Division by zero"
    java = "An error occurred while calling o1.collect.\n: java.lang.OutOfMemoryError: Java heap space\n\tat x.Y.z"
    assert told(ValueError(java)) == "java.lang.OutOfMemoryError: Java heap space"
    stack = 'Traceback (most recent call last):\n  File "a.py", line 1\n    f()\nOverflowError: out of range\n'
    assert (
        told(ValueError(f"[E] Failed to read: {stack} SQLSTATE: 38000"))
        == "Failed to read: OverflowError: out of range"
    )
