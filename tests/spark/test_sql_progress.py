"""How far a stream is, by what Spark tells of its query."""

import json
from types import SimpleNamespace
from typing import Any

from weir.spark.sql.stream_query import Meter, told


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


def caused(said: str, cause: BaseException) -> Exception:
    """As PySpark keeps the causes of an exception of Java."""
    found = ValueError(said)
    found._cause = cause  # type: ignore[attr-defined]
    return found


def test_the_root_cause_is_told_also_where_the_first_line_does_not_name_it() -> None:
    java = (
        "An error occurred while calling o1.collectToPython.\n"
        ": org.apache.spark.SparkException: Task not serializable\n"
        "\tat a.B.c(B.scala:1)\nCaused by: java.io.IOException: wrapper\n\tat d.E.f(E.java:2)\n"
        "Caused by: java.lang.IllegalStateException: Illegal size 5 of collection, expected 6\n\t... 3 more\n"
    )
    said = "org.apache.spark.SparkException: Task not serializable"
    cause = "java.lang.IllegalStateException: Illegal size 5 of collection, expected 6"
    assert told(ValueError(java)) == f"{said}; caused by {cause}"
    inner = caused("java.io.IOException: wrapper", ValueError(cause))
    assert told(caused("[STREAM_FAILED] The query failed. SQLSTATE: XXKST", inner)) == (
        f"The query failed; caused by {cause}"
    )
    assert told(caused(f"Job aborted: {cause}", inner)) == f"Job aborted: {cause}", "it is not said twice"
    python = (
        'org.X: Traceback (most recent call last):\n  File "a.py", line 1\nKeyError: 7\n\n\tat g.H.i(H.java:3)'
    )
    assert told(ValueError(f"Writing job aborted\nCaused by: {python}")) == (
        "Writing job aborted; caused by org.X: KeyError: 7"
    )
    circle = caused("one", ValueError("other"))
    circle._cause._cause = circle  # type: ignore[attr-defined]
    assert told(circle) == "one; caused by other"


def test_an_exception_of_a_jvm_that_has_ended_is_told_by_its_class() -> None:
    class Gone(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError

    assert told(Gone()) == "Gone"
