"""A holding area that is opened when there is something in it: most topics never hold a message."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing

from weir.broker.context import BrokerContext
from weir.broker.ports import Holding
from weir.model.batch import Batch, HeldId, Origin
from weir.model.errors import NotHeldError, StreamClosedError, WeirError
from weir.runtime.tasks import TaskScope
from weir.stream.holding.ledger import LEDGER_KEYS
from weir.stream.log import Stream
from weir.stream.state import StateLog


class LazyHolding:
    """Fills `ports.Holding`. What is held while the area opens waits for it, in order."""

    def __init__(
        self,
        name: str,
        open_area: Callable[[], Awaitable[Holding]],
        *,
        before_cancel: Callable[[], None] = lambda: None,
    ) -> None:
        self._open_area = open_area
        self._before_cancel = before_cancel
        self._area: Holding | None = None
        self._waiting: list[tuple[Batch, int, asyncio.Future[HeldId]]] = []
        self._opening: asyncio.Task[None] | None = None
        self._closed = False
        self._tasks = TaskScope(f"opening of the holding area of {name}")

    @property
    def area(self) -> Holding | None:
        """The area itself, once it is open."""
        return self._area

    async def open(self) -> None:
        """Open it now: a former holder left something."""
        self._area = await self._open_area()

    def hold(self, batch: Batch, due_ms: int) -> "asyncio.Future[HeldId]":
        if self._area is not None:
            return self._area.hold(batch, due_ms)
        held: asyncio.Future[HeldId] = asyncio.get_running_loop().create_future()
        if self._closed:
            held.set_exception(StreamClosedError("the holding area is closed"))
            return held
        self._waiting.append((batch, due_ms, held))
        if self._opening is None:
            self._opening = self._tasks.spawn(self._open_for_waiting(), "open")
        return held

    async def _open_for_waiting(self) -> None:
        try:
            await self.open()
        except WeirError as failed:
            self._refuse(failed)
        finally:
            self._opening = None
        waiting, self._waiting = self._waiting, []
        if self._area is not None:
            for batch, due_ms, held in waiting:
                _chain(self._area.hold(batch, due_ms), held)

    def _refuse(self, failure: WeirError) -> None:
        waiting, self._waiting = self._waiting, []
        for _, _, held in waiting:
            if not held.done():
                held.set_exception(failure)

    @property
    def has_capacity(self) -> bool:
        return self._area is None or self._area.has_capacity

    async def wait_capacity(self) -> None:
        if self._area is not None:
            await self._area.wait_capacity()

    def positions(self) -> dict[int, int]:
        return {} if self._area is None else self._area.positions()

    async def origins_since(self, positions: Mapping[int, int]) -> AsyncGenerator[Origin, None]:
        if self._area is not None:
            async with aclosing(self._area.origins_since(positions)) as origins:
                async for origin in origins:
                    yield origin

    async def held_since(self, positions: Mapping[int, int]) -> AsyncGenerator[tuple[HeldId, Batch], None]:
        if self._area is not None:
            async with aclosing(self._area.held_since(positions)) as all_held:
                async for held in all_held:
                    yield held

    async def cancel(self, held: HeldId) -> None:
        if self._area is None:
            raise NotHeldError("nothing is held")
        self._before_cancel()
        await self._area.cancel(held)

    async def before_trim(self, offset: int) -> None:
        if self._area is not None:
            await self._area.before_trim(offset)

    async def close(self) -> None:
        self._closed = True
        self._refuse(StreamClosedError("the holding area is closed"))
        await self._tasks.close()
        if self._area is not None:
            await self._area.close()


def _chain(source: "asyncio.Future[HeldId]", target: "asyncio.Future[HeldId]") -> None:
    def done(source: "asyncio.Future[HeldId]") -> None:
        failure = source.exception()
        if target.done():
            return
        if failure is not None:
            target.set_exception(failure)
        else:
            target.set_result(source.result())

    source.add_done_callback(done)


async def open_lazily(
    context: BrokerContext, name: str, stream: Stream, state: StateLog, *, before_cancel: Callable[[], None]
) -> LazyHolding | None:
    """A topic's holding area, opened at once if a former holder left something; None where nothing is held."""
    open_area = context.open_holding
    if open_area is None:
        return None
    holding = LazyHolding(name, lambda: open_area(context.streams, stream, state), before_cancel=before_cancel)
    if state.keys(LEDGER_KEYS):
        await holding.open()
    return holding
