"""CREATE STREAM and RESUME STREAM say which worker runs the stream, or what to start; without Spark."""

from types import SimpleNamespace
from typing import Any

import pytest

from weir.client.admin import Access
from weir.client.streams import Defined
from weir.model.definitions import SqlStream, StreamProgress, Wanted
from weir.model.topics import TopicName
from weir.spark.sql import console as module
from weir.spark.sql.console import StreamConsole
from weir.spark.sql.parsing import parse
from weir.spark.sql.results import Done
from weir.spark.tables.names import WeirCluster

STREAM = SqlStream(TopicName.parse("big"), "1", "SELECT 1", wanted=Wanted.PAUSED)


def resumed(
    monkeypatch: pytest.MonkeyPatch, *, worker: str | None, state: str | None, can_start: bool = True
) -> Done:
    progress = None if state is None else StreamProgress("1", state)
    rest = SimpleNamespace(
        get_stream=lambda *_: Defined(STREAM, progress),
        put_stream=lambda *_, **__: Defined(STREAM, progress),
        runner=lambda _: SimpleNamespace(where=worker, allowed=can_start),
    )
    times = iter(range(0, 10_000, 30))
    clock = SimpleNamespace(monotonic=lambda: next(times), sleep=lambda _: None)
    monkeypatch.setattr(module, "rest", rest)
    monkeypatch.setattr(module, "time", clock)
    tables: Any = None
    place = WeirCluster(Access("http://nowhere:1"), "nowhere:1")
    (statement,) = parse("RESUME STREAM big")
    found = StreamConsole(tables, place, lambda: can_start).do(statement)
    assert isinstance(found, Done)
    return found


def test_the_worker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    done = resumed(monkeypatch, worker="process 7 on host", state="running")
    assert done.what == "stream big resumed; it runs in process 7 on host"
    assert done.fields == {"stream": "big", "worker": "process 7 on host", "state": "running"}


def test_a_worker_that_has_not_begun_with_it_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    done = resumed(monkeypatch, worker="process 7 on host", state=None)
    assert done.what == (
        "stream big resumed; its worker is process 7 on host: weir streams describe big shows when it runs"
    )
    other = resumed(monkeypatch, worker="process 7 on host", state="running", can_start=False)
    assert other.fields["worker"] == "process 7 on host"


def test_without_a_worker_it_says_what_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    done = resumed(monkeypatch, worker=None, state=None, can_start=False)
    assert done.what == (
        "stream big resumed; no worker runs it: start one by weir up --streams, or weir streams run"
    )
    assert done.fields["worker"] == ""
