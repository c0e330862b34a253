"""Threads for calls that would block the loop, with lanes that keep the order of one file's operations.

A lane costs one hop to a thread and one back per operation, whatever it does there: callers put everything
that belongs together (a vectored write and its sync) into one operation.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

#: Another way to do an operation that has no result; see `Lane.call`.
Shortcut = Callable[[Callable[[bool], None]], bool]

_Work = tuple[Callable[[], Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class IoThreads:
    """A few daemon threads, started when first needed, shared by all lanes."""

    def __init__(self, threads: int) -> None:
        self._limit = threads
        self._started = 0
        self._lanes: SimpleQueue[Lane] = SimpleQueue()

    def lane(self) -> "Lane":
        """A new queue of operations that run one after the other."""
        return Lane(self._ready)

    def _ready(self, lane: "Lane") -> None:
        if self._started < self._limit:
            self._started += 1
            name = f"weir-io-{self._started}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        self._lanes.put(lane)

    def _serve(self) -> None:
        while True:
            self._lanes.get().run_one()


class Lane:
    """Operations of one file, in the order in which they were called."""

    def __init__(self, ready: Callable[["Lane"], None]) -> None:
        self._ready = ready
        self._work: deque[_Work] = deque()

    @property
    def idle(self) -> bool:
        """Whether everything that was called is done."""
        return not self._work

    def call(self, work: Callable[[], T], *, shortcut: "Shortcut | None" = None) -> "asyncio.Future[T]":
        """Run `work` on a thread, after everything called before it; to be called from the loop.

        If nothing is before it, `shortcut` may do the same without a thread. It says whether it tries, and calls
        what it was given when it knows whether it did; if it did not, a thread does.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._work.append((work, future, loop))
        if len(self._work) == 1 and not (shortcut is not None and shortcut(self._tried)):
            self._ready(self)
        return future

    def _tried(self, did: bool) -> None:
        if did:
            self._finish(self._work[0][1], None, None)
        else:
            self._ready(self)

    def run_one(self) -> None:
        """Called by a thread: do the oldest operation. It stays in the queue while it runs, which is how
        `call` knows that a thread has this lane."""
        work, future, loop = self._work[0]
        try:
            result, failure = work(), None
        except BaseException as raised:
            result, failure = None, raised
        try:
            loop.call_soon_threadsafe(self._finish, future, result, failure)
        except RuntimeError:  # the loop is closed; nobody waits any more
            self._work.clear()

    def _finish(self, future: "asyncio.Future[Any]", result: Any, failure: BaseException | None) -> None:
        self._work.popleft()
        if self._work:
            self._ready(self)
        if future.cancelled():
            return
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(failure)
