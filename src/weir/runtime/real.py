"""The real world: asyncio (on uvloop where it is available), I/O threads, the operating system."""

import asyncio
import ctypes
import gc
import random
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from weir.runtime.interfaces import Runtime, Timer
from weir.runtime.real_disk import RealDisk
from weir.runtime.real_net import RealNetwork
from weir.runtime.real_resources import RealResources

T = TypeVar("T")

#: An I/O thread that comes back from the kernel waits at most this long for the interpreter, not the default
#: 5 ms: under load that wait would be added to every group commit.
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
