"""How far a stream is, by what Spark tells of its query."""

import json
from types import SimpleNamespace
from typing import Any

from weir.spark.sql.progress import Meter


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
    told = meter.look(query, "s", 20.0)  # type: ignore[arg-type]
    assert (told.rows, told.batch, told.rows_per_second) == (6, 0, 0.0)
    query.batch(1, 8)
    told = meter.look(query, "s", 24.0)  # type: ignore[arg-type]
    assert (told.rows, told.batch, told.rows_per_second) == (14, 1, 2.0)


def test_a_stream_that_is_started_again_goes_on_counting() -> None:
    query, meter = Query(), Meter()
    query.batch(0, 6)
    meter.look(query, "s", 10.0)  # type: ignore[arg-type]
    again, other = meter.again(0), Query()
    other.batch(1, 4)
    told = again.look(other, "s", 30.0)  # type: ignore[arg-type]
    assert (told.rows, told.batch) == (10, 1)
