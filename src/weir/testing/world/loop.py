"""A deterministic asyncio event loop: virtual time, no selector, no threads, one order of events.

When nothing is ready, time jumps to the next timer. Calls run in the order in which they became ready, timers
in the order of their time and then of their creation, so one program has one run. Every call belongs to the
incarnation of a node that its context names, and never runs once that incarnation is dead.
"""

import asyncio
import gc
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from types import CoroutineType
from typing import Any, NoReturn, TypeVar, TypeVarTuple

from weir.testing.world.errors import DeadlockError, LivelockError, LoopHeldError
from weir.testing.world.incarnation import Incarnation, current_incarnation

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

#: A `finally` block that awaits swallows one close; one that does so more often than this is left alone.
_CLOSE_ATTEMPTS = 100
_PURGE_AT = 128
#: Cyclic garbage is collected after so many steps, and never in between: when it would strike by itself depends
#: on what ran before in this process, and as it can close an abandoned generator, two runs of one seed would
#: differ.
_COLLECT_EVERY = 500_000
#: So long may one thing hold a loop, in CPU time of its thread, which does not pass while other programs have the
#: processor: no machine is so slow that what is done in turns takes this long.
HELD_LIMIT_S = 2.0
_LOOK_EVERY_S = 0.05


class _Call(asyncio.Handle):
    """A handle made without what only a debugging loop asks for: a run makes tens of thousands."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], loop: "SimLoop", context: Context | None
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None


class _TimedCall(asyncio.TimerHandle):
    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: "SimLoop",
        context: Context | None,
    ) -> None:
        self._when = when
        self._scheduled = False
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of a simulation. `max_steps`, `max_instant_steps` (while time stands still) and
    `max_seconds` (virtual) turn a livelock into an error; `held_limit_s` (of real CPU time), a call that holds
    the loop."""

    def __init__(
        self,
        *,
        max_steps: int = 20_000_000,
        max_instant_steps: int = 1_000_000,
        max_seconds: float = 86_400.0,
        held_limit_s: float = HELD_LIMIT_S,
    ) -> None:
        super().__init__()
        self.set_debug(False)
        self.steps = 0
        self.root = Incarnation("world", 0)
        #: True while what is left of a finished run is being closed; nothing new is scheduled then.
        self.burying = False
        self._incarnations: list[Incarnation] = []
        self._now = 0.0
        self._queue: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._cancelled_timers = 0
        self._task_count = 0
        self._stop_asked = False
        self._max_steps = max_steps
        self._max_instant_steps = max_instant_steps
        self._max_seconds = max_seconds
        self._held_limit_s = held_limit_s
        self._computed = self._look_at = 0.0
        self._asyncgen_owner: dict[int, Incarnation] = {}

    # --- time and calls -----------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds since the world began."""
        return self._now

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Call(callback, args, self, context)
        if not self.burying:
            self._queue.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        when = self._now + delay
        handle = _TimedCall(when, callback, args, self, context)
        if not self.burying:
            self._timer_count += 1
            heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = _TimedCall(when, callback, args, self, context)
        if not self.burying:
            self._timer_count += 1
            heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        # Called by TimerHandle.cancel(). Time-outs are mostly cancelled: do not let them pile up in the heap.
        self._cancelled_timers += 1
        if self._cancelled_timers > _PURGE_AT and 2 * self._cancelled_timers > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer[2].cancelled() and timer[2] is not handle]
            heapify(self._timers)
            self._cancelled_timers = 0

    # --- tasks and generators -----------------------------------------------------------------------------

    def adopt(self, incarnation: Incarnation) -> None:
        """Count an incarnation's tasks among those to report in a deadlock and to bury at the end."""
        self._incarnations.append(incarnation)

    def create_task(
        self,
        coro: Coroutine[Any, Any, _T] | Generator[Any, None, _T],
        *,
        name: object = None,
        context: Context | None = None,
        **_options: Any,
    ) -> asyncio.Task[_T]:
        """As asyncio does, but named by a count of this loop and owned by the incarnation of its context."""
        self._task_count += 1
        task: asyncio.Task[_T] = asyncio.Task(
            coro,
            loop=self,
            name=str(name) if name is not None else f"task-{self._task_count}",
            context=context,
        )
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        owner = current_incarnation.get() if context is None else context.get(current_incarnation)
        (owner or self.root).adopt(task)
        return task

    def run_in_executor(self, *_args: Any) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("there are no threads in a simulation; use weir.runtime")

    def _asyncgen_firstiter(self, generator: AsyncGenerator[Any, Any]) -> None:
        owner = current_incarnation.get()
        if owner is not None:
            self._asyncgen_owner[id(generator)] = owner
        else:
            self._asyncgen_owner.pop(id(generator), None)

    def _asyncgen_finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        # A generator dropped half-way is closed by a task of its owner; a dead owner's just goes.
        owner = self._asyncgen_owner.pop(id(generator), None)
        if self.burying or self.is_closed() or (owner is not None and not owner.alive):
            return
        context = owner.context() if owner is not None else Context()
        self.call_soon(lambda: self.create_task(_close_generator(generator), context=context), context=context)

    # --- running ------------------------------------------------------------------------------------------

    def stop(self) -> None:
        self._stop_asked = True

    def run_until_complete(self, future: Generator[Any, None, _T] | Awaitable[_T]) -> _T:
        """Run until the future is done. DeadlockError if that cannot come, LivelockError past a limit."""
        main = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        main.add_done_callback(lambda _: self.stop())
        self.run_forever()
        if not main.done():
            raise RuntimeError("the loop was stopped before the scenario ended")
        return main.result()

    def run_forever(self) -> None:
        if self.is_closed() or self.is_running() or asyncio._get_running_loop() is not None:
            raise RuntimeError("the loop is closed, or a loop runs already")
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._asyncgen_firstiter, finalizer=self._asyncgen_finalize)
        asyncio._set_running_loop(self)
        self._thread_id = threading.get_ident()
        self._stop_asked = False
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._turn_until_stopped()
            for owner in (self.root, *self._incarnations):
                owner.forget_finished()
        finally:
            if collecting:
                gc.enable()
            self._thread_id = None  # type: ignore[assignment]
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _turn_until_stopped(self) -> None:
        self._look(None)
        queue = self._queue
        last_step = self.steps + self._max_steps
        collect_at = self.steps + _COLLECT_EVERY
        instant_began = self.steps
        while not self._stop_asked:
            if not queue:
                self._jump()
                instant_began = self.steps
            while self._timers and self._timers[0][0] <= self._now:
                queue.append(heappop(self._timers)[2])
            self._turn(queue)
            if self.steps > collect_at:
                collect_at = self.steps + _COLLECT_EVERY
                gc.collect()
                self._look(None)
            if self.steps > last_step:
                raise LivelockError(f"more than {self._max_steps} steps; {self._describe_pending()}")
            if self.steps - instant_began > self._max_instant_steps:
                raise LivelockError(
                    f"more than {self._max_instant_steps} steps while time stood still at {self._now:.6f} s; "
                    + self._describe_pending()
                )

    def _turn(self, queue: deque[asyncio.Handle]) -> None:
        """Run what is ready now, but not what that makes ready. LoopHeldError if a call took too long."""
        for _ in range(len(queue)):
            handle = queue.popleft()
            if handle._cancelled:
                continue
            owner = handle._context.get(current_incarnation)  # type: ignore[attr-defined]
            if owner is not None:
                if not owner.alive:
                    continue
                if owner.paused:
                    owner.held.append(handle)
                    continue
            self.steps += 1
            try:
                handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as failure:
                self.call_exception_handler(
                    {"message": "a callback failed", "exception": failure, "handle": handle}
                )
            if time.monotonic() > self._look_at:
                self._look(handle)

    def _look(self, handle: asyncio.Handle | None) -> None:
        """How much was computed since the last look: at most what came before within the interval, and the call
        just now. The clock on the wall, which is cheaper to ask, says when to look."""
        computed = time.thread_time()
        held_s, self._computed = computed - self._computed, computed
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        if handle is not None and held_s > self._held_limit_s + _LOOK_EVERY_S:
            what = handle._callback  # type: ignore[attr-defined]
            raise LoopHeldError(f"{what!r} held the loop for {held_s:.2f} s of CPU time")

    def _jump(self) -> None:
        """Move time to the next timer."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heappop(timers)
            self._cancelled_timers = max(0, self._cancelled_timers - 1)
        if not timers:
            raise DeadlockError(f"nothing can happen any more at {self._now:.6f} s; {self._describe_pending()}")
        self._now = max(self._now, timers[0][0])
        if self._now > self._max_seconds:
            raise LivelockError(f"more than {self._max_seconds} virtual seconds; {self._describe_pending()}")

    def resume(self, incarnation: Incarnation) -> None:
        """Let a paused incarnation go on with what became due meanwhile."""
        incarnation.paused = False
        self._queue.extend(incarnation.held)
        incarnation.held.clear()

    def _describe_pending(self) -> str:
        waiting = [
            f"{owner.name} {task.get_name()} at {_where(task)}"
            for owner in (self.root, *self._incarnations)
            if owner.alive
            for task in owner.pending_tasks()
        ]
        return "waiting: " + ("; ".join(waiting[:40]) or "nothing") + ("; ..." if len(waiting) > 40 else "")

    # --- the end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Bury every task that is left: its `finally` blocks run, but can reach nothing. Quiet by intention."""
        if self.is_closed():
            return
        if self.is_running():
            raise RuntimeError("a running loop cannot be closed")
        self.burying = True
        self._queue.clear()
        self._timers.clear()
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._bury()
        finally:
            asyncio._set_running_loop(outer)
        super().close()

    def _bury(self) -> None:
        for owner in self._incarnations:
            owner.end()
        # What the dying start runs in no node's context, so the root comes last; its list may grow meanwhile.
        for owner in (*self._incarnations, self.root):
            for task in owner.all_tasks():
                _close_coroutine(task)
        self._incarnations.clear()

    def __del__(self) -> None:
        """A loop that nobody closed goes with the garbage; there is nothing of the system to give back."""


def _close_coroutine(task: asyncio.Task[Any]) -> None:
    """Close a pending task's coroutine for good, the innermost first. The other way round, one that awaits while
    it is closed (an exit stack of several steps) is left half-way by who awaits it, and complains as garbage."""
    for _ in range(_CLOSE_ATTEMPTS):
        awaited: Any = task.get_coro()
        chain = []
        while isinstance(awaited, CoroutineType):
            chain.append(awaited)
            awaited = awaited.cr_await
        if all(_is_closed(coroutine) for coroutine in reversed(chain)):
            return


def _is_closed(coroutine: Coroutine[Any, Any, Any]) -> bool:
    """Whether it came to its end, and does not await something else now."""
    try:
        coroutine.close()
    except RuntimeError as error:
        return "ignored GeneratorExit" not in str(error)
    except BaseException:  # noqa: S110 - whatever dying code raises, nobody is left to hear it
        pass
    return True


async def _close_generator(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()


def _where(task: asyncio.Task[Any]) -> str:
    """File and line of the innermost frame that a task waits in."""
    awaited: Any = task.get_coro()
    place = "?"
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
        if frame is not None:
            place = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)
    return place
