"""Routing of messages to consumers by consumer filter (queues) or by key (key-shared subscriptions with retries).

A queue drops nothing: a message that matches no consumer's filter stays until a matching consumer joins. If no
matching consumer has credit, the dispatcher skips the message and serves the messages behind it; the skipped
message waits for credit.

For key-shared subscriptions with a retry policy, `KeyOwners` routes each message to the owner of its key.
`MessageGroups` delivers the messages of a key one after the other, so a key that moves on a rebalance is never
with two consumers.
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


class ConsumerFilters:
    """Filter routing of one queue. `screen`: evaluates the filters on a batch before its delivery. Consumers with
    equal filters count as one: the cost of a message depends on the number of filters, not of consumers."""

    def __init__(self, screen: Screen | None) -> None:
        self._screen = screen
        #: Consumers by their filter; None: consumers without a filter.
        self._groups: dict[CompiledFilter | None, dict[BrokerConsumer, None]] = {}
        #: The distinct filters; the screen keeps a reference to this dict.
        self._filters: dict[CompiledFilter, None] = {}
        #: Skipped messages that wait for credit, by the `_key` of the matching consumers; a message may wait under
        #: several keys. No set in it is empty.
        self._passed: dict[object, BitMap64] = {}
        self._untaken = BitMap64()
        #: The number of the last decision that served a consumer: the consumer with the lowest number is next.
        self._decisions: dict[BrokerConsumer, int] = {}
        self._decision = 0
        if screen is not None:
            screen.others = self._filters

    def __bool__(self) -> bool:
        """Whether any consumer has a filter."""
        return bool(self._filters)

    @property
    def waits(self) -> bool:
        """Whether a skipped message waits for credit."""
        return bool(self._passed)

    def _key(self, consumer: BrokerConsumer) -> object:
        return consumer.filter

    def joined(self, consumer: BrokerConsumer, wanted: CompiledFilter | None) -> BitMap64:
        """Return the messages that are ready again because the new consumer may match them."""
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
        """Return the messages that are ready again: those that waited for this consumer alone, or all of them if
        no consumer has a filter any more."""
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
        self._drop_waiting(waited)
        return waited

    def _drop_waiting(self, offsets: BitMap64) -> None:
        """Remove these messages from all waiting sets."""
        if offsets:
            for key, waits in list(self._passed.items()):
                waits -= offsets
                if not waits:
                    del self._passed[key]

    def due(self, consumers: Iterable[tuple[BrokerConsumer, int]]) -> BitMap64:
        """Return the skipped messages that are ready again, given the credit of these consumers."""
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
        self._drop_waiting(found)
        return found

    def oldest(self) -> BitMap64:
        """Return the oldest waiting message, if any, for a consumer that accepts any message."""
        first = [int(offsets.min()) for offsets in (self._untaken, *self._passed.values()) if offsets]
        found = BitMap64([min(first)] if first else [])
        self._untaken -= found
        self._drop_waiting(found)
        return found

    def deal(
        self, batch: Batch, indices: Sequence[int], who: Sequence[BrokerConsumer], credit_of: list[int], turn: int
    ) -> tuple[dict[int, list[int]], int]:
        """Assign messages to consumers, by their index in `who`; return that and the next turn. Other messages
        wait."""
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
        """Forget these offsets: they are settled."""
        if self._untaken:
            self._untaken.remove_range(first, end)
        for key, waits in list(self._passed.items()):
            waits.remove_range(first, end)
            if not waits:
                del self._passed[key]

    def clear(self) -> BitMap64:
        """Empty all waiting sets; return their messages."""
        found, self._untaken = self._untaken, BitMap64()
        for waits in self._passed.values():
            found |= waits
        self._passed.clear()
        return found


def _has(mask: int | None, index: int) -> bool:
    return mask is None or bool(mask >> index & 1)


class KeyOwners(ConsumerFilters):
    """`ConsumerFilters` by key owner instead of by filter."""

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
        """Return the messages that are ready again: the new consumer may own their keys. Raises
        SubscriptionBusyError or HashRangesError if its key-shared mode conflicts with that of the other
        consumers."""
        mode = consumer.request.key_shared or KeySharedMode()
        if self._owners and mode.sticky != self._sticky:
            raise SubscriptionBusyError(
                "the subscription's consumers use another key-shared mode (sticky or auto-split)"
            )
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
        whole = isinstance(keys, bytes)  # one key: the owner with any credit gets the whole batch
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
