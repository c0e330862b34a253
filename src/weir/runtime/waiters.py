"""Waiting and notification: `Waiters` for a change of state, `PromptFuture` for immediate callbacks, locks by
name.

A stored message passes four layers before its sender gets the acknowledgement. A turn of the loop for each of them
costs more than all their work, and delays the answer behind everything else in these turns. A `PromptFuture` calls
registered callbacks immediately, not a turn later.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar


class Waiters:
    """Tasks that wait for a change. Each task must check its condition after a wake: a wake is a hint, not a
    promise.

    A task that stops waiting (cancelled, timed out) is removed immediately, so a change that never happens costs
    no more than the current waiters.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self) -> None:
        """Wait for the next `wake`, or raise the error of `fail`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds; evaluates it now and after each `wake`."""
        while not holds():
            await self.wait()

    def wake(self) -> None:
        """Wake all current waiters, in order of arrival."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, failure: BaseException) -> None:
        """Raise this error in all current waiters, because the change will never happen."""
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(failure)


T = TypeVar("T")


class PromptFuture(asyncio.Future[T]):
    """A future with prompt callbacks: `set_result` calls those of `tell_promptly` before it returns, in order of
    registration; they are plain functions and must not rely on a turn of the loop in between. Failures, and all
    other callbacks, are delivered as usual."""

    _prompt: list[Callable[["asyncio.Future[T]"], object]] | None = None

    def set_result(self, result: T, /) -> None:
        prompt, self._prompt = self._prompt, None
        if prompt is None:
            super().set_result(result)
            return
        for callback in prompt:
            self.remove_done_callback(callback)
        super().set_result(result)
        for callback in prompt:
            try:
                callback(self)
            except Exception as failure:  # like the loop does: the caller of set_result is not responsible
                self.get_loop().call_exception_handler(
                    {"message": f"{callback!r} failed", "exception": failure, "future": self}
                )

    def add_prompt_callback(self, callback: Callable[["asyncio.Future[T]"], object]) -> None:
        self.add_done_callback(callback)
        if not self.done():
            if self._prompt is None:
                self._prompt = [callback]
            else:
                self._prompt.append(callback)


def tell_promptly(future: "asyncio.Future[T]", callback: Callable[["asyncio.Future[Any]"], object]) -> None:
    """Call a function with the future when it is done: immediately at its result, if it is a `PromptFuture`."""
    if isinstance(future, PromptFuture):
        future.add_prompt_callback(callback)
    else:
        future.add_done_callback(callback)


class NamedLocks:
    """A lock per name, first come, first served."""

    def __init__(self) -> None:
        #: Each lock with its number of holders and waiters.
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        lock, waiting = self._locks.get(name) or (asyncio.Lock(), 0)
        self._locks[name] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._locks[name]
            if waiting == 1:
                del self._locks[name]
            else:
                self._locks[name] = (lock, waiting - 1)
