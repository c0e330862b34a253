"""The dispatcher of exclusive and failover subscriptions: one consumer at a time, in the order of the log."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Sequence

from weir.broker.api.consumers import Delivery
from weir.broker.subscriptions.consumer import BrokerConsumer
from weir.broker.subscriptions.dispatcher import DispatchParts, ack_invisible, is_on_its_way, wanted_of
from weir.broker.subscriptions.selectors import take_whole
from weir.model.batch import Batch, Run
from weir.model.errors import SubscriptionBusyError

#: The highest redelivery count: the cost of a message that is returned forever must not grow.
_MOST_REWINDS = 1000


class Standing:
    """The consumers of a failover subscription in the order in which they become active: by priority, name and
    number. With several consumers of the best priority, the active one differs by partition, round robin."""

    def __init__(self) -> None:
        self._order: list[tuple[int, str, int]] = []

    def add(self, consumer: BrokerConsumer) -> None:
        insort(self._order, (consumer.priority, consumer.name, consumer.number))

    def discard(self, consumer: BrokerConsumer) -> None:
        del self._order[bisect_left(self._order, (consumer.priority, consumer.name, consumer.number))]

    def active(self, partition: int | None) -> int | None:
        """The number of the active consumer; None without consumers."""
        if not self._order:
            return None
        best = bisect_right(self._order, self._order[0][0], key=lambda place: place[0])
        return self._order[(partition or 0) % best][2]


class SingleActive:
    """`failover`: several consumers may connect; one is active, and a standby replaces it when it leaves."""

    def __init__(self, desk: DispatchParts, *, failover: bool) -> None:
        self._desk = desk
        self._failover = failover
        self._feed = desk.make_feed(self.pump)
        self._brake = desk.make_brake(self.pump)
        self._consumers: dict[int, BrokerConsumer] = {}
        self._standing = Standing()
        self._active: BrokerConsumer | None = None
        #: `read_at` at each rewind: the redelivery count of an offset is the number of rewinds from beyond it.
        self._rewinds: list[int] = []
        self.read_at = 0
        self._start_over()

    @property
    def consumers(self) -> Collection[BrokerConsumer]:
        return self._consumers.values()

    @property
    def unacked(self) -> int:
        return self._desk.cursor.backlog(self.read_at)

    def join(self, consumer: BrokerConsumer) -> None:
        if self._consumers and not self._failover:
            (there,) = self._consumers.values()
            raise SubscriptionBusyError(f"exclusive consumer {there.name!r} is connected already")
        self._consumers[consumer.number] = consumer
        self._standing.add(consumer)
        self._choose()
        consumer.set_active(consumer is self._active)

    def leave(self, consumer: BrokerConsumer, *, failed: bool = True) -> None:
        del self._consumers[consumer.number]
        self._standing.discard(consumer)
        consumer.take_inbox()
        if consumer is self._active:
            self._active = None
        self._choose()

    def _choose(self) -> None:
        """Choose the active consumer. A new one starts at the cursor: unacknowledged messages are redelivered."""
        number = self._standing.active(self._desk.partition)
        chosen = None if number is None else self._consumers[number]
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

    def demanded(self, consumer: BrokerConsumer) -> None:
        if consumer is self._active:
            self.pump()

    def limits_changed(self) -> None:
        pass  # unacked limits do not apply to a single active consumer

    def pump(self) -> None:
        consumer = self._active
        while consumer is not None and consumer.capacity > 0 and self._brake.free():
            batches = self._feed.get(self.read_at, consumer.capacity)
            if not batches:
                return
            self._deliver(consumer, batches)

    def _deliver(self, consumer: BrokerConsumer, batches: list[Batch]) -> None:
        desk = self._desk
        for batch in batches[: take_whole([batch.count for batch in batches], consumer.capacity)]:
            if consumer.capacity <= 0:  # the inbox has reached its byte limit
                return
            if batch.end_offset <= self.read_at:
                continue
            if batch.base_offset > self.read_at:  # trimmed or compacted: no consumer can acknowledge it
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
        """Redeliver all unacknowledged messages, whatever the ranges: single messages would be out of order."""
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
        return False  # the cursor has all the state that matters here

    def deliver_again(self, batch: Batch, offset: int, *, acked: bool) -> bool | None:
        """Always None: the consumer may be about to acknowledge cumulatively beyond this message."""
        if not self._consumers:
            return acked
        return False if offset >= self.read_at or is_on_its_way(self.consumers, offset) else None

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
