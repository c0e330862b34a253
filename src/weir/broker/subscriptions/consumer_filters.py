"""Consumers of a queue that have filters of their own: which message may go to whom, and what waits for whom.

Nothing is dropped from a queue: a message that no consumer's filter takes stays until one comes that does.
A message whose takers have no credit is passed over, so that it holds up nobody else, and waits for them.

Key-shared subscriptions that retry by a policy: which consumer each message belongs to, by its key.

Messages of a key are delivered one after the other (`MessageGroups`), so a key that moves when consumers come or
go is never with two of them. A message whose consumer has no credit is passed over, and waits for it.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

from pyroaring import BitMap64

from weir.broker.api.consumers import KeyShared as KeySharedMode
from weir.broker.filters.message_filter import CompiledFilter
from weir.broker.subscriptions.consumer import BrokerConsumer
from weir.broker.subscriptions.filter_screen import Screen
from weir.broker.subscriptions.key_shared import key_map_of
from weir.broker.subscriptions.selectors import KeyMap, KeysOf, Ring, split_by_hash
from weir.model.batch import Batch, bits_at, indices_of
from weir.model.errors import SubscriptionBusyError


class Selecting:
    """Of one queue. `screen`: looks into batches before they are handed out. Consumers with equal filters count as
    one: what a message costs depends on the number of filters, and not on the number of consumers."""

    def __init__(self, screen: Screen | None) -> None:
        self._screen = screen
        #: Consumers by their filter; None: those without one.
        self._groups: dict[CompiledFilter | None, dict[BrokerConsumer, None]] = {}
        #: The filters, for the screen, which keeps this.
        self._filters: dict[CompiledFilter, None] = {}
        #: Messages that wait for the credit of consumers that take them, by what `_key` has for these; each
        #: message may wait for several. None of these is empty.
        self._passed: dict[object, BitMap64] = {}
        self._untaken = BitMap64()
        #: The number of the last decision that gave something to a consumer: the one with the lowest is next.
        self._decisions: dict[BrokerConsumer, int] = {}
        self._decision = 0
        if screen is not None:
            screen.others = self._filters

    def __bool__(self) -> bool:
        """Whether any consumer has a filter."""
        return bool(self._filters)

    @property
    def waits(self) -> bool:
        """Whether anything waits for somebody's credit."""
        return bool(self._passed)

    def _key(self, consumer: BrokerConsumer) -> object:
        return consumer.filter

    def joined(self, consumer: BrokerConsumer, wanted: CompiledFilter | None) -> BitMap64:
        """Answers what is ready again, since it may take it."""
        group = self._groups.get(wanted)
        if group is not None:
            group[consumer] = None
            return BitMap64()
        self._groups[wanted] = {consumer: None}
        if wanted is not None:
            self._filters[wanted] = None
        found, self._untaken = self._untaken, BitMap64()
        return found

    def left(self, consumer: BrokerConsumer) -> BitMap64:
        """Answers what is ready again: all that waited for it alone; or all, if no filter is left."""
        wanted = consumer.filter
        self._decisions.pop(consumer, None)
        group = self._groups.get(wanted, {})
        group.pop(consumer, None)
        if group:
            return BitMap64()
        self._groups.pop(wanted, None)
        waited = self._passed.pop(wanted, BitMap64())
        if wanted is not None:
            self._filters.pop(wanted, None)
        if not self._filters:
            return waited | self.clear()
        self._take_out(waited)
        return waited

    def _take_out(self, offsets: BitMap64) -> None:
        """These wait for nobody any more."""
        if offsets:
            for key, waits in list(self._passed.items()):
                waits -= offsets
                if not waits:
                    del self._passed[key]

    def due(self, consumers: Iterable[tuple[BrokerConsumer, int]]) -> BitMap64:
        """What is ready again of what waits for these, who have so much credit."""
        found = BitMap64()
        if not self._passed:
            return found
        credit_of: dict[object, int] = {}
        for consumer, credit in consumers:
            key = self._key(consumer)
            credit_of[key] = credit_of.get(key, 0) + max(0, credit)
        for key, credit in credit_of.items():
            waits = self._passed.get(key)
            if credit and waits:
                found.update(islice(waits, credit))
        self._take_out(found)
        return found

    def oldest(self) -> BitMap64:
        """The first of all that waits, if anything does: for who takes whatever is next."""
        first = [int(offsets.min()) for offsets in (self._untaken, *self._passed.values()) if offsets]
        found = BitMap64([min(first)] if first else [])
        self._untaken -= found
        self._take_out(found)
        return found

    def deal(
        self, batch: Batch, indices: Sequence[int], who: Sequence[BrokerConsumer], credit_of: list[int], turn: int
    ) -> tuple[dict[int, list[int]], int]:
        """Which of the messages go to whom, by places in `who`, and the next turn. The others wait."""
        groups = list(dict.fromkeys((*self._groups, *(consumer.filter for consumer in who))))
        masks = {wanted: self._mask(wanted, batch) for wanted in groups}
        credit = list(credit_of)
        order = sorted(range(len(who)), key=lambda place: who[place].priority)
        mask_of = [masks[consumer.filter] for consumer in who]
        dealt: dict[int, list[int]] = {}
        for index in indices:
            ready = [place for place in order if credit[place] > 0 and _has(mask_of[place], index)]
            if ready:
                best = who[ready[0]].priority
                level = [place for place in ready if who[place].priority == best]
                place = min(level, key=lambda place: (self._decisions.get(who[place], 0), place))
                self._decision += 1
                self._decisions[who[place]] = self._decision
                dealt.setdefault(place, []).append(index)
                credit[place] -= 1
                continue
            offset = batch.base_offset + index
            takers = [wanted for wanted in groups if _has(masks[wanted], index)]
            for wanted in takers:
                self._passed.setdefault(wanted, BitMap64()).add(offset)
            if not takers:
                self._untaken.add(offset)
        return dealt, turn

    def _mask(self, wanted: CompiledFilter | None, batch: Batch) -> int | None:
        return None if wanted is None or self._screen is None else self._screen.mask(wanted, batch)

    def drop(self, first: int, end: int) -> None:
        """These are done with."""
        if self._untaken:
            self._untaken.remove_range(first, end)
        for key, waits in list(self._passed.items()):
            waits.remove_range(first, end)
            if not waits:
                del self._passed[key]

    def clear(self) -> BitMap64:
        """Nothing waits any more; answers what did."""
        found, self._untaken = self._untaken, BitMap64()
        for waits in self._passed.values():
            found |= waits
        self._passed.clear()
        return found


