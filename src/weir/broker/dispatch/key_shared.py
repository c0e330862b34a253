"""The dispatcher of key-shared subscriptions: each key to its consumer, in order, whoever comes and goes.

A message waits ("parked") for the consumer that its key belongs to, while others are served past it, as far as the
look-ahead goes. A key moves when consumers come or go; its messages then wait ("draining") until its former
consumer has acknowledged, given back or left everything of that key. So per key, nothing overtakes anything.
"""

from collections.abc import Sequence

from weir.broker.api import Delivery
from weir.broker.api import KeyShared as KeySharedMode
from weir.broker.dispatch.consumer import BrokerConsumer
from weir.broker.dispatch.dispatcher import (
    DispatchParts,
    ack_invisible,
    count_again,
    is_on_its_way,
    returned,
    wanted_of,
)
from weir.broker.dispatch.key_ranges import KeysOf, Ranges, Ring, auto_split, split_by_hash, sticky
from weir.broker.dispatch.pieces import Piece, Pieces, piece_at, union_of
from weir.model.batch import Batch
from weir.model.bits import Run
from weir.model.check import check
from weir.model.errors import SubscriptionBusyError


class _Holder:
    """Who has unacknowledged messages of a hash, and how many."""

    __slots__ = ("consumer", "messages")

    def __init__(self, consumer: BrokerConsumer) -> None:
        self.consumer = consumer
        self.messages = 0


