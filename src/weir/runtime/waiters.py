"""Tasks that wait for something to change, woken all at once: the one way to do so."""

import asyncio
from collections.abc import Callable


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
