"""The dispatcher of key-shared subscriptions: messages of a key go to the owner of the key, in order.

A message waits ("parked") for credit of its key's owner while the dispatcher serves later messages, within the
look-ahead limit. A key moves when consumers join or leave; its messages then wait ("draining") until the former
owner has acknowledged or returned all messages of that key. Messages of one key never overtake each other.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from pyroaring import BitMap

from weir.broker.api.consumers import Delivery
from weir.broker.api.consumers import KeyShared as KeySharedMode
from weir.broker.subscriptions.consumer import BrokerConsumer
from weir.broker.subscriptions.demand_ring import MOST_SEATS, DemandRing
from weir.broker.subscriptions.dispatcher import (
    DispatchParts,
    ack_invisible,
    count_again,
    is_on_its_way,
    returned,
    settle_own,
    wanted_of,
)
from weir.broker.subscriptions.in_flight import Piece, Pieces, Tally, piece_at, union_of
from weir.broker.subscriptions.selectors import HashRange, KeyMap, KeysOf, Ranges, Ring, split_by_hash
from weir.model.batch import Batch, Run
from weir.model.check import check
from weir.model.errors import SubscriptionBusyError


class _Holder:
    """The consumer that has unacknowledged messages of a hash, and how many."""

    __slots__ = ("consumer", "messages")

    def __init__(self, consumer: BrokerConsumer) -> None:
        self.consumer = consumer
        self.messages = 0


class _PiecesByHash:
    """Waiting pieces by their hash."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._pieces: dict[int, Pieces] = {}
        self._hashes = BitMap()

    def add(self, piece: Piece) -> None:
        there = self._pieces.get(piece.hash)
        if there is None:
            there = self._pieces[piece.hash] = Pieces(self._tally)
            self._hashes.add(piece.hash)
        there.add(piece)

    def take(self, key_hash: int) -> list[Piece]:
        there = self._pieces.pop(key_hash, None)
        if there is None:
            return []
        self._hashes.discard(key_hash)
        return there.clear()

    def take_within(self, ranges: Sequence[HashRange]) -> list[Piece]:
        found: list[Piece] = []
        for first, last in ranges if self._hashes else ():
            for key_hash in list(_from_to(self._hashes, first, last)):
                found += self.take(key_hash)
        return found

    def cut_all(self, ranges: Sequence[Run]) -> None:
        for pieces in self._pieces.values():
            pieces.cut_all(ranges)

    def clear(self) -> None:
        for pieces in self._pieces.values():
            pieces.clear()
        self._pieces.clear()
        self._hashes.clear()


def _from_to(hashes: BitMap, first: int, last: int) -> Iterator[int]:
    for key_hash in hashes.iter_equal_or_larger(first):
        if key_hash > last:
            return
        yield key_hash


