"""The names that producers give to what they delay: found again to cancel it.

A held batch says its own name, so nothing more is stored. Names of what this broker held itself are remembered, up
to a bound; whatever else a cancellation names is looked for among all that is held.
"""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import aclosing

from weir.broker.ports import Holding
from weir.model.batch import Batch, HeldId
from weir.model.errors import NotHeldError

#: Names that are remembered per topic.
MOST_NAMES = 100_000

#: The name in a held batch, if it has one.
NameOf = Callable[[Batch], str | None]


class HeldNames:
    """Of one topic."""

    def __init__(self, name_of: NameOf, *, most: int = MOST_NAMES) -> None:
        self._name_of = name_of
        self._most = most
        self._places: OrderedDict[str, list[HeldId]] = OrderedDict()
        #: Whether there may be names that are not remembered: a former broker's, or too old ones.
        self.incomplete = False

    def held(self, name: str, place: HeldId) -> None:
        """A batch of this name was held."""
        self._places.setdefault(name, []).append(place)
        self._places.move_to_end(name)
        if len(self._places) > self._most:
            self._places.popitem(last=False)
            self.incomplete = True

    async def cancel(self, name: str, holding: Holding) -> int:
        """Cancel whatever is held under the name; answers how many batches."""
        places = self._places.pop(name, [])
        if self.incomplete:
            places += [place for place in await self._search(name, holding) if place not in places]
        cancelled = 0
        for place in places:
            try:
                await holding.cancel(place)
                cancelled += 1
            except NotHeldError:
                continue  # released, or cancelled before
        return cancelled

    async def _search(self, name: str, holding: Holding) -> list[HeldId]:
        async with aclosing(holding.held_since({})) as all_held:
            return [place async for place, batch in all_held if self._name_of(batch) == name]
