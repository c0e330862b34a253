"""The one process that runs connectors, each in a thread: it does what definitions say, and tells how it goes.

From a definition to the task that does it; a type's module is imported when it is needed.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from uuid import uuid4

from weir.client import connectors as rest
from weir.client.connectors import DefinedConnector
from weir.client.kafka.cluster import Cluster
from weir.client.schemas import kafka_name
from weir.client.sink_epochs import forget
from weir.client.weir_cluster import Place
from weir.connect.definitions import Definition, check_update, parse, short_name
from weir.connect.reader import forget_group
from weir.connect.task import Job, Status, Task
from weir.connect.writer import delete_topic, positions_topic
from weir.model.definitions import Connector, ConnectorProgress, ConnectorWanted
from weir.model.errors import BrokerError, NetworkError, NotAuthorisedError, TopicClosedError, WeirError

_CLASSES = {"postgresql": "Postgresql", "files": "Files", "http": "Http", "kafka": "Kafka", "pulsar": "Pulsar"}


def make_task(job: Job) -> Task:
    """ConfigError if it cannot be done as it is defined."""
    definition = job.definition
    spark = definition.options.get("engine") == "spark"
    module = import_module(f"weir.connect.connectors.{'spark_' if spark else ''}{definition.type}")
    name = f"{'Spark' if spark else ''}{_CLASSES[definition.type]}{definition.side.capitalize()}"
    kind: Callable[[Job], Task] = getattr(module, name)
    return kind(job)


def clean_up(job: Job) -> None:
    """Leave nothing of a connector that was removed but what it carried: no positions, no subscription."""
    if job.definition.side == "sink":
        forget_group(job)
        if job.definition.type == "kafka":
            _forget_there(job)
        if job.option("start") != "latest":
            return
    with Cluster(job.place.kafka) as cluster:
        delete_topic(cluster, kafka_name(positions_topic(job)))
    if job.definition.side == "source" and job.definition.options.get("engine") == "spark":
        from weir.connect.connectors.spark_files import sink_id

        with suppress(WeirError):
            forget(job.place.access, sink_id(job))


def _forget_there(job: Job) -> None:
    """Positions in another cluster; one that is away keeps them, by a name that nobody else has."""
    from weir.connect.connectors.kafka import other_kafka, positions_there

    with suppress(WeirError), Cluster(other_kafka(job)) as cluster:
        delete_topic(cluster, positions_there(job))


log = logging.getLogger(__name__)

#: Who is silent for so long is not the runner any more; it asks again after a quarter of it.
LEASE_MS = 15_000
_REPORT_S, _STEP_S = 2.0, 0.2
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
#: How long one question to the broker may take; the next step asks again.
_PATIENCE_S = 2.0
#: How long a task that shall end is waited for; it may be in a request.
_JOIN_S = 30.0


def check_allowed(place: Place) -> None:
    if not rest.runner(place.access).allowed:
        raise NotAuthorisedError(
            "the runner of connectors reads and writes for all of them, and this user may not",
            hint="give it the --token of a superuser: auth.superusers",
        )


class Worker:
    """One connector: a thread that opens its task, steps, and opens it again after a failure."""

    def __init__(self, job: Job, make: Callable[[Job], Task] = make_task) -> None:
        self._job = job
        self._make = make
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._task: Task | None = None
        self.paused = False
        self.state = "starting"
        self.records = self.restarts = self.batch_ms = 0
        self.status = Status()
        self.error = ""
        self.failures = self.failed_ms = self.next_try_ms = 0
        self._thread = threading.Thread(target=self._run, name=f"connect {job.definition.name.local}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ask it to end; `join` waits."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._wake.set()
        task = self._task
        if task is not None:
            task.interrupt()

    def join(self, seconds: float = _JOIN_S) -> bool:
        """Whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def pause(self, *, paused: bool) -> None:
        if self.paused != paused:
            self.paused = paused
            self._wake.set()

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stop.is_set():
            worked: set[bool] = set()
            try:
                self._carry(worked)
                return
            except Exception as failure:
                if self._stop.is_set():  # it was interrupted
                    return
                if worked:
                    pause_s = _FIRST_PAUSE_S
                self._failed(failure, pause_s)
            self._wait(pause_s)
            self.restarts += not self._stop.is_set()
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)

    def _carry(self, worked: set[bool]) -> None:
        """Until it shall end, or fails. `worked` is told once it is seen that it works."""
        task = self._task = self._make(self._job)
        try:
            task.open()
            self.status = task.status
            while not self._stop.is_set():
                if self.paused:
                    self.state = "paused"
                    self._wait(_LONGEST_PAUSE_S)
                    continue
                began = time.monotonic()
                count = task.step()
                self.records += count
                if count or not task.status.waiting:  # it works: what it took is where it should be
                    worked.add(True)
                    self.error, self.failures, self.failed_ms, self.next_try_ms = "", 0, 0, 0
                if not self.failures and not self._stop.is_set():
                    self.state = "running"
                if count:
                    self.batch_ms = round(1000 * (time.monotonic() - began))
                else:
                    self._wait(task.status.idle_s)
        finally:
            self._task = None
            task.close()

    def _failed(self, failure: Exception, pause_s: float) -> None:
        known = isinstance(failure, WeirError)
        self.error = str(failure) if known else f"{type(failure).__name__}: {failure}".strip()
        self.state, self.failures, self.failed_ms = "failed", self.failures + 1, int(time.time() * 1000)
        self.next_try_ms = self.failed_ms + int(pause_s * 1000)
        name = short_name(self._job.definition.name)
        log.warning("%s failed (%d in a row, next try in %.0f s): %s", name, self.failures, pause_s, self.error)
        log.debug("what %s died of:", name, exc_info=failure)

    def _wait(self, seconds: float) -> None:
        if not self._stop.is_set():
            self._wake.wait(seconds)
            self._wake.clear()


