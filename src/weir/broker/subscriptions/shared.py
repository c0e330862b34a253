"""The dispatcher of shared subscriptions: whole batches, round robin among the consumers that have credit."""

from collections.abc import Collection, Sequence

from weir.broker.api.consumers import Delivery
from weir.broker.subscriptions.consumer import BrokerConsumer
from weir.broker.subscriptions.demand_ring import DemandRing, Line
from weir.broker.subscriptions.dispatcher import (
    DispatchParts,
    ack_invisible,
    count_again,
    is_on_its_way,
    returned,
    settle_own,
    wanted_of,
)
from weir.broker.subscriptions.in_flight import NO_HASH, Piece, Pieces, piece_at
from weir.broker.subscriptions.selectors import share_out
from weir.model.batch import Batch, Run


class Shared:
    def __init__(self, desk: DispatchParts) -> None:
        self._desk = desk
        self._feed = desk.make_feed(self.pump)
        self._replay_feed = desk.make_feed(self.pump)
        self._brake = desk.make_brake(self.pump)
        self._consumers: dict[int, BrokerConsumer] = {}
        self._ring = DemandRing(desk.limits)
        self._again = Pieces()
        self.read_at = desk.cursor.mark_delete + 1

    @property
    def consumers(self) -> Collection[BrokerConsumer]:
        return self._consumers.values()

    @property
    def unacked(self) -> int:
        return self._desk.unacked.messages

    def join(self, consumer: BrokerConsumer) -> None:
        self._consumers[consumer.number] = consumer

    def leave(self, consumer: BrokerConsumer, *, failed: bool = True) -> None:
        del self._consumers[consumer.number]
        self._ring.discard(consumer)
        consumer.take_inbox()
        for piece in consumer.pending.clear():
            self._again.add(piece)
        if self._consumers:
            self.pump()
        else:
            self.rewind()

    # --- delivering -------------------------------------------------------------------------------------

    def demanded(self, consumer: BrokerConsumer) -> None:
        self._ring.add(consumer)
        self.pump()

    def limits_changed(self) -> None:
        for consumer in self._consumers.values():
            self._ring.add(consumer)
        self.pump()

    def pump(self) -> None:
        while self._ring.count and (batches := len(self._again) or self._feed.end_offset - self.read_at) > 0:
            line = self._ring.line(self.unacked, batches)
            if line is None or not self._brake.free():
                return
            if not (self._replay(line) if len(self._again) else self._forward(line)):
                return

    def _forward(self, line: Line) -> bool:
        """Deliver the next batches of the log; return whether the feed had any."""
        left = sum(line.credit)
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
        given = self._share(found, line)
        self.read_at = found[given][0].base_offset if given < len(found) else end
        return True

    def _replay(self, line: Line) -> bool:
        """Redeliver returned messages, the oldest first; return whether the caller should continue."""
        again = self._again
        again.cut(0, self._feed.start_offset)
        first = again.first()
        if first is None:
            return True
        batches = self._replay_feed.get(first.base, sum(line.credit))
        if not batches:
            return False
        found = [
            (batch, piece) for batch in batches for piece in again.overlapping(batch.base_offset, batch.end_offset)
        ]
        for _, piece in found[: self._share(found, line)]:
            again.remove(piece)
        return True

    def _share(self, found: list[tuple[Batch, Piece]], line: Line) -> int:
        if line.more:  # a consumer behind these gets a batch before one of these gets its second
            found = found[: len(line.consumers)]
        chosen, _ = share_out([piece.cost for _, piece in found], line.seats, 0)
        for given, (place, (batch, piece)) in enumerate(zip(chosen, found, strict=False)):
            consumer = line.consumers[place]
            if consumer.capacity <= 0:  # the inbox has reached its byte limit
                return given
            self._deliver(consumer, batch, piece)
            self._ring.served(consumer)
        return len(chosen)

    def _deliver(self, consumer: BrokerConsumer, batch: Batch, piece: Piece) -> None:
        cost = piece.cost
        consumer.pending.add(Piece(piece.base, piece.count, piece.mask))
        consumer.give(Delivery(batch, piece.mask, self._desk.counts.get(piece.base, 0)), cost)
        self._brake.spend(cost, len(batch.payload))

    # --- redelivery -------------------------------------------------------------------------------------

    def give_back(self, consumer: BrokerConsumer, deliveries: list[Delivery]) -> None:
        self._return_unseen(consumer, deliveries)
        self.pump()

    def _return_unseen(self, consumer: BrokerConsumer, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            for piece in consumer.pending.cut_bits(delivery.batch.base_offset, delivery.wanted):
                self._again.add(piece)
        self._ring.add(consumer)

    def redeliver(
        self, consumer: BrokerConsumer, ranges: Sequence[tuple[int, int]] | None, *, delay_ms: int | None = None
    ) -> None:
        for piece in count_again(self._desk, consumer, returned(consumer, ranges, self._return_unseen)):
            self._again.add(piece)
        self._ring.add(consumer)
        self.pump()

    def settled(self, consumer: BrokerConsumer | None, ranges: Sequence[Run]) -> bool:
        held_back = self._ring.holds_back
        if consumer is not None:
            _, ranges = settle_own(consumer, ranges)
            if held_back:
                self._ring.add(consumer)
        if ranges:
            for other in self._consumers.values():
                if len(other.pending) and other.pending.cut_all(ranges):
                    self._ring.add(other)
            self._again.cut_all(ranges)
        return held_back

    def deliver_again(self, batch: Batch, offset: int, *, acked: bool) -> bool | None:
        if offset >= self.read_at or is_on_its_way(self.consumers, offset):
            return False
        held = [consumer for consumer in self.consumers if consumer.pending.cut(offset, offset + 1)]
        if not held and not acked:
            return False
        for consumer in held:
            self._ring.add(consumer)
        self._desk.counts[batch.base_offset] = self._desk.counts.get(batch.base_offset, 0) + 1
        self._again.add(piece_at(batch, [offset - batch.base_offset], NO_HASH))
        self.pump()
        return True

    def rewind(self) -> None:
        for consumer in self._consumers.values():
            consumer.take_inbox()
            consumer.pending.clear()
            self._ring.add(consumer)
        self._again.clear()
        self.read_at = self._desk.cursor.mark_delete + 1
        self.pump()

    def close(self) -> None:
        self._brake.close()
