"""The processes that run a function for one worker: work is dealt by key, and one that dies is replaced."""

import os
import selectors
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

import msgspec

from weir.functions.executor_process import TOLD_AFTER, read_frame, write_frame
from weir.functions.executor_protocol import Done, Item, LogLine, Ready, Result, Setup, Work
from weir.functions.invocation import States
from weir.functions.values import all_values
from weir.model.errors import FunctionError

#: What a function may see of the environment is all but who the worker is.
_SECRETS = ("WEIR_TOKEN", "WEIR_TOKEN_FILE")
_START_S = 60.0
#: How often it is looked whether a process lives from which nothing comes: one that it started may hold its pipe.
_LOOK_S = 1.0
#: Where answers may be about the first items alone: how many several processes are given first, each; and what
#: they are given next takes about so long.
_FIRST_ITEMS = 32
_SLICE_S = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results in the order of the items: of all of them, or of the first, where that is allowed."""

    results: Sequence[Result]
    states: States
    logs: Sequence[LogLine]


class _Died(Exception):
    """The process is gone, or did not answer in time."""


class _Process:
    def __init__(self, setup: Setup) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in _SECRETS}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "weir.functions.executor_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the worker, which ends it after what it has
        )
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: PT018
        self._in: BinaryIO = self._process.stdin  # type: ignore[assignment]
        # Without its buffer: what lay there would not be seen when more is waited for.
        self._out: BinaryIO = self._process.stdout.raw  # type: ignore[attr-defined]
        self._write(msgspec.msgpack.encode(setup))

    def ready(self) -> Ready:
        return msgspec.msgpack.decode(self._read(_START_S), type=Ready)

    def send(self, work: Work) -> None:
        self._write(msgspec.msgpack.encode(work))

    def receive(self, timeout_s: float | None) -> Done:
        """`timeout_s`: of each call."""
        patience_s = timeout_s and timeout_s * (1 + TOLD_AFTER)
        while not (frame := self._read(patience_s, timeout_s)):
            continue  # it has come to another call
        return msgspec.msgpack.decode(frame, type=Done)

    def _write(self, frame: bytes) -> None:
        try:
            write_frame(self._in, frame)
        except OSError:
            raise _Died(self._why()) from None

    def _read(self, patience_s: float | None, said_s: float | None = None) -> bytes:
        until = None if patience_s is None else time.monotonic() + patience_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            while True:
                left_s = _LOOK_S if until is None else until - time.monotonic()
                ended = self._process.poll() is not None
                if selector.select(0 if ended else max(0.0, min(left_s, _LOOK_S))):
                    break
                if ended:
                    raise _Died(self._why())
                if left_s <= 0:
                    raise _Died(f"the function took longer than {said_s or patience_s:g} s")
        frame = read_frame(self._out)
        if frame is None:
            raise _Died(self._why())
        return frame

    def _why(self) -> str:
        code = self._process.wait()
        return f"the function's process ended {f'by signal {-code}' if code < 0 else f'with code {code}'}"

    def kill(self) -> None:
        self._process.kill()
        self._close()

    def stop(self) -> None:
        """It ends when its pipe does."""
        for pipe in (self._in, self._out):
            pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _close(self) -> None:
        self._process.wait()
        for pipe in (self._in, self._out):
            with suppress(OSError):
                pipe.close()


class Executors:
    """`count` processes. An item goes to the one of its key; those without a key take turns, unless there is
    state, which they share."""

    def __init__(self, setup: Setup, count: int, *, timeout_s: float | None = None) -> None:
        self._take(setup)
        self._count = count
        self._timeout_s = timeout_s
        self._processes: list[_Process | None] = [None] * count
        self._turn = 0
        self._most = _FIRST_ITEMS * count
        self._batch = False
        self.logs: list[LogLine] = []

    def start(self) -> None:
        """All of them; FunctionError if the code cannot be loaded."""
        self._processes = [_Process(self._of(at)) for at in range(self._count)]
        for process in self._processes:
            assert process is not None
            self._wait_ready(process)

    def renew(self, setup: Setup) -> None:
        """From now on this is run, if it is anything new."""
        if setup == self._setup:
            return
        self.close()
        self._take(setup)
        self.start()

    def _take(self, setup: Setup) -> None:
        self._setup = setup
        self._values = all_values(setup.schemas)

    def close(self) -> None:
        for at, process in enumerate(self._processes):
            if process is not None:
                process.stop()
            self._processes[at] = None

    def run(self, items: Sequence[Item], states: Mapping[bytes, bytes | None]) -> Outcome:
        """A result for each item; for the first of them, one at the least, where the setup allows that. A process
        that dies, or takes too long, has its items one by one in a new one: so the one is found that it dies of,
        which has failed."""
        if not self._setup.sliced or self._batch or self._count == 1:
            return self._run(items, states)
        # Several processes do not come equally far in a while: so they are given what they will do in it.
        items, began = items[: self._most], time.monotonic()
        outcome = self._run(items, states)
        took_s, done = time.monotonic() - began, len(outcome.results)
        if took_s > _SLICE_S or done < len(items):
            self._most = max(self._count, round(done / max(1.0, took_s)))
        elif done == self._most and took_s < _SLICE_S / 2:
            self._most *= 2
        return outcome

    def _run(self, items: Sequence[Item], states: Mapping[bytes, bytes | None]) -> Outcome:
        shares: list[list[int]] = [[] for _ in range(self._count)]
        for at, item in enumerate(items):
            shares[self._choose(item)].append(at)
        work = {
            who: Work([items[at] for at in share], self._states(items, share, states))
            for who, share in enumerate(shares)
            if share
        }
        sent = [who for who, one in work.items() if self._send(who, one)]
        results: list[Result | None] = [None] * len(items)
        changed: States = {}
        logs, self.logs = self.logs, []
        for who, one in work.items():
            try:
                if who not in sent:
                    raise _Died("")
                done = self._running(who).receive(self._timeout_s)
            except _Died as died:
                self._bury(who)
                done = self._one_by_one(who, one, str(died))
            for at, result in zip(shares[who], done.results, strict=not self._setup.sliced):
                results[at] = result
            changed |= done.states
            logs += done.logs
        found = [one for one in results if one is not None]
        first = results.index(None) if None in results else len(results)
        if len(found) > first:  # behind the first that was not come to: with its state, which cannot be taken back
            return self._run(items[:first], states)
        return Outcome(found, changed, logs)

    def _one_by_one(self, who: int, work: Work, why: str) -> Done:
        if len(work.items) == 1 and why:
            return Done([Result(error=why)], {}, [])
        done = Done([], {}, [])
        states = dict(work.states)
        until = time.monotonic() + _SLICE_S
        for item in work.items:
            if done.results and self._setup.sliced and time.monotonic() >= until:
                break
            key = self._key(item)
            single = Work([item], {key: states.get(key)} if key in states else {})
            try:
                process = self._running(who)
                process.send(single)
                one = process.receive(self._timeout_s)
            except _Died as died:
                self._bury(who)
                one = Done([Result(error=str(died))], {}, [])
            states |= one.states
            done.results += one.results
            done.states |= one.states
            done.logs += one.logs
        return done

    def _choose(self, item: Item) -> int:
        if self._count == 1:
            return 0
        key = self._key(item)
        if key or item.key is not None or self._setup.stateful:
            return zlib.crc32(key) % self._count
        self._turn = (self._turn + 1) % self._count
        return self._turn

    def _states(self, items: Sequence[Item], share: Sequence[int], states: Mapping[bytes, bytes | None]) -> States:
        if not self._setup.stateful:
            return {}
        keys = {self._key(items[at]) for at in share}
        return {key: states[key] for key in keys if key in states}

    def _key(self, item: Item) -> bytes:
        values = self._values.get(item.topic)
        return item.key or b"" if values is None else values.own_key(item.key, item.value)

    def _send(self, who: int, work: Work) -> bool:
        try:
            self._running(who).send(work)
        except _Died:
            return False
        return True

    def _running(self, who: int) -> _Process:
        process = self._processes[who]
        if process is None:
            process = self._processes[who] = _Process(self._of(who))
            self._wait_ready(process)
        return process

    def _wait_ready(self, process: _Process) -> None:
        try:
            ready = process.ready()
        except _Died as died:
            raise FunctionError(f"the function cannot be loaded: {died}") from None
        self.logs += ready.logs
        if ready.error is not None:
            raise FunctionError(ready.error)
        self._batch = ready.batch

    def _bury(self, who: int) -> None:
        process, self._processes[who] = self._processes[who], None
        if process is not None:
            process.kill()

    def _of(self, at: int) -> Setup:
        return msgspec.structs.replace(self._setup, instance=at)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
