"""The real runtime: asyncio (on uvloop where available), I/O threads, the operating system.

`RealResources` reads the process's resource usage from the operating system. `LoopWatch` measures how long single
callbacks block the event loop: a late timer means that something ran without a pause. The delay counts only as far
as the loop's own thread used CPU: on a machine that is busy with other programs, or was asleep, a timer is late
without a block. A thread samples the loop's stack during a block, so that the log names the function. `stop_at`
kills or stops this process at a step named in the environment: tests use it to inspect the state after a crash
there.
"""

import asyncio
import ctypes
import gc
import logging
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

from weir.runtime.interfaces import LoopHolds, Runtime, Timer
from weir.runtime.real_disk import RealDisk
from weir.runtime.real_net import RealNetwork

_STATM = Path("/proc/self/statm")
_FILES = Path("/proc/self/fd")
#: Where a container's memory limit is written, in its versions; a missing file or "max" is no limit.
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class RealResources:
    """Fills `Resources`; ask from the thread whose loop is meant."""

    def loop_cpu_s(self) -> float:
        return time.thread_time()

    def cpu_s(self) -> float:
        return time.process_time()

    def cores(self) -> int:
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1

    def memory_bytes(self) -> int:
        try:
            return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):  # no Linux: nothing is known without another library
            return 0

    def open_files(self) -> tuple[int, int]:
        try:
            count = len(os.listdir(_FILES))
        except OSError:  # no Linux
            count = 0
        return count, resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def memory_limit_bytes(self) -> int:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        for path in _LIMITS:
            with suppress(OSError, ValueError):
                return min(machine, int(path.read_text(encoding="ascii")))
        return machine


_PAUSE = "pause:"


def stop_at(wanted: str | None) -> Callable[[str], None]:
    """A callback for each step. At `STEP` the process kills itself as by `kill -9`; at `pause:STEP` it stops the
    first time, until it receives SIGCONT."""
    left = [wanted or ""]

    def reached(step: str) -> None:
        if step == left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        elif f"{_PAUSE}{step}" == left[0]:
            left[0] = ""
            os.kill(os.getpid(), signal.SIGSTOP)

    return reached


log = logging.getLogger(__name__)

_INTERVAL_S = 0.1
#: From here on a hold is counted, and its place is in the log.
LONG_S = 0.25
#: Maximum of distinct places in the log.
_MOST_PLACES = 100


class LoopWatch:
    """Watches the loop that runs within `with`, and writes down what it sees."""

    def __init__(self, holds: LoopHolds, *, interval_s: float = _INTERVAL_S, long_s: float = LONG_S) -> None:
        self._holds = holds
        self._interval_s = interval_s
        self._long_s = long_s
        self._named: dict[str, None] = {}
        self._place = ""
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()

    def __enter__(self) -> "LoopWatch":
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._arm()
        self._looker = threading.Thread(target=self._look, name="loop-watch", daemon=True)
        self._looker.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._beat()
        if self._timer is not None:
            self._timer.cancel()
        self._stopped.set()
        self._looker.join()

    def _arm(self) -> None:
        self._due = time.monotonic() + self._interval_s
        self._computed_s = time.thread_time()
        self._place = ""
        self._timer = self._loop.call_later(self._interval_s, self._beat)

    def _beat(self) -> None:
        held_s = min(time.monotonic() - self._due, time.thread_time() - self._computed_s)
        holds = self._holds
        if held_s > holds.longest_s:
            holds.longest_s, holds.longest_at = held_s, self._place
        if held_s >= self._long_s:
            holds.count += 1
            self._tell(held_s, self._place)
        if self._timer is not None:
            self._timer.cancel()
        self._arm()

    def _tell(self, held_s: float, place: str) -> None:
        """Log once per place: a client that found a slow operation would otherwise flood the log."""
        if place not in self._named and len(self._named) < _MOST_PLACES:
            self._named[place] = None
            where = place or "an unknown place"
            log.warning("the event loop was held for %.2f s at %s; everyone waited for it", held_s, where)

    def _look(self) -> None:
        """In a thread of its own: where the loop is, if it is late."""
        while not self._stopped.wait(self._interval_s):
            if not self._place and time.monotonic() - self._due > self._long_s / 2:
                self._place = _place_of(sys._current_frames().get(self._thread_id))


def _place_of(frame: FrameType | None) -> str:
    """The innermost function of Weir's own in a stack."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] == "weir" and name != __name__:
            return f"{name}.{frame.f_code.co_name}"
        frame = frame.f_back
    return ""


T = TypeVar("T")

#: An I/O thread that returns from the kernel waits at most this long for the interpreter, not the default 5 ms,
#: which under load would add to every group commit.
_SWITCH_INTERVAL_S = 0.0005
#: An option of mallopt(3).
_M_MMAP_THRESHOLD = -3
_LARGE_BLOCK_BYTES = 4 * 1024 * 1024

#: What is in flight is many small objects that live for milliseconds and are freed by their reference counts. With
#: Python's own thresholds (700, 10, 10) the cycle collector looks at them again and again, and at all open ledgers
#: with them: 46 % of the samples of a profile with 10,000 ledgers (docs/internals/benchmarks.md).
_COLLECTOR_THRESHOLDS = (50_000, 20, 100)


class RealClock:
    """The operating system's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)


def real_runtime() -> Runtime:
    """This machine, as one node sees it."""
    return Runtime(
        clock=RealClock(),
        net=RealNetwork(),
        disk=RealDisk(),
        rng=random.SystemRandom(),
        resources=RealResources(),
    )


def run(main: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
    """Run a program's main function on the real runtime until it returns."""
    _return_large_blocks()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)
    gc.freeze()  # modules and classes stay for good; the collector need not look at them
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main(real_runtime()))


def _return_large_blocks() -> None:
    """Let glibc return the memory of large messages to the system as soon as they are freed. By default it raises
    its threshold for that to 32 MiB, keeps freed blocks in its heap, and fragments them."""
    try:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
    except (OSError, AttributeError):  # another C library
        return


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not built for this platform: asyncio's own loop does, more slowly
        return None
    return uvloop.new_event_loop
