"""What a topic holds, as administrators list, cancel and release it."""

from collections.abc import AsyncGenerator, Callable

from weir.model.batch import HeldId
from weir.model.held import HeldCount, HeldItem
from weir.stream.holding.area import HoldingArea


class HeldInTopic:
    """Fills `api.HeldMessages`. `before_cancel`: writes down what must be known of a batch that is cancelled."""

    def __init__(self, area: HoldingArea, before_cancel: Callable[[], None]) -> None:
        self._area = area
        self._before_cancel = before_cancel

    def items(self, after: HeldItem | None = None) -> AsyncGenerator[HeldItem, None]:
        return self._area.items(after)

    async def count(self) -> HeldCount:
        return await self._area.count()

    async def cancel(self, held: HeldId) -> None:
        self._before_cancel()
        await self._area.cancel(held)

    async def release(self, held: HeldId) -> int:
        return await self._area.release(held)
