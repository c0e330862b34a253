"""A real worker of Celery's: retries, ETA and countdown, chords, revoke, prefetch; worker and broker killed."""

import importlib
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from weir.testing.processes.up import UpProcess, environment

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
_TIMEOUT_S = 60.0
Until = Callable[[Callable[[], Any]], Any]


class Worker:
    """`celery worker` with two processes, in a group that can be killed as a whole."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self._log = folder / f"worker-{uuid4().hex[:6]}.log"
        command = [sys.executable, "-m", "celery", "-A", "tests.gateway.amqp.celery_tasks", "worker"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--concurrency", "2", "--loglevel", "INFO", "--hostname", f"w{uuid4().hex[:6]}@%h"],
                cwd=ROOT,
                env=environment() | settings,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def ready(self) -> bool:
        assert self._process.poll() is None, self.log
        return " ready." in self.log

    def kill(self) -> None:
        """All of its processes at once, as a machine that dies would."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Celery:
    """The application, a place for its files, and its workers."""

    def __init__(self, folder: Path, amqp: str, until: Until) -> None:
        self.folder = folder
        (folder / "results").mkdir()
        self.settings = {
            "CELERY_FOLDER": str(folder),
            "CELERY_BROKER": f"amqp://guest:guest@{amqp}//",
            "CELERY_QUEUE": f"celery-{uuid4().hex[:8]}",
        }
        os.environ.update(self.settings)
        sys.modules.pop("tests.gateway.amqp.celery_tasks", None)
        self.tasks: Any = importlib.import_module("tests.gateway.amqp.celery_tasks")
        self.until = until
        self.workers: list[Worker] = []

    @property
    def app(self) -> Any:
        return self.tasks.app

    def worker(self) -> Worker:
        """Start one, and wait until it works."""
        worker = Worker(self.folder, self.settings)
        self.workers.append(worker)
        self.until(lambda: worker.ready)
        return worker

    def runs(self, prefix: str) -> list[str]:
        """What ran, of the tasks whose names begin so."""
        return sorted(what for what in self.tasks.runs() if what.startswith(prefix))

    def until_runs(self, prefix: str, wanted: list[str]) -> None:
        self.until(lambda: len(self.runs(prefix)) >= len(wanted))
        assert self.runs(prefix) == sorted(wanted)

    def ready(self) -> int:
        """Messages in the queue that no worker has."""
        with self.app.connection_for_read() as connection:
            found = connection.channel().queue_declare(self.settings["CELERY_QUEUE"], passive=True)
            return int(found.message_count)

    def open(self, gate: str) -> None:
        (self.folder / gate).touch()

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.app.close()


@pytest.fixture(scope="module")
def celery(tmp_path_factory: pytest.TempPathFactory, amqp: str, until: Until) -> Iterator[Celery]:
    celery = Celery(tmp_path_factory.mktemp("celery"), amqp, until)
    celery.worker()
    yield celery
    celery.close()


def test_a_task_is_retried_until_it_succeeds(celery: Celery) -> None:
    assert celery.tasks.refuses_twice.delay("retry").get(timeout=_TIMEOUT_S) == 2
    assert celery.runs("retry") == ["retry"] * 3


def test_results_come_back_as_messages(celery: Celery) -> None:
    answered = celery.tasks.answered
    with celery.app.producer_pool.acquire(block=True) as producer:
        answered.backend.on_task_call(producer, "")  # as for all tasks, were it the application's backend
    assert answered.delay(21).get(timeout=_TIMEOUT_S) == 42


def test_countdown_and_eta_wait_and_far_etas_hold_nobody_up(celery: Celery) -> None:
    note = celery.tasks.note
    far = datetime.now(UTC) + timedelta(days=300)
    for number in range(12):  # more than the worker may have at once
        note.apply_async((f"far{number}",), eta=far)
    soon = note.apply_async(("eta",), eta=datetime.now(UTC) + timedelta(milliseconds=300))
    counted = note.apply_async(("eta-countdown",), countdown=0.2)
    assert note.delay("eta-now").get(timeout=_TIMEOUT_S) == "eta-now"
    assert soon.get(timeout=_TIMEOUT_S) == "eta"
    assert counted.get(timeout=_TIMEOUT_S) == "eta-countdown"
    assert celery.runs("far") == []
    celery.until(lambda: celery.ready() == 0)  # the worker has raised its prefetch for those that wait