def _has(mask: int | None, index: int) -> bool:
    return mask is None or bool(mask >> index & 1)


class KeyOwners(Selecting):
    """As `Selecting`, with keys in place of filters."""

    def __init__(self, keys_of: KeysOf) -> None:
        super().__init__(None)
        self._keys_of = keys_of
        self._owners: dict[int, BrokerConsumer] = {}
        self._map: KeyMap = Ring()
        self._sticky = False

    def __bool__(self) -> bool:
        return True

    def _key(self, consumer: BrokerConsumer) -> object:
        return consumer

    def joined(self, consumer: BrokerConsumer, wanted: CompiledFilter | None) -> BitMap64:
        """Answers what is ready again: its keys may be this one's now. Raises if it does not fit to the others."""
        mode = consumer.request.key_shared or KeySharedMode()
        if self._owners and mode.sticky != self._sticky:
            raise SubscriptionBusyError("the subscription's consumers divide keys in another way")
        key_map = self._map if self._owners else key_map_of(mode)
        key_map.add(consumer.number, consumer.name, mode.ranges)  # raises if the ranges do not fit
        self._owners[consumer.number] = consumer
        self._map, self._sticky = key_map, mode.sticky
        return self.clear()

    def left(self, consumer: BrokerConsumer) -> BitMap64:
        if self._owners.pop(consumer.number, None) is not None:
            self._map.remove(consumer.number)
        return self.clear()

    def deal(
        self, batch: Batch, indices: Sequence[int], who: Sequence[BrokerConsumer], credit_of: list[int], turn: int
    ) -> tuple[dict[int, list[int]], int]:
        place_of = {consumer.number: place for place, consumer in enumerate(who)}
        credit = list(credit_of)
        dealt: dict[int, list[int]] = {}
        wanted = bits_at(indices, batch.count)
        keys = self._keys_of(batch)
        whole = isinstance(keys, bytes)  # it is not taken apart where there is any credit
        for key_hash, mine in split_by_hash(keys, wanted):
            owner = self._map.owner(key_hash)
            place = None if owner is None else place_of.get(owner)
            begun = False
            for index in indices_of(wanted) if mine is None else mine:
                if place is not None and (credit[place] > 0 or (whole and begun)):
                    begun = True
                    dealt.setdefault(place, []).append(index)
                    credit[place] -= 1
                elif owner is None:
                    self._untaken.add(batch.base_offset + index)
                else:
                    waits = self._passed.setdefault(self._owners[owner], BitMap64())
                    waits.add(batch.base_offset + index)
        for places in dealt.values():
            places.sort()
        return dealt, turn
