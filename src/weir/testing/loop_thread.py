"""An event loop on a thread of its own, for a whole node within a test; watched, so that nothing holds it."""

import asyncio
import gc
import selectors
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from weir.runtime.interfaces import LoopHolds
from weir.runtime.real import LoopWatch
from weir.testing.world.errors import LoopHeldError
from weir.testing.world.loop import HELD_LIMIT_S

Call = Callable[[], Coroutine[Any, Any, Any]]

_STOP_S = 120.0

_running: "weakref.WeakSet[LoopThread]" = weakref.WeakSet()


class TurnMeter(selectors.DefaultSelector):
    """Measures the turns of a loop: all that the loop runs between two looks at its sockets, in CPU time of its
    thread. The time of the garbage collector is left out: it depends on all that the process has in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_s = 0.0
        self._began_s: float | None = None
        self._collecting_s = 0.0
        self._thread = 0
        gc.callbacks.append(self._collects)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._began_s is not None:
            self.longest_s = max(self.longest_s, time.thread_time() - self._began_s)
        self._thread = threading.get_ident()
        ready = super().select(timeout)
        self._began_s = time.thread_time()
        return ready

    def close(self) -> None:
        gc.callbacks.remove(self._collects)
        super().close()

    def _collects(self, phase: str, _info: dict[str, int]) -> None:
        if threading.get_ident() != self._thread or self._began_s is None:
            return
        if phase == "start":
            self._collecting_s = time.thread_time()
        else:
            self._began_s += time.thread_time() - self._collecting_s


class LoopThread:
    """Runs from the start until `stop`, which raises if the loop was held."""

    def __init__(self, *, held_limit_s: float = HELD_LIMIT_S) -> None:
        self.holds = LoopHolds()
        self._held_limit_s = held_limit_s
        self.turns = TurnMeter()
        self._loop = asyncio.SelectorEventLoop(self.turns)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._watch = LoopWatch(self.holds)
        self.call(self._begin)
        _running.add(self)

    def call(self, work: Call, timeout_s: float = _STOP_S) -> Any:
        """Run a coroutine on the loop, and wait for it."""
        return self.begin(work).result(timeout_s)

    def begin(self, work: Call) -> "Future[Any]":
        """Run a coroutine on the loop, without waiting for it."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def check(self) -> None:
        """LoopHeldError if the loop was held for longer than the limit since the last look."""
        longest_s, where = self.holds.longest_s, self.holds.longest_at
        self.holds.longest_s, self.holds.longest_at = 0.0, ""
        if longest_s > self._held_limit_s:
            raise LoopHeldError(f"the loop was held for {longest_s:.2f} s of CPU time at {where or 'some place'}")

    def stop(self) -> None:
        self.call(self._end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)
        self._loop.close()
        _running.discard(self)
        self.check()

    async def _begin(self) -> None:
        self._watch.__enter__()

    async def _end(self) -> None:
        self._watch.__exit__(None, None, None)


def check_loops() -> None:
    """LoopHeldError for a loop of this process that was held."""
    for loop in list(_running):
        loop.check()