@dataclass(slots=True)
class Running:
    """A connector as it is here."""

    connector: Connector
    worker: Worker | None = None
    #: The definition that the worker has; None before the first.
    definition: Definition | None = None
    #: Whether the worker has a definition that was updated since, and is to end.
    stale: bool = False
    #: What is wrong with the definition.
    refused: str = ""
    #: How many records, at which moment, when it was last reported.
    before: tuple[int, float] = (0, 0.0)
    reported_s: float = float("-inf")
    reported: ConnectorProgress | None = field(default=None)


class Runner:
    """`take` first, then `step` now and then, then `close`."""

    def __init__(
        self, place: Place, *, lease_ms: int = LEASE_MS, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._lease_ms = lease_ms
        self._place = place
        self._access = replace(place.access, patience_s=_PATIENCE_S)
        self._now = now
        self._me = uuid4().hex
        self._renewed_s = float("-inf")
        self._running: dict[str, Running] = {}
        #: Removed, and not at their end yet.
        self._ending: dict[str, Running] = {}
        self._swept = False

    @property
    def count(self) -> int:
        """How many connectors are defined, running or not, as far as this has seen."""
        return len(self._running)

    def take(self) -> None:
        """Be the runner; RunnerBusyError while another is."""
        if (self._now() - self._renewed_s) * 4000 < self._lease_ms:
            return
        where = f"process {os.getpid()} on {socket.gethostname()}"
        rest.take_runner(self._access, self._me, where, self._lease_ms)
        self._renewed_s = self._now()

    def step(self) -> bool:
        """Do what is wanted now. False if the broker did not answer: what runs goes on meanwhile."""
        try:
            self.take()
            self._follow(rest.all_connectors(self._access))
            for one in list(self._running.values()):
                self._report(one)
        except (NetworkError, TopicClosedError) as away:
            log.warning("the broker does not answer: %s", away)
            return False
        return True

    def close(self) -> None:
        """Stop everything where it is, and let another run the connectors."""
        running = (*self._running.values(), *self._ending.values())
        workers = [one.worker for one in running if one.worker is not None]
        for worker in workers:
            worker.end()
        for worker in workers:
            worker.join()
        try:
            rest.release_runner(self._access, self._me)
        except WeirError as failure:
            log.warning("the lease runs out by itself: %s", failure)

    def _follow(self, defined: Sequence[DefinedConnector]) -> None:
        wanted = {one.connector.id: one.connector for one in defined}
        for key in [key for key in self._running if key not in wanted]:
            self._ending[key] = self._running.pop(key)
        # What takes its time to end keeps nobody waiting; what it leaves is swept behind it.
        ended = [key for key, one in self._ending.items() if self._end(one)]
        for key in ended:
            del self._ending[key]
        if ended or not self._swept:
            self._sweep()
        for key, connector in wanted.items():
            one = self._running.setdefault(key, Running(connector))
            updated = one.connector.config != connector.config
            one.connector, one.stale = connector, one.stale or updated
            if connector.wanted is ConnectorWanted.STOPPED or one.stale:
                one.stale = not self._end(one) and one.stale
            elif one.worker is None:
                self._start(one)
            if one.worker is not None:
                one.worker.pause(paused=connector.wanted is ConnectorWanted.PAUSED)

    def _start(self, one: Running) -> None:
        try:
            definition = parse(one.connector.name, one.connector.config)
            if one.definition is not None:
                check_update(one.definition, definition)
        except WeirError as wrong:
            one.refused = str(wrong)
            return
        one.definition = definition
        job = Job(self._place, definition, one.connector.id)
        one.refused, one.before = "", (0, self._now())
        one.worker = Worker(job)
        log.info("%s runs", short_name(one.connector.name))

    def _end(self, one: Running) -> bool:
        """Whether it has ended; asked again and again."""
        if one.worker is not None:
            one.worker.end()
            if not one.worker.join(0.0):
                return False
            one.worker = None
        return True

    def _sweep(self) -> None:
        for connector in rest.removed(self._access):
            if connector.id in self._ending:
                continue
            try:
                clean_up(Job(self._place, parse(connector.name, connector.config), connector.id))
            except WeirError as failure:
                log.warning("what %s left stays for now: %s", short_name(connector.name), failure)
                continue
            rest.forget_removed(self._access, connector.id)
        self._swept = True

    def _report(self, one: Running) -> None:
        found = self._progress(one)
        changed = one.reported is None or (found.state, found.failures) != (
            one.reported.state,
            one.reported.failures,
        )
        if not changed and self._now() - one.reported_s < _REPORT_S:
            return
        worker = one.worker
        if worker is not None:
            records, since_s = one.before
            spent_s = max(0.001, self._now() - since_s)
            found = replace(found, records_per_second=round((worker.records - records) / spent_s, 1))
            one.before = worker.records, self._now()
        try:
            rest.report(self._access, one.connector.name, found)
        except BrokerError:  # it was removed a moment ago
            return
        one.reported, one.reported_s = found, self._now()

    def _progress(self, one: Running) -> ConnectorProgress:
        worker = one.worker
        if worker is None:
            state = "failed" if one.refused else "stopped"
            return ConnectorProgress(one.connector.id, state, error=one.refused, failures=int(bool(one.refused)))
        return ConnectorProgress(
            one.connector.id,
            worker.state,
            records=worker.records,
            lag=worker.status.lag,
            dead_letters=worker.status.dead_letters,
            restarts=worker.restarts,
            batch_ms=worker.batch_ms,
            position=worker.status.position,
            error=worker.error,
            failures=worker.failures,
            failed_ms=worker.failed_ms,
            next_try_ms=worker.next_try_ms,
        )


def run(runner: Runner, stopped: Callable[[], bool], *, patience_s: float | None = None) -> None:
    """Step until told to stop, or the broker is away for too long."""
    away_s: float | None = None
    while not stopped():
        if runner.step():
            away_s = None
        else:
            away_s = time.monotonic() if away_s is None else away_s
            if patience_s is not None and time.monotonic() - away_s > patience_s:
                return
        time.sleep(_STEP_S)
