"""A future whose result is told at once, to those who ask for that, and not a turn of the loop later.

What is stored goes up through four layers before its sender is told. A turn of the loop for each of them costs
more than all that they do, and holds up the answer behind whatever else these turns bring.

Tasks that wait for something to change, woken all at once: the one way to do so.

Locks by name: there while somebody has one or waits for it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar


class Waiters:
    """Whoever is woken looks for itself whether what it waits for has come: a wake is a hint, never a promise.

    A task that stops waiting (cancelled, timed out) is forgotten at once, so a change that never comes costs
    no more than those who wait for it now.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self) -> None:
        """Wait for the next `wake`, or raise what `fail` was given."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is looked at now and after each `wake`."""
        while not holds():
            await self.wait()

    def wake(self) -> None:
        """Wake everyone who waits now, in the order in which they came."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, failure: BaseException) -> None:
        """Everyone who waits now gets this error: what they wait for never comes."""
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(failure)


T = TypeVar("T")


class PromptFuture(asyncio.Future[T]):
    """A result calls those of `tell_promptly` before `set_result` returns, in the order in which they asked; they
    are plain functions that may not count on a turn in between. Failures, and all others, take the usual way."""

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
            except Exception as failure:  # as the loop would: it is no business of whoever has the result
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
    """Have a function called with the future when it is done: at once with its result, if it is a prompt one."""
    if isinstance(future, PromptFuture):
        future.add_prompt_callback(callback)
    else:
        future.add_done_callback(callback)


class NamedLocks:
    """One at a time for each name, in the order of asking."""

    def __init__(self) -> None:
        #: With how many have it or wait for it.
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
