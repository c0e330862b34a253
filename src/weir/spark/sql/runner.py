"""The one process that runs the streams: it does what the definitions say, and says how it goes."""

import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

from pyspark.sql import SparkSession

from weir.client import streams as rest
from weir.client.admin import Access
from weir.client.streams import Defined
from weir.model.definitions import SqlStream, StreamProgress, Wanted, table_name
from weir.model.errors import (
    NetworkError,
    NotAuthorisedError,
    SparkJvmError,
    TopicClosedError,
    WeirError,
)
from weir.spark.jvm_state import GATEWAY_FAILURES, jvm_defect
from weir.spark.sql.stream_query import Meter, RunningStream, clean_up, last_batch, start, told, waiting
from weir.spark.tables.names import WeirCluster
from weir.spark.tables.topic_tables import Tables

log = logging.getLogger(__name__)

#: Who is silent for so long is not the runner any more; it asks again well before.
LEASE_MS = 15_000
_RENEW_S = 4.0
_REPORT_S = 2.0
_STEP_S = 0.5
#: How often it is looked how much waits for streams that do not run.
_MEASURE_S = 5.0
#: A stream that failed, now runs for so long and has nothing to do is said to run; its failures are kept.
_SETTLED_S = 20.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
#: How long one question to the broker may take; the next step asks again.
_PATIENCE_S = 2.0


@dataclass(slots=True)
class Running:
    """A stream as it is here."""

    stream: SqlStream
    query: RunningStream | None = None
    #: Why the role that defined it may not have it run any more; empty if it may.
    denied: str = ""
    meter: Meter = field(default_factory=Meter)
    error: str = ""
    #: How often it failed since it last worked, and when it did last and is tried again, as people have it.
    failures: int = 0
    failed_ms: int = 0
    next_try_ms: int = 0
    #: When the query began that runs, and the last batch before it.
    began_s: float = 0.0
    began_batch: int = -1
    #: When to try again, and how long to wait the next time.
    again_s: float = 0.0
    pause_s: float = _FIRST_PAUSE_S
    reported: StreamProgress | None = None
    reported_s: float = 0.0
    #: When to look again how much waits for it, while it does not run; and how much that was.
    measure_s: float = 0.0
    lag: int = 0

    def forgive(self) -> None:
        """It works, or is not to run: how it failed is past."""
        self.error, self.failures, self.failed_ms, self.next_try_ms = "", 0, 0, 0
        self.again_s, self.pause_s = 0.0, _FIRST_PAUSE_S


def check_allowed(access: Access) -> None:
    """NotAuthorisedError unless this user may run the streams: it is better said before Spark has started."""
    if not rest.runner(access).allowed:
        raise NotAuthorisedError(
            "the runner of the streams reads and writes for all of them, and this user may not",
            hint="give it the --token of a superuser: auth.superusers",
        )


