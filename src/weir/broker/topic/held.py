"""What a topic holds until its moment, as administrators list, cancel and release it."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol

from weir.model.batch import HeldId
from weir.model.errors import NotHeldError
from weir.model.held import HeldCount, HeldItem
from weir.stream.holding.area import HoldingArea


class DecidedElsewhere(Protocol):
    """What is held but waits for a decision, which is made in another place."""

    def __contains__(self, held: HeldId) -> bool: ...

    @property
    def counts_held(self) -> HeldCount: ...


class HeldInTopic:
    """Fills `api.HeldMessages`. `half`: what it leaves alone. `before_cancel`: writes down what must be known of a
    batch that is cancelled."""

    def __init__(self, area: HoldingArea, half: DecidedElsewhere, before_cancel: Callable[[], None]) -> None:
        self._area = area
        self._half = half
        self._before_cancel = before_cancel

    async def items(self, after: HeldItem | None = None) -> AsyncGenerator[HeldItem, None]:
        async with aclosing(self._area.items(after)) as items:
            async for item in items:
                if item.id not in self._half:
                    yield item

    async def count(self) -> HeldCount:
        count, half = await self._area.count(), self._half.counts_held
        return HeldCount(max(0, count.batches - half.batches), max(0, count.messages - half.messages))

    async def cancel(self, held: HeldId) -> None:
        self._check(held)
        self._before_cancel()
        await self._area.cancel(held)

    async def release(self, held: HeldId) -> int:
        self._check(held)
        return await self._area.release(held)

    def _check(self, held: HeldId) -> None:
        if held in self._half:
            raise NotHeldError(
                f"{held.ledger}:{held.entry} is a half message, which waits for a decision",
                hint="weir half commit|rollback decides it",
            )
