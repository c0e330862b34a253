"""The names that producers give to what they delay: found again to cancel it.

A held batch says its own name, so nothing more is stored. Names of what this broker held itself are remembered, up
to a bound. The first cancellation that names something else has all that is held looked through, and what is found
there remembered too.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import aclosing

from weir.broker.ports import Holding
from weir.model.batch import Batch, HeldId, Prepared
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
        self._search = asyncio.Lock()  # one look through everything serves all who wait for it
        #: Whether there may be names that are not remembered: a former broker's, or too old ones.
        self.incomplete = False

    def held(self, name: str, place: HeldId) -> None:
        """A batch of this name was held."""
        places = self._places.setdefault(name, [])
        if place not in places:
            places.append(place)
        self._places.move_to_end(name)
        if len(self._places) > self._most:
            self._places.popitem(last=False)
            self.incomplete = True

    def landed(self, batch: Batch, place: HeldId) -> None:
        """The same, if the batch has a name."""
        name = self._name_of(batch)
        if name is not None:
            self.held(name, place)

    async def cancel(self, name: str, holding: Holding) -> int:
        """Cancel whatever is held under the name; answers how many batches."""
        if self.incomplete:
            async with self._search:
                if self.incomplete:
                    await self._index_names(holding, name)
        cancelled = 0
        for place in self._places.pop(name, []):
            try:
                await holding.cancel(place)
                cancelled += 1
            except NotHeldError:
                continue  # released, or cancelled before
        return cancelled

    async def _index_names(self, holding: Holding, wanted: str) -> None:
        """Remember every name in the holding area, as many as may be, and the wanted one last."""
        self.incomplete = False
        found: list[HeldId] = []
        try:
            async with aclosing(holding.held_since({})) as all_held:
                async for place, batch in all_held:
                    if isinstance(batch.origin, Prepared):
                        continue  # a half message is decided, not cancelled
                    name = self._name_of(batch)
                    if name == wanted:
                        found.append(place)
                    elif name is not None:
                        self.held(name, place)
        except BaseException:
            self.incomplete = True
            raise
        for place in found:
            self.held(wanted, place)
