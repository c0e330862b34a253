"""Key-shared subscriptions that retry by a policy: which consumer each message belongs to, by its key.

Messages of a key are delivered one after the other (`MessageGroups`), so a key that moves when consumers come or
go is never with two of them. A message whose consumer has no credit is passed over, and waits for it.
"""

from collections.abc import Sequence

from pyroaring import BitMap64

from weir.broker.api import KeyShared as KeySharedMode
from weir.broker.dispatch.consumer import BrokerConsumer
from weir.broker.dispatch.key_ranges import KeyMap, KeysOf, Ring, split_by_hash
from weir.broker.dispatch.key_shared import key_map_of
from weir.broker.dispatch.selecting import Selecting
from weir.broker.filters.compiled import CompiledFilter
from weir.model.batch import Batch
from weir.model.bits import bits_at, indices_of
from weir.model.errors import SubscriptionBusyError


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