def test_a_chord_ends_when_all_its_parts_have(celery: Celery) -> None:
    from celery import chord

    parts = [celery.tasks.plus.s(number, number) for number in range(5)]
    assert chord(parts)(celery.tasks.total.s()).get(timeout=_TIMEOUT_S) == 20


def test_a_revoked_task_does_not_run(celery: Celery) -> None:
    from celery.exceptions import TaskRevokedError

    chosen = uuid4().hex
    celery.app.control.revoke(chosen)
    inspected = celery.app.control.inspect(timeout=_TIMEOUT_S, limit=1)
    celery.until(lambda: chosen in str(inspected.revoked()))
    with pytest.raises(TaskRevokedError):
        celery.tasks.note.apply_async(("revoked",), task_id=chosen).get(timeout=_TIMEOUT_S)
    assert celery.runs("revoked") == []


def test_a_worker_takes_no_more_than_it_may_and_the_next_one_has_the_rest(celery: Celery) -> None:
    """Two processes, two messages ahead; those that are acknowledged late count until they have ended."""
    early = [f"early{number}" for number in range(4)]
    for what in early:
        celery.tasks.waits.delay(what, "gate-early")
    celery.until(lambda: len(celery.runs("early")) == 2)
    late = [f"late{number}" for number in range(6)]
    for what in late:
        celery.tasks.waits_late.delay(what, "gate-late")
    celery.until(lambda: celery.ready() == 6)
    celery.open("gate-early")
    celery.until_runs("early", early)
    celery.until(lambda: len(celery.runs("late")) == 2)
    celery.until(lambda: celery.ready() == 4)

    begun = celery.runs("late")
    celery.workers[-1].kill()
    celery.until(lambda: celery.ready() >= 6)
    celery.open("gate-late")
    celery.worker()
    celery.until_runs("late", late + begun)
    assert celery.runs("early") == early


def make_durable(weir: UpProcess, queue: str) -> None:
    """What was acknowledged is durable a moment later, which nobody is told: another subscription of the topic is,
    and all before it."""
    path = f"admin/v2/persistent/public/default/{queue}/subscription/another"
    urllib.request.urlopen(urllib.request.Request(f"{weir.http_url}/{path}", method="PUT")).close()


def test_a_broker_that_dies_loses_no_task_and_runs_none_twice(
    celery: Celery, weir: UpProcess, until: Until
) -> None:
    tasks = [f"after{number}" for number in range(8)]
    for what in tasks:
        celery.tasks.waits.delay(what, "gate-after")
    until(lambda: len(celery.runs("after")) == 2)
    until(lambda: celery.ready() == 4)
    make_durable(weir, celery.settings["CELERY_QUEUE"])
    weir.kill()
    # Only now has the worker forgotten what it had not begun: it will come again.
    until(lambda: "onnection to broker lost" in celery.workers[-1].log)
    weir.start()
    celery.open("gate-after")
    assert celery.tasks.note.delay("again").get(timeout=_TIMEOUT_S) == "again"
    celery.until_runs("after", tasks)
    until(lambda: celery.ready() == 0)
    assert celery.runs("after") == tasks


@pytest.mark.soak
def test_workers_and_brokers_die_again_and_again_and_every_task_ends(
    celery: Celery, weir: UpProcess, until: Until
) -> None:
    wanted: set[str] = set()
    for life in range(6):
        for number in range(100):
            celery.tasks.waits_late.delay(f"life{life}-{number}", "gate-lives")
            wanted.add(f"life{life}-{number}")
        celery.open("gate-lives")
        until(lambda: len(set(celery.runs("life"))) > len(wanted) - 50)
        if life % 2:
            celery.workers[-1].kill()
            celery.worker()
        else:
            weir.kill()
            weir.start()
    until(lambda: set(celery.runs("life")) == wanted)
    until(lambda: celery.ready() == 0)
