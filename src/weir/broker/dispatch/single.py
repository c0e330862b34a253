"""The dispatcher of exclusive and failover subscriptions: one consumer at a time, in the order of the log."""

from collections.abc import Sequence

from weir.broker.api import Delivery
from weir.broker.dispatch.consumer import BrokerConsumer
from weir.broker.dispatch.decisions import Seat, pick_active, take_whole
from weir.broker.dispatch.dispatcher import DispatchParts, ack_invisible, is_on_its_way, wanted_of
from weir.model.batch import Batch
from weir.model.bits import Run
from weir.model.errors import SubscriptionBusyError

#: Redelivery counts go no higher: a message that is given back for ever must not cost more each time.
_MOST_REWINDS = 1000


class SingleActive:
    """`failover`: standbys may wait, and one of them takes over."""

    def __init__(self, desk: DispatchParts, *, failover: bool) -> None:
        self._desk = desk
        self._failover = failover
        self._feed = desk.make_feed(self.pump)
        self._brake = desk.make_brake(self.pump)
        self._consumers: list[BrokerConsumer] = []
        self._active: BrokerConsumer | None = None
        #: Where the reading stood each time it went back: how often an offset was delivered before.
        self._rewinds: list[int] = []
        self.read_at = 0
        self._start_over()

    @property
    def consumers(self) -> Sequence[BrokerConsumer]:
        return self._consumers

    def join(self, consumer: BrokerConsumer) -> None:
        if self._consumers and not self._failover:
            raise SubscriptionBusyError(f"exclusive consumer {self._consumers[0].name!r} is connected already")
        self._consumers.append(consumer)
        self._choose()
        consumer.set_active(consumer is self._active)

    def leave(self, consumer: BrokerConsumer, *, failed: bool = True) -> None:
        self._consumers.remove(consumer)
        consumer.take_inbox()
        if consumer is self._active:
            self._active = None
        self._choose()

    def _choose(self) -> None:
        """Whoever becomes active begins where the cursor is: what the one before had is redelivered."""
        seats = [Seat(c.name, c.priority, 0) for c in self._consumers]
        place = pick_active(seats, self._desk.partition)
        chosen = None if place is None else self._consumers[place]
        if chosen is self._active:
            return
        if self._active is not None:
            self._active.take_inbox()
            self._active.set_active(False)
        self._active = chosen
        self._start_over()
        if chosen is not None:
            chosen.set_active(True)
            self.pump()

    def pump(self) -> None:
        consumer = self._active
        while consumer is not None and consumer.capacity > 0 and self._brake.free():
            batches = self._feed.get(self.read_at, consumer.capacity)
            if not batches:
                return
            self._give(consumer, batches)

    def _give(self, consumer: BrokerConsumer, batches: list[Batch]) -> None:
        desk = self._desk
        for batch in batches[: take_whole([batch.count for batch in batches], consumer.capacity)]:
            if consumer.capacity <= 0:  # so many bytes are enough for once
                return
            if batch.end_offset <= self.read_at:
                continue
            if batch.base_offset > self.read_at:  # trimmed or compacted away: nobody can acknowledge it
                desk.cursor.ack(self.read_at, batch.base_offset)
            wanted = wanted_of(desk, batch)
            self.read_at = batch.end_offset
            if wanted is not None:
                ack_invisible(desk, batch)
            if wanted == 0:
                continue
            cost = batch.count if wanted is None else wanted.bit_count()
            consumer.give(Delivery(batch, wanted, self._times(batch.base_offset)), cost)
            self._brake.spend(cost, len(batch.payload))

    def _times(self, base: int) -> int:
        return sum(base < rewind for rewind in self._rewinds) if self._rewinds else 0

    def give_back(self, consumer: BrokerConsumer, deliveries: list[Delivery]) -> None:
        if consumer is self._active:
            self.read_at = min(self.read_at, deliveries[0].batch.base_offset)

    def redeliver(
        self, consumer: BrokerConsumer, ranges: Sequence[tuple[int, int]] | None, *, delay_ms: int | None = None
    ) -> None:
        """Everything that is not acknowledged, whatever was asked for: single messages would be out of order."""
        if consumer is not self._active:
            return
        mark = self._desk.cursor.mark_delete
        self._rewinds = [rewind for rewind in self._rewinds if rewind > mark + 1]
        undelivered = consumer.take_inbox()
        self._rewinds.append(undelivered[0].batch.base_offset if undelivered else self.read_at)
        del self._rewinds[:-_MOST_REWINDS]
        self.read_at = mark + 1
        self.pump()

    def settled(self, consumer: BrokerConsumer | None, ranges: Sequence[Run]) -> bool:
        return False  # the cursor knows all that matters here

    def deliver_again(self, batch: Batch, offset: int, *, acked: bool) -> bool | None:
        """Its consumer may acknowledge all up to a later one in this very moment, and would take this with it."""
        if not self._consumers:
            return acked
        return False if offset >= self.read_at or is_on_its_way(self._consumers, offset) else None

    def rewind(self) -> None:
        if self._active is not None:
            self._active.take_inbox()
        self._start_over()
        self.pump()

    def _start_over(self) -> None:
        self._rewinds = []
        self.read_at = self._desk.cursor.mark_delete + 1

    def close(self) -> None:
        self._brake.close()
