"""The dispatcher of shared subscriptions: whole batches to whoever has credit, in turn."""

from collections.abc import Sequence

from weir.broker.api import Delivery
from weir.broker.dispatch.consumer import BrokerConsumer
from weir.broker.dispatch.decisions import Seat, share_out
from weir.broker.dispatch.dispatcher import (
    DispatchParts,
    ack_invisible,
    count_again,
    is_on_its_way,
    returned,
    wanted_of,
)
from weir.broker.dispatch.pieces import NO_HASH, Piece, Pieces, piece_at
from weir.model.batch import Batch
from weir.model.bits import Run


class Shared:
    def __init__(self, desk: DispatchParts) -> None:
        self._desk = desk
        self._feed = desk.make_feed(self.pump)
        self._replay_feed = desk.make_feed(self.pump)
        self._brake = desk.make_brake(self.pump)
        self._consumers: list[BrokerConsumer] = []
        self._again = Pieces()
        self._turn = 0
        self._capped = False  # a limit on unacknowledged messages held someone back
        self.read_at = desk.cursor.mark_delete + 1

    @property
    def consumers(self) -> Sequence[BrokerConsumer]:
        return self._consumers

    def join(self, consumer: BrokerConsumer) -> None:
        self._consumers.append(consumer)

    def leave(self, consumer: BrokerConsumer, *, failed: bool = True) -> None:
        self._consumers.remove(consumer)
        consumer.take_inbox()
        for piece in consumer.pending.clear():
            self._again.add(piece)
        if self._consumers:
            self.pump()
        else:
            self.rewind()

    # --- delivering -------------------------------------------------------------------------------------

    def pump(self) -> None:
        while self._consumers:
            seats = self._seats()
            if not any(seat.credit > 0 for seat in seats) or not self._brake.free():
                return
            if not (self._replay(seats) if len(self._again) else self._forward(seats)):
                return

    def _seats(self) -> list[Seat]:
        """Each consumer's credit: what it asked for, as far as the limits on unacknowledged messages allow."""
        limits = self._desk.limits
        room = (
            limits.subscription - sum(c.pending.messages for c in self._consumers) if limits.subscription else None
        )
        seats = []
        self._capped = False
        for consumer in self._consumers:
            credit = consumer.capacity
            if credit > 0 and limits.consumer:
                credit = min(credit, limits.consumer - consumer.pending.messages)
            if credit > 0 and room is not None:
                credit = min(credit, room)
            self._capped |= credit <= 0 < consumer.capacity
            seats.append(Seat(consumer.name, consumer.priority, credit))
        return seats

    def _forward(self, seats: list[Seat]) -> bool:
        """Deliver what comes next in the log; answers whether there was anything."""
        left = sum(seat.credit for seat in seats if seat.credit > 0)
        batches = self._feed.get(self.read_at, left)
        if not batches:
            return False
        desk = self._desk
        found: list[tuple[Batch, Piece]] = []
        end = self.read_at
        for batch in batches:
            if left <= 0:
                break
            end = batch.end_offset
            left -= batch.count
            wanted = wanted_of(desk, batch)
            if wanted is not None:
                ack_invisible(desk, batch)
            if wanted != 0:
                found.append((batch, Piece(batch.base_offset, batch.count, wanted)))
        given = self._share(found, seats)
        self.read_at = found[given][0].base_offset if given < len(found) else end
        return True

    def _replay(self, seats: list[Seat]) -> bool:
        """Deliver again what came back, the oldest first; answers whether there is reason to go on."""
        again = self._again
        again.cut(0, self._feed.start_offset)
        first = again.first()
        if first is None:
            return True
        batches = self._replay_feed.get(first.base, sum(seat.credit for seat in seats if seat.credit > 0))
        if not batches:
            return False
        found = [
            (batch, piece) for batch in batches for piece in again.overlapping(batch.base_offset, batch.end_offset)
        ]
        for _, piece in found[: self._share(found, seats)]:
            again.remove(piece)
        return True

    def _share(self, found: list[tuple[Batch, Piece]], seats: list[Seat]) -> int:
        chosen, self._turn = share_out([piece.cost for _, piece in found], seats, self._turn)
        for given, (place, (batch, piece)) in enumerate(zip(chosen, found, strict=False)):
            consumer = self._consumers[place]
            if consumer.capacity <= 0:  # so many bytes are enough for once
                return given
            self._give(consumer, batch, piece)
        return len(chosen)

    def _give(self, consumer: BrokerConsumer, batch: Batch, piece: Piece) -> None:
        cost = piece.cost
        consumer.pending.add(Piece(piece.base, piece.count, piece.mask))
        consumer.give(Delivery(batch, piece.mask, self._desk.counts.get(piece.base, 0)), cost)
        self._brake.spend(cost, len(batch.payload))

    # --- what comes back --------------------------------------------------------------------------------

    def give_back(self, consumer: BrokerConsumer, deliveries: list[Delivery]) -> None:
        self._take_back(consumer, deliveries)
        self.pump()

    def _take_back(self, consumer: BrokerConsumer, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            for piece in consumer.pending.cut_bits(delivery.batch.base_offset, delivery.wanted):
                self._again.add(piece)

    def redeliver(
        self, consumer: BrokerConsumer, ranges: Sequence[tuple[int, int]] | None, *, delay_ms: int | None = None
    ) -> None:
        for piece in count_again(self._desk, consumer, returned(consumer, ranges, self._take_back)):
            self._again.add(piece)
        self.pump()

    def settled(self, consumer: BrokerConsumer | None, ranges: Sequence[Run]) -> bool:
        if consumer is not None:
            ranges = [(first, end) for first, end in ranges if consumer.pending.pop_whole(first, end) is None]
        if ranges:
            for other in self._consumers:
                other.pending.cut_all(ranges)
            self._again.cut_all(ranges)
        return self._capped

    def deliver_again(self, batch: Batch, offset: int, *, acked: bool) -> bool | None:
        if offset >= self.read_at or is_on_its_way(self._consumers, offset):
            return False
        if not any(consumer.pending.cut(offset, offset + 1) for consumer in self._consumers) and not acked:
            return False
        self._desk.counts[batch.base_offset] = self._desk.counts.get(batch.base_offset, 0) + 1
        self._again.add(piece_at(batch, [offset - batch.base_offset], NO_HASH))
        self.pump()
        return True

    def rewind(self) -> None:
        for consumer in self._consumers:
            consumer.take_inbox()
            consumer.pending.clear()
        self._again.clear()
        self.read_at = self._desk.cursor.mark_delete + 1
        self.pump()

    def close(self) -> None:
        self._brake.close()
