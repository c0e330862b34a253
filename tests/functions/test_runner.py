"""The runner: how many workers it starts at once, and what it makes of one that fails."""

from typing import Any

import pytest

from weir.client.admin import Access
from weir.client.functions import Deployed
from weir.functions import runner
from weir.functions.runner import Runner, WorkerOptions
from weir.model.definitions import Function, FunctionStats
from weir.model.topics import TopicName


class FakeWorker:
    """A process that ends when it is told."""

    started: list["FakeWorker"]

    def __init__(self, function: Function, command: list[str], environment: dict[str, str]) -> None:
        self.function = function
        self.pid = 1_000 + len(self.started)
        self.began, self.starting, self.stopping_since = runner.time.monotonic(), True, None
        self.ended: int | None = None
        self.started.append(self)

    def code(self) -> int | None:
        return self.ended

    def why(self) -> str:
        return "it is only a test"

    def stop(self) -> None:
        self.ended = 0


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[FakeWorker]:
    found: list[FakeWorker] = []
    monkeypatch.setattr(FakeWorker, "started", found, raising=False)
    monkeypatch.setattr(runner, "_Worker", FakeWorker)
    monkeypatch.setattr(runner.rest, "get_function", lambda access, name: Deployed(function(0), None))
    monkeypatch.setattr(runner.rest, "report", lambda *_: None)
    return found


def function(number: int, version: int = 1, **more: Any) -> Function:
    return Function(TopicName.parse(f"f{number}"), str(number), version, "", "f.py", "f", (), **more)


def test_many_functions_are_started_a_few_at_a_time(
    started: list[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_STARTING", 3)
    one = Runner(Access("http://127.0.0.1:1"), WorkerOptions())
    all_of_them = [Deployed(function(at), None) for at in range(10)]
    one.follow(all_of_them)
    one.follow(all_of_them)
    assert [worker.function.id for worker in started] == ["0", "1", "2"]
    said = FunctionStats("1", 1, "running", where=f"here, process {started[1].pid}")
    one.follow([Deployed(each.function, said if each.function.id == "1" else None) for each in all_of_them])
    assert [worker.function.id for worker in started] == ["0", "1", "2", "3"]


def test_a_version_that_fails_waits_and_the_next_one_does_not(started: list[FakeWorker]) -> None:
    one = Runner(Access("http://127.0.0.1:1"), WorkerOptions())
    one.follow([Deployed(function(0), None)])
    started[0].ended = 1
    one.follow([Deployed(function(0), None)])
    one.follow([Deployed(function(0), None)])
    assert len(started) == 1
    one.follow([Deployed(function(0, version=2), None)])
    assert [worker.function.version for worker in started] == [1, 2]


def test_a_runner_with_a_list_of_deployers_runs_no_code_of_others(
    started: list[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[FunctionStats] = []
    monkeypatch.setattr(runner.rest, "report", lambda _access, _name, stats: said.append(stats))
    one = Runner(Access("http://127.0.0.1:1"), WorkerOptions(deployers=("ci",)))
    one.follow([Deployed(function(0, role="ci"), None), Deployed(function(1, role="owner"), None)])
    assert [worker.function.id for worker in started] == ["0"]
    (failed,) = [stats for stats in said if stats.id == "1"]
    assert (failed.state, "role 'owner' has deployed it" in failed.error) == ("failed", True)
