"""The runner of functions: a worker process for each that shall run, replaced when it is updated or dies.

It speaks to the broker about definitions alone. A worker that is left over, or believes to run still, is fenced by
its successor; so nothing here has to be exact for each message to count once.
"""

import logging
import os
import platform
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import rmtree
from typing import IO
from uuid import uuid4

from weir.client import functions as rest
from weir.client.admin import Access
from weir.client.functions import Deployed
from weir.functions.options import from_text
from weir.model.definitions import Function, FunctionStats, FunctionWanted
from weir.model.errors import NetworkError, RunnerBusyError, TopicClosedError, WeirError

log = logging.getLogger(__name__)

_LEASE_MS, _RENEW_S = 15_000, 4.0
_LOOK_S = 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
#: One that ran for so long is not one that cannot start.
_SETTLED_S = 30.0
_STOP_S = 30.0
#: Workers that start at the same time, each two processes that load Python: with all of many at once none would be
#: ready in time. One that takes longer than this to start is not waited for.
_STARTING = max(4, 2 * (os.cpu_count() or 1))
_STARTED_S = 30.0
#: Of what a worker, or a function in it, writes without ending a line.
_LINE_CHARACTERS = 10_000
_MODULES = {"light": "weir.functions.worker", "spark": "weir.spark.functions.worker"}


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How workers reach the broker, and where those on Spark keep their checkpoints."""

    kafka: str | None = None
    checkpoints: Path = field(default_factory=lambda: Path.home() / ".local" / "state" / "weir" / "functions")
    verbose: bool = False
    #: Whose functions are run; empty: everybody's.
    deployers: tuple[str, ...] = ()


class _Worker:
    """A process of one version of a function."""

    def __init__(self, function: Function, command: list[str], environment: dict[str, str]) -> None:
        self.function = function
        self.began = time.monotonic()
        #: Whether it may still be on its way to its first message.
        self.starting = True
        self.stopping_since: float | None = None
        self._said: deque[str] = deque(maxlen=20)
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is the runner's to pass on
        )
        assert self._process.stdout is not None
        threading.Thread(target=self._forward, args=(self._process.stdout,), daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def why(self) -> str:
        """The signal that ended it, or the last that it said."""
        code = self._process.returncode
        if code < 0:  # what it said before is not why
            return f"its process ended by signal {-code}"
        return next((line for line in reversed(self._said) if line.strip()), f"its process ended with code {code}")

    def stop(self) -> None:
        """It finishes what is under way; by force if that takes too long."""
        now = time.monotonic()
        if self.stopping_since is None:
            self.stopping_since = now
            self._process.terminate()
        elif now - self.stopping_since > _STOP_S:
            self._process.kill()

    def _forward(self, lines: IO[str]) -> None:
        while line := lines.readline(_LINE_CHARACTERS):
            self._said.append(line.rstrip())
            sys.stderr.write(f"{self.function.name.local}: {line.rstrip()}\n")
        sys.stderr.flush()


@dataclass(slots=True)
class _Trouble:
    """How often the worker of a version died in a row, and when it is tried again."""

    version: int
    failures: int = 0
    next_try: float = 0.0
    #: How often it was started anew, since the runner began.
    restarts: int = 0


class Runner:
    """`run` it until it shall stop; RunnerBusyError if another one runs the functions."""

    def __init__(self, access: Access, options: WorkerOptions) -> None:
        self._access = access
        self._options = options
        self._me = uuid4().hex
        self._where = f"{platform.node()}, process {os.getpid()}"
        self._workers: dict[str, _Worker] = {}
        self._trouble: dict[str, _Trouble] = {}
        self._told: dict[str, tuple[int, str]] = {}
        #: Functions that there were at the last look, running or not.
        self._known: set[str] = set()
        self._renew_at = 0.0

    def take(self) -> None:
        rest.take_runner(self._access, self._me, self._where, _LEASE_MS)
        self._renew_at = time.monotonic() + _RENEW_S

    def run(self, stopped: Callable[[], bool]) -> None:
        """A broker that is away is waited for; workers go on meanwhile as far as they can."""
        while not stopped():
            try:
                if time.monotonic() >= self._renew_at:
                    self.take()
                self.follow(rest.all_functions(self._access))
            except RunnerBusyError:
                raise
            except (NetworkError, TopicClosedError) as away:
                log.info("the broker is away: %s", away)
            _sleep(_LOOK_S, stopped)

    def close(self) -> None:
        """Workers finish what they have; the lease is given back."""
        while self._workers:
            for function_id, worker in list(self._workers.items()):
                if worker.code() is None:
                    worker.stop()
                else:
                    del self._workers[function_id]
            time.sleep(0.02)
        try:
            rest.release_runner(self._access, self._me)
        except WeirError as away:
            log.info("the lease is left to run out: %s", away)

    # --- what shall run -----------------------------------------------------------------------------------------

    def follow(self, deployed: Sequence[Deployed]) -> None:
        """Start, replace and end workers, as is wanted now."""
        functions = {one.function.id: one.function for one in deployed}
        for one in deployed:
            self._hear(one.stats)
        for function_id, worker in list(self._workers.items()):
            self._look_at(function_id, worker, functions.get(function_id))
        for function_id, function in functions.items():
            if function_id in self._workers:
                continue
            trouble = self._trouble_of(function)
            if function.wanted is FunctionWanted.STOPPED:
                self._trouble[function_id] = _Trouble(function.version, restarts=trouble.restarts)
                self._say(function, FunctionStats(function.id, function.version, "stopped", where=self._where))
            elif time.monotonic() >= trouble.next_try and self._starting() < _STARTING:
                self._start(function)
        for gone in [one for one in self._trouble if one not in functions]:
            del self._trouble[gone]
        for deleted in [one for one in self._known if one not in functions and one not in self._workers]:
            rmtree(self._options.checkpoints / deleted, ignore_errors=True)  # its state goes with it
            self._known.remove(deleted)
        self._known |= functions.keys()

    def _trouble_of(self, function: Function) -> _Trouble:
        """That of another version is none of this one, which is tried at once."""
        found = self._trouble.get(function.id)
        if found is None or found.version != function.version:
            restarts = 0 if found is None else found.restarts
            found = self._trouble[function.id] = _Trouble(function.version, restarts=restarts)
        return found

    def _hear(self, stats: FunctionStats | None) -> None:
        """A worker that says that it runs does not start any more."""
        if stats is None or stats.state != "running" or stats.id not in self._workers:
            return
        worker = self._workers[stats.id]
        if stats.version == worker.function.version and stats.where.endswith(f" {worker.pid}"):
            worker.starting = False

    def _starting(self) -> int:
        since = time.monotonic() - _STARTED_S
        return sum(worker.starting and worker.began > since for worker in self._workers.values())

    def _look_at(self, function_id: str, worker: _Worker, wanted: Function | None) -> None:
        code = worker.code()
        if code is not None:
            del self._workers[function_id]
            if wanted is not None and worker.stopping_since is None:
                self._failed(worker)
            return
        if wanted is None or wanted.wanted is FunctionWanted.STOPPED or wanted.version != worker.function.version:
            worker.stop()
        elif time.monotonic() - worker.began > _SETTLED_S:
            before = self._trouble[function_id]
            self._trouble[function_id] = _Trouble(before.version, restarts=before.restarts)

    def _start(self, function: Function) -> None:
        self._told.pop(function.id, None)
        if self._options.deployers and function.role not in self._options.deployers:
            self._fail(
                function, f"role {function.role!r} has deployed it, and this runner runs code of other roles"
            )
            return
        try:
            on = from_text(function.options).on
        except WeirError as wrong:
            self._fail(function, str(wrong))
            return
        options = self._options
        command = [sys.executable, "-m", _MODULES[on], str(function.name), "--url", self._access.url]
        for word, value in (
            ("--ca", self._access.ca),
            ("--cert", self._access.certificate),
            ("--cert-key", self._access.key),
            ("--kafka", options.kafka),
        ):
            command += [] if value is None else [word, value]
        command += ["--level", "INFO"] if options.verbose else []
        command += ["--restarts", str(self._trouble[function.id].restarts)]
        if on == "spark":
            command += ["--checkpoints", str(options.checkpoints)]
        # The token goes by the environment: a command line can be seen by everybody on the machine.
        environment = {} if self._access.token is None else {"WEIR_TOKEN": self._access.token}
        try:
            self._workers[function.id] = _Worker(function, command, environment)
        except OSError as failure:
            self._fail(function, f"its process cannot be started: {failure}")
            return
        log.info("%s, version %s, is started", function.name.local, function.version)

    def _failed(self, worker: _Worker) -> None:
        self._fail(worker.function, worker.why())

    def _fail(self, function: Function, why: str) -> None:
        trouble = self._trouble_of(function)
        trouble.failures += 1
        trouble.restarts += 1
        pause_s = min(_FIRST_PAUSE_S * 2 ** min(trouble.failures - 1, 10), _LONGEST_PAUSE_S)
        trouble.next_try = time.monotonic() + pause_s
        log.warning("%s has failed, and is tried again in %.0f s: %s", function.name.local, pause_s, why)
        next_ms = time.time_ns() // 1_000_000 + round(1000 * pause_s)
        self._report(
            function,
            FunctionStats(
                function.id,
                function.version,
                "failed",
                error=why,
                failures=trouble.failures,
                restarts=trouble.restarts,
                next_try_ms=next_ms,
                where=self._where,
            ),
        )

    def _say(self, function: Function, stats: FunctionStats) -> None:
        """Once for each version and state."""
        if self._told.get(function.id) != (stats.version, stats.state):
            self._report(function, stats)
            self._told[function.id] = (stats.version, stats.state)

    def _report(self, function: Function, stats: FunctionStats) -> None:
        try:
            found = rest.get_function(self._access, function.name).stats
            if found is not None and found.id == function.id:  # what its worker counted last stays to be seen
                stats = _with_counts(stats, found)
            rest.report(self._access, function.name, stats)
        except WeirError as refused:
            log.debug("stats of %s are not taken: %s", function.name.local, refused)


def _with_counts(stats: FunctionStats, last: FunctionStats) -> FunctionStats:
    names = ("received", "sent", "failed", "retried", "dead", "lag", "state_keys", "state_bytes")
    kept = {name: getattr(last, name) for name in names}
    return replace(stats, **kept, restarts=stats.restarts or last.restarts, error=stats.error or last.error)


def _sleep(seconds: float, stopped: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not stopped() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.05))
