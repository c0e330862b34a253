"""An event loop that can tell when nothing is left to do: nothing is ready, nothing has come, only timers wait."""

import asyncio
import selectors

#: With clients that send without end a loop is never idle; so many turns must do.
_MOST_TURNS = 10_000


class _IdleSelector(selectors.DefaultSelector):
    """Asked to wait, it is the loop's way to say that nothing is ready. (The selector is the documented parameter
    of asyncio's loop, so this holds for every version of Python.)"""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[asyncio.Future[None]] = []
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not self.waiting:
            return super().select(timeout)
        self._turns += 1
        found = super().select(0)
        if (timeout == 0 or found) and self._turns < _MOST_TURNS:
            return found
        self._turns = 0
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
        return found


class IdleLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._idle = _IdleSelector()
        super().__init__(self._idle)

    async def settled(self) -> None:
        """Wait until everything that can be done without time passing is done. Disks must not have threads of
        their own for it (`ScratchDisk`)."""
        done = self.create_future()
        self._idle.waiting.append(done)
        await done