class KeyShared:
    def __init__(self, desk: DispatchParts, keys_of: KeysOf) -> None:
        self._desk = desk
        self._keys_of = keys_of
        self._feed = desk.make_feed(self.pump)
        self._parked_feed = desk.make_feed(self.pump)
        self._brake = desk.make_brake(self.pump)
        self._consumers: dict[int, BrokerConsumer] = {}
        self._map: Ring | Ranges = Ring()
        self._mode = KeySharedMode()
        self._holders: dict[int, _Holder] = {}
        self._draining: dict[int, Pieces] = {}
        self._homeless = Pieces()  # of hashes that are nobody's
        self._capped = False
        self.read_at = desk.cursor.mark_delete + 1

    @property
    def consumers(self) -> Sequence[BrokerConsumer]:
        return list(self._consumers.values())

    # --- who there is -----------------------------------------------------------------------------------

    def join(self, consumer: BrokerConsumer) -> None:
        mode = consumer.request.key_shared or KeySharedMode()
        if self._consumers and mode.sticky != self._mode.sticky:
            raise SubscriptionBusyError("the subscription's consumers divide keys in another way")
        joined = {**self._consumers, consumer.number: consumer}
        mapped = map_of(joined, mode.sticky)  # raises if the ranges do not fit
        self._mode = mode
        self._consumers = joined
        self._remap(mapped)
        self.pump()

    def leave(self, consumer: BrokerConsumer, *, failed: bool = True) -> None:
        del self._consumers[consumer.number]
        consumer.take_inbox()
        self._map = map_of(self._consumers, self._mode.sticky)
        for piece in [*self._released(consumer, consumer.pending.clear()), *consumer.parked.clear()]:
            self._homeless.add(piece)
        self._remap(self._map)
        if self._consumers:
            self.pump()
        else:
            self.rewind()

    def _remap(self, mapped: Ring | Ranges) -> None:
        self._map = mapped
        waiting = self._homeless.clear()
        for consumer in self._consumers.values():
            waiting += consumer.parked.clear()
        for pieces in self._draining.values():
            waiting += pieces.clear()
        self._draining.clear()
        for piece in waiting:
            self._park(piece)

    # --- delivering -------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Serve what waits for each consumer; then read on while someone has room and the look-ahead allows."""
        while self._consumers:
            self._capped = False
            hungry = [consumer for consumer in self._consumers.values() if self._room(consumer) > 0]
            if not hungry or not self._brake.free():
                return
            for consumer in hungry:
                self._serve_parked(consumer)
            if not any(self._room(consumer) > 0 for consumer in hungry):
                return
            if self._waiting() >= self._desk.settings.look_ahead or not self._read_on():
                return

    def _room(self, consumer: BrokerConsumer) -> int:
        limits = self._desk.limits
        room = consumer.capacity
        if room > 0 and limits.consumer:
            room = min(room, limits.consumer - consumer.pending.messages)
        if room > 0 and limits.subscription:
            unacked = sum(c.pending.messages for c in self._consumers.values())
            room = min(room, limits.subscription - unacked)
        self._capped |= room <= 0 < consumer.capacity
        return room

    def _waiting(self) -> int:
        parked = sum(consumer.parked.messages for consumer in self._consumers.values())
        return parked + self._homeless.messages + sum(pieces.messages for pieces in self._draining.values())

    def _serve_parked(self, consumer: BrokerConsumer) -> None:
        parked = consumer.parked
        while len(parked) and self._room(consumer) > 0:
            parked.cut(0, self._feed.start_offset)
            first = parked.first()
            batches = self._parked_feed.get(first.base, 1) if first is not None else None
            if first is None or not batches:
                return
            check(batches[0].base_offset == first.base, "a parked piece is read where it was found")
            taken: list[Piece] = []
            for piece in parked.of(first.base):
                if self._room(consumer) <= 0:
                    break
                parked.remove(piece)
                self._hold(consumer, piece)
                taken.append(piece)
            self._give(consumer, batches[0], taken)

    def _read_on(self) -> bool:
        """The next batches of the log, to their consumers or to where they wait; answers whether any came."""
        batches = self._feed.get(self.read_at, sum(max(0, self._room(c)) for c in self._consumers.values()))
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
                self._give(consumer, batch, pieces)
            room = bool(given)
            if not room and self._waiting() >= desk.settings.look_ahead:
                break
            if room and not any(self._room(consumer) > 0 for consumer in self._consumers.values()):
                break
        return True

    def _place(self, piece: Piece, given: dict[BrokerConsumer, list[Piece]]) -> None:
        """A new piece is for its consumer if nothing stands before it, else it waits."""
        owner = self._owner(piece.hash)
        if (
            owner is None
            or self._is_held_elsewhere(piece.hash, owner)
            or len(owner.parked)
            or self._room(owner) <= 0
        ):
            self._park(piece)
        else:
            self._hold(owner, piece)
            given.setdefault(owner, []).append(piece)

    def _park(self, piece: Piece) -> None:
        owner = self._owner(piece.hash)
        if owner is None:
            self._homeless.add(piece)
        elif self._is_held_elsewhere(piece.hash, owner):
            self._draining.setdefault(piece.hash, Pieces()).add(piece)
        else:
            owner.parked.add(piece)

    def _owner(self, key_hash: int) -> BrokerConsumer | None:
        number = self._map.owner(key_hash)
        return None if number is None else self._consumers[number]

    def _is_held_elsewhere(self, key_hash: int, owner: BrokerConsumer) -> bool:
        holder = self._holders.get(key_hash)
        return holder is not None and holder.consumer is not owner and not self._mode.allow_out_of_order

    def _hold(self, consumer: BrokerConsumer, piece: Piece) -> None:
        """The piece is the consumer's from now on."""
        holder = self._holders.get(piece.hash)
        if holder is None or holder.consumer is not consumer:
            holder = self._holders[piece.hash] = _Holder(consumer)
        holder.messages += piece.cost
        consumer.pending.add(piece)
        consumer.charge(piece.cost)

    def _give(self, consumer: BrokerConsumer, batch: Batch, pieces: Sequence[Piece]) -> None:
        """Pieces of one batch that the consumer holds, as one delivery."""
        wanted = union_of(pieces)
        consumer.give(Delivery(batch, wanted, self._desk.counts.get(batch.base_offset, 0)), 0)
        self._brake.spend(sum(piece.cost for piece in pieces), len(batch.payload))

    # --- what comes back --------------------------------------------------------------------------------

    def give_back(self, consumer: BrokerConsumer, deliveries: list[Delivery]) -> None:
        self._take_back(consumer, deliveries)
        self.pump()

    def _take_back(self, consumer: BrokerConsumer, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            back = consumer.pending.cut_bits(delivery.batch.base_offset, delivery.wanted)
            for piece in self._released(consumer, back):
                self._park(piece)

    def redeliver(
        self, consumer: BrokerConsumer, ranges: Sequence[tuple[int, int]] | None, *, delay_ms: int | None = None
    ) -> None:
        back = count_again(self._desk, consumer, returned(consumer, ranges, self._take_back))
        for piece in self._released(consumer, back):
            self._park(piece)
        self.pump()

    def settled(self, consumer: BrokerConsumer | None, ranges: Sequence[Run]) -> bool:
        drained = False
        if consumer is not None:
            others = []
            for first, end in ranges:
                whole = consumer.pending.pop_whole(first, end)
                if whole is None:
                    others.append((first, end))
                else:
                    drained |= self._release(consumer, whole)
            ranges = others
        if ranges:
            for other in self._consumers.values():
                for piece in other.pending.cut_all(ranges):
                    drained |= self._release(other, piece)
                other.parked.cut_all(ranges)
            for pieces in (self._homeless, *self._draining.values()):
                pieces.cut_all(ranges)
        return drained or self._capped

    def _released(self, consumer: BrokerConsumer, pieces: list[Piece]) -> list[Piece]:
        for piece in pieces:
            self._release(consumer, piece)
        return pieces

    def _release(self, consumer: BrokerConsumer, piece: Piece) -> bool:
        """The consumer no longer has the piece; answers whether messages that waited for that can go on."""
        holder = self._holders.get(piece.hash)
        if holder is None or holder.consumer is not consumer:
            return False
        holder.messages -= piece.cost
        if holder.messages > 0:
            return False
        del self._holders[piece.hash]
        draining = self._draining.pop(piece.hash, None)
        if draining is None:
            return False
        for waiting in draining.clear():
            self._park(waiting)
        return True

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
        for consumer in self._consumers.values():
            consumer.take_inbox()
            consumer.pending.clear()
            consumer.parked.clear()
        self._holders.clear()
        self._draining.clear()
        self._homeless.clear()
        self.read_at = self._desk.cursor.mark_delete + 1
        self.pump()

    def close(self) -> None:
        self._brake.close()


def map_of(consumers: dict[int, BrokerConsumer], by_range: bool) -> Ring | Ranges:
    if by_range:
        modes = {number: consumer.request.key_shared or KeySharedMode() for number, consumer in consumers.items()}
        return sticky([(number, mode.ranges) for number, mode in modes.items()])
    names: dict[str, int] = {}
    labelled = []
    for number, consumer in consumers.items():
        names[consumer.name] = seen = names.get(consumer.name, 0) + 1
        labelled.append((number, consumer.name if seen == 1 else f"{consumer.name}/{seen}"))
    return auto_split(labelled)