class Runner:
    """`take` first, then `step` now and then, then `close`."""

    def __init__(
        self,
        spark: SparkSession,
        place: WeirCluster,
        checkpoints: str,
        *,
        now: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._place = replace(place, access=replace(place.access, patience_s=_PATIENCE_S))
        self._spark = spark
        self._tables = Tables(lambda: spark, place)
        self._checkpoints = Path(checkpoints)
        self._now = now
        self._wall_ms = wall_ms
        self._me = uuid4().hex
        self._renewed_s = float("-inf")
        self._running: dict[str, Running] = {}
        #: Why Spark's JVM can run no query any more.
        self._defect = ""
        #: Whether it was looked for what streams left that were dropped while nobody ran them.
        self._swept = False

    @property
    def count(self) -> int:
        """How many streams are defined, running or not, as far as this has seen."""
        return len(self._running)

    @property
    def failures(self) -> dict[str, str]:
        """Streams that have failed and not finished a batch since, with the cause."""
        return {table_name(one.stream.name): one.error for one in self._running.values() if one.failures}

    def take(self) -> None:
        """Be the runner; RunnerBusyError while another is."""
        if self._now() - self._renewed_s < _RENEW_S:
            return
        where = f"process {os.getpid()} on {socket.gethostname()}"
        rest.take_runner(self._place.access, self._me, where, LEASE_MS)
        self._renewed_s = self._now()

    def step(self) -> bool:
        """Do what is wanted now. False if the broker did not answer: what runs goes on meanwhile. SparkJvmError if
        Spark's JVM can run no query any more; the failure is reported before."""
        answered = True
        try:
            self.take()
            self._follow(rest.all_streams(self._place.access))
            for one in list(self._running.values()):
                self._look(one)
        except (NetworkError, TopicClosedError) as away:
            log.warning("the broker does not answer: %s", away)
            answered = False
        except GATEWAY_FAILURES as failure:
            self._defect = jvm_defect(self._spark, failure)
            if not self._defect:
                raise
        if self._defect:
            raise SparkJvmError(self._defect)
        return answered

    def close(self) -> None:
        """Stop everything where it is, and let another run the streams."""
        for one in self._running.values():
            with suppress(*GATEWAY_FAILURES):  # a JVM that has ended runs no query
                self._stop(one)
        try:
            rest.release_runner(self._place.access, self._me)
        except WeirError as failure:
            log.warning("the lease runs out by itself: %s", failure)

    def checkpoint(self, stream: SqlStream) -> Path:
        return self._checkpoints / f"{stream.name.local}-{stream.id}"

    # --- what is wanted -----------------------------------------------------------------------------------------

    def _follow(self, defined: Sequence[Defined]) -> None:
        wanted = {one.stream.id: one for one in defined}
        gone = [key for key in self._running if key not in wanted]
        for key in gone:
            self._stop(self._running.pop(key))
        if gone or not self._swept:
            self._sweep()
        for key, found in wanted.items():
            stream = found.stream
            one = self._running.setdefault(key, Running(stream))
            one.stream, one.denied = stream, found.denied
            if stream.wanted is Wanted.PAUSED:
                self._stop(one)
                one.forgive()
            elif one.denied and one.query is not None:
                self._stop(one)
                self._failed(one, _not_allowed(one))
            elif one.query is None and self._now() >= one.again_s:
                self._start(one)

    def _start(self, one: Running) -> None:
        self.take()  # many streams take longer to start than a lease lasts
        if one.reported is None:
            self._report(one, StreamProgress(one.stream.id, "starting"))
        try:
            if one.denied:
                raise _not_allowed(one)
            # Spark finds a sink by the session of the calling thread; this makes it be that one.
            self._spark.createDataFrame([], "nothing int")
            folder = self.checkpoint(one.stream)
            folder.mkdir(parents=True, exist_ok=True)
            one.query = start(self._tables, self._place, one.stream, str(folder))
            one.meter = one.meter.again(last_batch(folder))
            one.began_s, one.began_batch, one.next_try_ms = self._now(), one.meter.batch, 0
            log.info("%s runs", table_name(one.stream.name))
        except Exception as failure:  # a text of one tenant must not stop the streams of the others
            self._failed(one, failure)

    def _failed(self, one: Running, failure: BaseException) -> None:
        """It is tried again, less and less often: what it waits for may come."""
        one.query, one.error = None, told(failure)
        self._defect = self._defect or jvm_defect(self._spark, failure)
        if self._defect:
            one.error = f"{self._defect}: {one.error}"
        one.failures, one.failed_ms = one.failures + 1, self._wall_ms()
        one.again_s, one.next_try_ms = self._now() + one.pause_s, one.failed_ms + int(one.pause_s * 1000)
        one.measure_s = 0.0
        shown, pause_s = table_name(one.stream.name), one.pause_s
        one.pause_s = min(_LONGEST_PAUSE_S, one.pause_s * 2)
        log.warning("%s failed (%d in a row, next try in %.0f s): %s", shown, one.failures, pause_s, one.error)
        log.debug("what %s died of:", shown, exc_info=failure)

    def _stop(self, one: Running) -> None:
        if one.query is not None:
            one.query.stop()
            one.meter.look(one.query, one.stream.id, self._now())  # its last batches count
            one.query = None

    def _sweep(self) -> None:
        """Leave nothing of streams that were dropped, here or at the broker, but what they wrote."""
        for stream in rest.dropped(self._place.access):
            clean_up(self._place, stream)
            shutil.rmtree(self.checkpoint(stream), ignore_errors=True)
            rest.forget_dropped(self._place.access, stream.id)
            log.info("%s is dropped", table_name(stream.name))
        self._swept = True

    # --- how it goes --------------------------------------------------------------------------------------------

    def _look(self, one: Running) -> None:
        try:
            if one.query is not None and self._goes_on(one, one.query):
                if self._now() - one.reported_s >= _REPORT_S:
                    self._report(one, self._of_running(one, one.query))
                return
        except GATEWAY_FAILURES as gone:
            self._failed(one, gone)
        self._report(one, self._at_rest(one))

    def _goes_on(self, one: Running, query: RunningStream) -> bool:
        if query.isActive:
            return True
        query.stop()  # a part of it may still run
        one.meter.look(query, one.stream.id, self._now())  # its last batches count
        self._failed(one, query.exception() or RuntimeError("the query ended"))
        return False

    def _of_running(self, one: Running, query: RunningStream) -> StreamProgress:
        """A stream that has failed works again when it has finished a batch. Until then its failures are kept, and
        it is said to run only if it has nothing to do and has not failed for a while."""
        lag = self._waiting(one)
        found = one.meter.look(query, one.stream.id, self._now(), lag)
        if one.failures and one.meter.batch > one.began_batch:
            log.info("%s works again", table_name(one.stream.name))
            one.forgive()
        if not one.failures:
            return found
        idle = not lag and self._now() - one.began_s > _SETTLED_S
        state = "running" if idle else "failed"
        return replace(found, state=state, error=one.error, failures=one.failures, failed_ms=one.failed_ms)

    def _waiting(self, one: Running) -> int:
        """How much waits for it; as last known, if that cannot be said now."""
        with suppress(WeirError, OSError):
            one.lag = waiting(self._place, one.stream, self.checkpoint(one.stream))
        return one.lag

    def _at_rest(self, one: Running) -> StreamProgress:
        """Of a stream that is paused or failed: how far it had come, and how much waits for it."""
        state = "paused" if one.stream.wanted is Wanted.PAUSED else "failed"
        last = one.reported or StreamProgress(one.stream.id, state)
        if self._now() >= one.measure_s:
            one.measure_s = self._now() + _MEASURE_S
            self._waiting(one)
        return replace(
            last,
            state=state,
            rows_per_second=0.0,
            rows=one.meter.rows,
            lag=one.lag,
            batch=one.meter.batch,
            batch_ms=0,
            error=one.error,
            failures=one.failures,
            failed_ms=one.failed_ms,
            next_try_ms=one.next_try_ms,
        )

    def _report(self, one: Running, progress: StreamProgress) -> None:
        if progress == one.reported:
            return
        try:
            rest.report(self._place.access, one.stream.name, progress)
        except (NetworkError, TopicClosedError):
            raise
        except WeirError as refused:  # dropped meanwhile: the next step sees it
            log.info("%s: %s", table_name(one.stream.name), refused)
        one.reported, one.reported_s = progress, self._now()


def _not_allowed(one: Running) -> NotAuthorisedError:
    return NotAuthorisedError(one.denied, hint="grant it, or drop the stream and define it as another role")


def run(
    runner: Runner, stopped: Callable[[], bool], *, patience_s: float | None = None, leave_when_idle: bool = False
) -> None:
    """Until told to stop; or until the broker is away for too long, or there is nothing to run."""
    away_s = idle_s = time.monotonic()
    while not stopped():
        now = time.monotonic()
        if runner.step():
            away_s = now
        elif patience_s is not None and now - away_s > patience_s:
            log.warning("the broker is away for too long")
            return
        if runner.count:
            idle_s = now
        elif leave_when_idle and now - idle_s > _LONGEST_PAUSE_S:
            log.info("there are no streams")
            return
        time.sleep(_STEP_S)
