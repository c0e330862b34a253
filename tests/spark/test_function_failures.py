"""A function on Spark whose query ends says the root cause, which its runner shows."""

import pytest

from weir.functions.stats import Counts
from weir.model.errors import FunctionError
from weir.spark.functions.worker import _follow


class Query:
    """A query that has ended."""

    isActive = False

    def __init__(self, failure: Exception | None) -> None:
        self._failure = failure

    def exception(self) -> Exception | None:
        return self._failure


def test_the_root_cause_is_told() -> None:
    failure = ValueError(
        "[STREAM_FAILED] Task not serializable\nCaused by: java.io.IOException: disk is full\n\tat a.B"
    )
    with pytest.raises(FunctionError, match=r"ended: Task not serializable; caused by .*disk is full"):
        _follow(Query(failure), Counts(), [])


def test_a_query_that_ends_without_a_failure_is_one_too() -> None:
    with pytest.raises(FunctionError, match="ended: without a word"):
        _follow(Query(None), Counts(), [])
