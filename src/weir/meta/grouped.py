"""Creations that come at the same time go to the metadata store together: one request, one sync."""

import asyncio

from weir.meta.interfaces import Creation, MetaStore
from weir.model.errors import MetaError, MetaUnavailableError
from weir.runtime import Clock
from weir.runtime.tasks import TaskScope

#: Creations of one request, and requests at once.
_AT_ONCE = 512
_REQUESTS = 4


class GroupedCreations:
    """While requests are under way, those who come form the next."""

    def __init__(self, meta: MetaStore, clock: Clock) -> None:
        self._meta = meta
        self._clock = clock
        self._tasks = TaskScope("creations")
        self._waiting: dict[str, tuple[Creation, asyncio.Future[int]]] = {}
        self._busy = 0
        #: One waits for the end of the turn to take all that came in it.
        self._gathering = False

    async def create(self, creation: Creation) -> int:
        """The version of the key that was made; ABSENT if it was there. MetaUnavailableError: it may have been
        made."""
        while (same := self._waiting.get(creation.key)) is not None:
            await asyncio.wait([same[1]])  # one request names a key once
        made: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[creation.key] = (creation, made)
        if self._busy < _REQUESTS and not self._gathering:
            self._gathering = True
            self._busy += 1
            self._tasks.spawn(self._run(), "creations")
        return await made

    async def _run(self) -> None:
        """What came in the same turn goes with the first of it."""
        try:
            await self._clock.sleep(0)
            self._gathering = False
            while self._waiting:
                keys = list(self._waiting)[:_AT_ONCE]
                await self._make([self._waiting.pop(key) for key in keys])
        finally:
            self._gathering = False
            self._busy -= 1

    async def _make(self, some: list[tuple[Creation, asyncio.Future[int]]]) -> None:
        try:
            versions = await self._meta.create_many([creation for creation, _ in some])
        except MetaError as failure:
            for _, made in some:
                if not made.done():
                    made.set_exception(type(failure)(failure.what, hint=failure.hint))
        except asyncio.CancelledError:
            for _, made in some:
                if not made.done():
                    made.set_exception(MetaUnavailableError("the broker is going down"))
            raise
        else:
            for (_, made), version in zip(some, versions, strict=True):
                if not made.done():
                    made.set_result(version)

    async def close(self) -> None:
        await self._tasks.close()
        for _, made in self._waiting.values():
            made.cancel()
