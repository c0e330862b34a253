"""Ids of ledgers, and of producers: taken from one counter in the metadata, a block at a time."""

import asyncio

from weir.meta import keys
from weir.meta.interfaces import ABSENT, MetaStore
from weir.model.check import check
from weir.model.errors import MetaConflictError, MetaUnavailableError
from weir.model.ids import LedgerId
from weir.runtime.interfaces import Clock

_RETRY_PAUSE_S = 0.1
_ATTEMPTS = 100


class IdBlocks:
    """Gives out ids that nobody else gets. What is left of a block when its holder dies is never used."""

    def __init__(self, clock: Clock, meta: MetaStore, *, size: int, counter: str = keys.LEDGER_COUNTER) -> None:
        self._clock = clock
        self._meta = meta
        self._size = size
        self._counter = counter
        self._next = self._end = 0
        self._refill: asyncio.Task[None] | None = None

    async def take(self) -> LedgerId:
        """The next id."""
        while self._next >= self._end:
            # A finished one may not have been told so yet, and waiting for it would not let that happen.
            if self._refill is None or self._refill.done():
                self._refill = asyncio.get_running_loop().create_task(self._take_block())
                self._refill.add_done_callback(self._refilled)
            await asyncio.shield(self._refill)
        taken = self._next
        self._next += 1
        return LedgerId(taken)

    def _refilled(self, task: "asyncio.Task[None]") -> None:
        if self._refill is task:
            self._refill = None
        if not task.cancelled():
            task.exception()  # whoever waits gets it; perhaps nobody does any more

    async def _take_block(self) -> None:
        """Move the counter by compare-and-set. Not the usual loop: when the outcome is unknown, finding the wanted
        number would not tell whose it is, so that block is left alone and the next one taken."""
        for attempt in range(_ATTEMPTS):
            try:
                found = await self._meta.get(self._counter)
                last = 0 if found is None else int(found.value)
                wanted = last + self._size
                expect = ABSENT if found is None else found.version
                await self._meta.put(self._counter, str(wanted).encode(), expect=expect)
            except MetaConflictError:
                continue
            except MetaUnavailableError:
                if attempt == _ATTEMPTS - 1:
                    raise
                await self._clock.sleep(_RETRY_PAUSE_S)
                continue
            check(last + 1 >= self._end, f"ids are given out once: the counter {self._counter} never goes back")
            self._next, self._end = last + 1, wanted + 1
            return
        raise MetaConflictError(f"the counter {self._counter} changes faster than {_ATTEMPTS} attempts")
