"""Consumers of a queue that have filters of their own: which message may go to whom, and what waits for whom.

Nothing is dropped from a queue: a message that no consumer's filter takes stays until one comes that does.
A message whose takers have no credit is passed over, so that it holds up nobody else, and waits for them.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

from pyroaring import BitMap64

from weir.broker.dispatch.consumer import BrokerConsumer
from weir.broker.filters.compiled import CompiledFilter
from weir.broker.filters.screen import Screen
from weir.model.batch import Batch


class Selecting:
    """Of one queue. `screen`: looks into batches before they are handed out."""

    def __init__(self, screen: Screen | None) -> None:
        self._screen = screen
        self._filters: dict[BrokerConsumer, CompiledFilter] = {}
        #: Messages that wait for the credit of a consumer whose filter takes them; each may wait for several.
        self._passed: dict[BrokerConsumer, BitMap64] = {}
        self._untaken = BitMap64()

    def __bool__(self) -> bool:
        """Whether any consumer has a filter."""
        return bool(self._filters)

    @property
    def waits(self) -> bool:
        """Whether anything waits for somebody's credit."""
        return bool(self._passed) and any(self._passed.values())

    def joined(self, consumer: BrokerConsumer, wanted: CompiledFilter | None) -> BitMap64:
        """Answers what is ready again, since it may take it."""
        if wanted is not None:
            self._filters[consumer] = wanted
            self._watch()
        found, self._untaken = self._untaken, BitMap64()
        return found

    def left(self, consumer: BrokerConsumer) -> BitMap64:
        """Answers what is ready again: all that waited for it; or all, if no filter is left."""
        waited = self._passed.pop(consumer, BitMap64())
        if self._filters.pop(consumer, None) is not None:
            self._watch()
        if not self._filters:
            return waited | self.clear()
        for others in self._passed.values():
            others -= waited
        return waited

    def _watch(self) -> None:
        if self._screen is not None:
            self._screen.others = tuple(dict.fromkeys(self._filters.values()))

    def due(self, consumers: Iterable[tuple[BrokerConsumer, int]]) -> BitMap64:
        """What is ready again of what waits for these, who have so much credit."""
        found = BitMap64()
        for consumer, credit in consumers:
            waits = self._passed.get(consumer)
            if credit > 0 and waits:
                found.update(islice(waits, credit))
        if found:
            for waits in self._passed.values():
                waits -= found
        return found

    def oldest(self) -> BitMap64:
        """The first of all that waits, if anything does: for who takes whatever is next."""
        first = [int(offsets.min()) for offsets in (self._untaken, *self._passed.values()) if offsets]
        found = BitMap64([min(first)] if first else [])
        for offsets in (self._untaken, *self._passed.values()):
            offsets -= found
        return found

    def deal(
        self, batch: Batch, indices: Sequence[int], who: Sequence[BrokerConsumer], credit_of: list[int], turn: int
    ) -> tuple[dict[int, list[int]], int]:
        """Which of the messages go to whom, by places in `who`, and the next turn. The others wait."""
        masks = [self._mask(consumer, batch) for consumer in who]
        waiting = [(consumer, self._mask(consumer, batch)) for consumer in self._passed_over(who)]
        credit = list(credit_of)
        order = sorted(range(len(who)), key=lambda place: who[place].priority)
        dealt: dict[int, list[int]] = {}
        for index in indices:
            takers = [place for place in order if _has(masks[place], index)]
            ready = [place for place in takers if credit[place] > 0]
            if ready:
                best = who[ready[0]].priority
                level = [place for place in ready if who[place].priority == best]
                place = next((one for one in level if one >= turn), level[0])
                dealt.setdefault(place, []).append(index)
                credit[place] -= 1
                turn = (place + 1) % len(who)
                continue
            offset = batch.base_offset + index
            there = [who[place] for place in takers]
            there += [consumer for consumer, mask in waiting if _has(mask, index)]
            for consumer in there:
                self._passed.setdefault(consumer, BitMap64()).add(offset)
            if not there:
                self._untaken.add(offset)
        return dealt, turn

    def _passed_over(self, who: Sequence[BrokerConsumer]) -> list[BrokerConsumer]:
        """Consumers that are not served this time, and may take it another time."""
        return [consumer for consumer in self._filters if consumer not in who]

    def _mask(self, consumer: BrokerConsumer, batch: Batch) -> int | None:
        wanted = self._filters.get(consumer)
        return None if wanted is None or self._screen is None else self._screen.mask(wanted, batch)

    def drop(self, first: int, end: int) -> None:
        """These are done with."""
        for offsets in (self._untaken, *self._passed.values()):
            if offsets:
                offsets.remove_range(first, end)

    def clear(self) -> BitMap64:
        """Nothing waits any more; answers what did."""
        found, self._untaken = self._untaken, BitMap64()
        for waits in self._passed.values():
            found |= waits
        self._passed.clear()
        return found


def _has(mask: int | None, index: int) -> bool:
    return mask is None or bool(mask >> index & 1)