class KeyShared:
    def __init__(self, desk: DispatchParts, keys_of: KeysOf) -> None:
        self._desk = desk
        self._keys_of = keys_of
        self._feed = desk.make_feed(self.pump)
        self._parked_feed = desk.make_feed(self.pump)
        self._brake = desk.make_brake(self.pump)
        self._consumers: dict[int, BrokerConsumer] = {}
        self._ring = DemandRing(desk.limits)
        self._map: KeyMap = Ring()
        self._mode = KeySharedMode()
        self._holders: dict[int, _Holder] = {}
        #: Counts all waiting messages.
        self._waiting = Tally()
        #: Messages that wait for credit, by the number of the consumer.
        self._parked: dict[int, Pieces] = {}
        #: Consumers that have credit and parked messages.
        self._due: dict[int, BrokerConsumer] = {}
        self._draining = _PiecesByHash(self._waiting)
        self._homeless = _PiecesByHash(self._waiting)  # of hashes without an owner
        self.read_at = desk.cursor.mark_delete + 1

    @property
    def consumers(self) -> Collection[BrokerConsumer]:
        return self._consumers.values()

    @property
    def unacked(self) -> int:
        return self._desk.unacked.messages

    # --- consumers --------------------------------------------------------------------------------------

    def join(self, consumer: BrokerConsumer) -> None:
        mode = consumer.request.key_shared or KeySharedMode()
        if self._consumers and mode.sticky != self._mode.sticky:
            raise SubscriptionBusyError(
                "the subscription's consumers use another key-shared mode (sticky or auto-split)"
            )
        key_map = self._map if self._consumers else key_map_of(mode)
        moved = key_map.add(consumer.number, consumer.name, mode.ranges)  # raises if the ranges conflict
        self._mode, self._map = mode, key_map
        self._consumers[consumer.number] = consumer
        self._parked[consumer.number] = Pieces(self._waiting)
        waiting = self._homeless.take_within(moved.ranges)
        for owner in moved.owners:
            waiting += self._parked[owner].clear()
        self._park_all(waiting)
        self.pump()

    def leave(self, consumer: BrokerConsumer, *, failed: bool = True) -> None:
        del self._consumers[consumer.number]
        self._ring.discard(consumer)
        self._due.pop(consumer.number, None)
        consumer.take_inbox()
        ranges = self._map.remove(consumer.number)
        waiting = self._released(consumer, consumer.pending.clear())
        waiting += self._parked.pop(consumer.number).clear()
        waiting += self._draining.take_within(ranges)  # they may have waited for this consumer
        self._park_all(waiting)
        if self._consumers:
            self.pump()
        else:
            self.rewind()

    def _park_all(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._park(piece)

    # --- delivering -------------------------------------------------------------------------------------

    def demanded(self, consumer: BrokerConsumer) -> None:
        self._asks(consumer)
        self.pump()

    def _asks(self, consumer: BrokerConsumer) -> None:
        """Note that the consumer has credit again."""
        if consumer.number in self._consumers and consumer.demand > 0:
            self._ring.add(consumer)
            if len(self._parked[consumer.number]):
                self._due[consumer.number] = consumer

    def pump(self) -> None:
        """Deliver parked messages; then read on while a consumer has credit and the look-ahead limit allows it."""
        while self._ring.count and (self._due or self.read_at < self._feed.end_offset):
            if not self._ring.has_credit(self.unacked) or not self._brake.free():
                return
            self._serve_due()
            if self._waiting.messages >= self._desk.settings.look_ahead:
                return
            line = self._ring.line(self.unacked, MOST_SEATS)
            if line is None or not self._read_on(sum(line.credit)):
                return

    def limits_changed(self) -> None:
        for consumer in self._consumers.values():
            self._asks(consumer)
        self.pump()

    def _serve_due(self) -> None:
        """Deliver parked messages. A batch that is not in the cache stays parked; its read wakes the pump."""
        missed = 0
        while missed < MOST_SEATS:
            due = list(islice(self._due.items(), missed, missed + MOST_SEATS))
            if not due:
                return
            for number, consumer in due:
                if self._serve_parked(consumer):
                    del self._due[number]
                elif self._ring.capped:
                    return
                else:
                    missed += 1

    def _room(self, consumer: BrokerConsumer) -> int:
        room = self._ring.room(self.unacked)
        credit = self._ring.credit_of(consumer)
        return credit if room is None else max(0, min(credit, room))

    def _serve_parked(self, consumer: BrokerConsumer) -> bool:
        """Return False if a parked batch is not in the cache, or if the subscription is at its unacked limit."""
        parked = self._parked[consumer.number]
        while len(parked) and self._room(consumer) > 0:
            parked.cut(0, self._feed.start_offset)
            first = parked.first()
            if first is None:
                break
            batches = self._parked_feed.get(first.base, 1)
            if not batches:
                return False
            check(batches[0].base_offset == first.base, "the feed returns a parked piece at its offset")
            taken: list[Piece] = []
            for piece in parked.of(first.base):
                if self._room(consumer) <= 0:
                    break
                parked.remove(piece)
                self._assign(consumer, piece)
                taken.append(piece)
            self._deliver(consumer, batches[0], taken)
        return not len(parked) or not self._ring.capped

    def _read_on(self, credit: int) -> bool:
        """Deliver or park the next batches of the log; return whether the feed had any."""
        batches = self._feed.get(self.read_at, credit)
        if not batches:
            return False
        desk = self._desk
        for batch in batches:
            wanted = wanted_of(desk, batch)
            self.read_at = batch.end_offset
            if wanted is not None:
                ack_invisible(desk, batch)
            if wanted == 0:
                continue
            given: dict[BrokerConsumer, list[Piece]] = {}
            for key_hash, at in split_by_hash(self._keys_of(batch), wanted):
                self._place(piece_at(batch, at, key_hash), given)
            for consumer, pieces in given.items():
                self._deliver(consumer, batch, pieces)
            room = bool(given)
            if not room and self._waiting.messages >= desk.settings.look_ahead:
                break
            if room and not self._ring.has_credit(self.unacked):
                break
        return True

    def _place(self, piece: Piece, given: dict[BrokerConsumer, list[Piece]]) -> None:
        """Assign a new piece to the owner of its key, or park it if earlier messages of the key or the credit
        block it."""
        owner = self._owner(piece.hash)
        if (
            owner is None
            or self._is_held_elsewhere(piece.hash, owner)
            or len(self._parked[owner.number])
            or self._room(owner) <= 0
        ):
            self._park(piece)
        else:
            self._assign(owner, piece)
            given.setdefault(owner, []).append(piece)

    def _park(self, piece: Piece) -> None:
        owner = self._owner(piece.hash)
        if owner is None:
            self._homeless.add(piece)
        elif self._is_held_elsewhere(piece.hash, owner):
            self._draining.add(piece)
        else:
            self._parked[owner.number].add(piece)
            if owner.demand > 0:
                self._due[owner.number] = owner

    def _owner(self, key_hash: int) -> BrokerConsumer | None:
        number = self._map.owner(key_hash)
        return None if number is None else self._consumers[number]

    def _is_held_elsewhere(self, key_hash: int, owner: BrokerConsumer) -> bool:
        holder = self._holders.get(key_hash)
        return holder is not None and holder.consumer is not owner and not self._mode.allow_out_of_order

    def _assign(self, consumer: BrokerConsumer, piece: Piece) -> None:
        """Assign the piece to the consumer, and spend its credit."""
        holder = self._holders.get(piece.hash)
        if holder is None or holder.consumer is not consumer:
            holder = self._holders[piece.hash] = _Holder(consumer)
        holder.messages += piece.cost
        consumer.pending.add(piece)
        consumer.charge(piece.cost)

    def _deliver(self, consumer: BrokerConsumer, batch: Batch, pieces: Sequence[Piece]) -> None:
        """Deliver pieces of one batch to the consumer that they are assigned to, as one delivery."""
        wanted = union_of(pieces)
        consumer.give(Delivery(batch, wanted, self._desk.counts.get(batch.base_offset, 0)), 0)
        self._brake.spend(sum(piece.cost for piece in pieces), len(batch.payload))

    # --- redelivery -------------------------------------------------------------------------------------

    def give_back(self, consumer: BrokerConsumer, deliveries: list[Delivery]) -> None:
        self._return_unseen(consumer, deliveries)
        self.pump()

    def _return_unseen(self, consumer: BrokerConsumer, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            back = consumer.pending.cut_bits(delivery.batch.base_offset, delivery.wanted)
            self._park_all(self._released(consumer, back))
        self._asks(consumer)

    def redeliver(
        self, consumer: BrokerConsumer, ranges: Sequence[tuple[int, int]] | None, *, delay_ms: int | None = None
    ) -> None:
        back = count_again(self._desk, consumer, returned(consumer, ranges, self._return_unseen))
        self._park_all(self._released(consumer, back))
        self._asks(consumer)
        self.pump()

    def settled(self, consumer: BrokerConsumer | None, ranges: Sequence[Run]) -> bool:
        drained, held_back = False, self._ring.holds_back
        if consumer is not None:
            mine, ranges = settle_own(consumer, ranges)
            for piece in mine:
                drained |= self._release(consumer, piece)
            if held_back:
                self._asks(consumer)
        if ranges:
            for number, other in self._consumers.items():
                parked = self._parked[number]
                if len(parked):
                    parked.cut_all(ranges)
                if len(other.pending):
                    for piece in other.pending.cut_all(ranges):
                        drained |= self._release(other, piece)
                    self._asks(other)
            self._homeless.cut_all(ranges)
            self._draining.cut_all(ranges)
        return drained or held_back

    def _released(self, consumer: BrokerConsumer, pieces: list[Piece]) -> list[Piece]:
        for piece in pieces:
            self._release(consumer, piece)
        return pieces

    def _release(self, consumer: BrokerConsumer, piece: Piece) -> bool:
        """Remove the piece from the consumer; return whether that released draining messages."""
        holder = self._holders.get(piece.hash)
        if holder is None or holder.consumer is not consumer:
            return False
        holder.messages -= piece.cost
        if holder.messages > 0:
            return False
        del self._holders[piece.hash]
        draining = self._draining.take(piece.hash)
        self._park_all(draining)
        return bool(draining)

    def deliver_again(self, batch: Batch, offset: int, *, acked: bool) -> bool | None:
        if offset >= self.read_at or is_on_its_way(self.consumers, offset):
            return False
        index = offset - batch.base_offset
        held = [
            piece
            for consumer in self.consumers
            for piece in self._released(consumer, consumer.pending.cut(offset, offset + 1))
        ]
        if not held and not acked:
            return False
        self._desk.counts[batch.base_offset] = self._desk.counts.get(batch.base_offset, 0) + 1
        for key_hash, _ in split_by_hash(self._keys_of(batch), 1 << index):
            self._park(piece_at(batch, [index], key_hash))
        self.pump()
        return True

    def rewind(self) -> None:
        self._due.clear()
        for consumer in self._consumers.values():
            consumer.take_inbox()
            consumer.pending.clear()
            self._parked[consumer.number].clear()
            self._asks(consumer)
        self._holders.clear()
        self._draining.clear()
        self._homeless.clear()
        self.read_at = self._desk.cursor.mark_delete + 1
        self.pump()

    def close(self) -> None:
        self._brake.close()


def key_map_of(mode: KeySharedMode) -> KeyMap:
    return Ranges() if mode.sticky else Ring()
