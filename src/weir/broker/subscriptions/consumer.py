"""A consumer of a subscription: its credit, its inbox of deliveries, and its unacknowledged messages."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from pyroaring import BitMap64

from weir.broker.api.consumers import Delivery, SubscribeRequest
from weir.broker.filters.message_filter import CompiledFilter
from weir.broker.rates import Histogram, Meter
from weir.broker.subscriptions.in_flight import Pieces, Tally
from weir.broker.trace.message_trace import MessageTrace
from weir.model.errors import ConsumerClosedError, NotAllowedError, NotAuthorisedError, WeirError
from weir.runtime.budgets import ByteShare
from weir.runtime.interfaces import Clock
from weir.runtime.waiters import Waiters
from weir.stream.cursor import Cursor

#: Batches that one `next` returns at most, however small they are: the gateway writes them without a pause.
_MOST_DELIVERIES = 512


class Owner(Protocol):
    """The subscription, as seen by its consumer."""

    @property
    def name(self) -> str: ...

    @property
    def cursor(self) -> Cursor: ...

    @property
    def backlog(self) -> int: ...

    @property
    def deals_parts(self) -> bool:
        """Whether a delivery may hold a part of a batch: because of a filter, or of per-message dispatch."""

    @property
    def meter(self) -> Meter: ...

    def demanded(self, consumer: "BrokerConsumer") -> None:
        """The consumer requests messages, or has capacity again."""

    def give_back(self, consumer: "BrokerConsumer", deliveries: list[Delivery]) -> None: ...

    def ack(self, consumer: "BrokerConsumer", ranges: Sequence[tuple[int, int]]) -> None: ...

    def ack_up_to(self, consumer: "BrokerConsumer", offset: int) -> None: ...

    def redeliver(
        self, consumer: "BrokerConsumer", ranges: Sequence[tuple[int, int]] | None, *, delay_ms: int | None = None
    ) -> None: ...

    def lease(self, consumer: "BrokerConsumer", ranges: Sequence[tuple[int, int]], span_ms: int) -> None: ...

    def reject(self, consumer: "BrokerConsumer", ranges: Sequence[tuple[int, int]]) -> None: ...

    async def seek(self, offset: int) -> None: ...

    async def persisted(self) -> None: ...

    async def unsubscribe(self, consumer: "BrokerConsumer", *, force: bool) -> None: ...

    async def leave(self, consumer: "BrokerConsumer", *, failed: bool = False) -> None: ...


class BrokerConsumer:
    """Fills `api.Consumer`."""

    def __init__(
        self,
        owner: Owner,
        request: SubscribeRequest,
        number: int,
        *,
        clock: Clock,
        batch_bytes: int,
        latency: Histogram,
        delivery_share: ByteShare | None = None,
        trace: MessageTrace | None = None,
        tally: Tally | None = None,
    ) -> None:
        """`delivery_share`: the byte budget that all consumers of the connection share. `tally`: counts the
        pending messages of all consumers of the subscription."""
        self._owner = owner
        self.request = request
        self.denied: NotAuthorisedError | None = None
        #: A sequence number within the subscription: unique per consumer, and a stable order.
        self.number = number
        self.priority = request.priority
        self.pending = Pieces(tally)
        #: Per-message dispatch: the offsets that the consumer has.
        self.offsets = BitMap64()
        #: Consumers of a queue: the filter of this consumer; None: all messages.
        self.filter: CompiledFilter | None = None
        #: A retired consumer gets no more messages; it keeps the messages that it has.
        self.retired = False
        self.meter = Meter(clock)
        self.redelivered = 0
        self.connected_ms = clock.wall_ms()
        self._clock = clock
        self._batch_bytes = batch_bytes
        self._share = delivery_share
        self._latency = latency
        self._trace = trace
        #: Remaining credit of the waiting `next()`; zero if no `next()` waits.
        self.demand = 0
        #: Whether the dispatcher serves it; `set_active` changes it.
        self.active = True
        self._inbox: list[Delivery] = []
        self._inbox_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[str] = loop.create_future()
        self._active_change = Waiters()

    # --- for dispatchers --------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """How many messages the dispatcher may deliver to it now."""
        if self._inbox_bytes >= self._batch_bytes or len(self._inbox) >= _MOST_DELIVERIES:
            return 0
        if self._share is not None and self._share.exhausted:
            return 0
        return self.demand

    def charge(self, cost: int) -> None:
        """Spend credit in advance for messages that the dispatcher delivers in the same step."""
        self.demand -= cost

    def give(self, delivery: Delivery, cost: int, *, in_order: bool = False) -> None:
        """Put a delivery into the inbox. Messages of the batch that was delivered last are merged into that
        delivery; with `in_order` only if they follow its messages and have the same redelivery count."""
        self.demand -= cost
        last = self._inbox[-1] if self._inbox else None
        if (
            last is not None
            and last.batch.base_offset == delivery.batch.base_offset
            and (not in_order or _follows(last, delivery))
        ):
            self._inbox[-1] = _merged(last, delivery)
        else:
            self._inbox.append(delivery)
            size = len(delivery.batch.payload)
            self._inbox_bytes += size
            if self._share is not None:
                self._share.acquire(size)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def set_active(self, active: bool) -> None:
        if active != self.active:
            self.active = active
            self._active_change.wake()

    @property
    def inbox(self) -> Sequence[Delivery]:
        """Deliveries that the gateway has not fetched yet."""
        return self._inbox

    def take_inbox(self) -> list[Delivery]:
        """Remove and return the deliveries that the gateway has not fetched."""
        size, inbox = self._inbox_bytes, self._empty_inbox()
        if self._share is not None and size:
            self._share.release(size)
        return inbox

    def _empty_inbox(self) -> list[Delivery]:
        inbox, self._inbox, self._inbox_bytes = self._inbox, [], 0
        return inbox

    def retire(self) -> None:
        """Stop delivery to this consumer for good; it keeps its messages until it is closed."""
        self.retired = True
        self.demand = 0
        self.set_active(False)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConsumerClosedError("the consumer is cancelled"))

    def fail(self, failure: WeirError) -> None:
        """Raise the failure in the waiting `next()`; the gateway may call `next()` again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(failure)

    def shut(self, reason: str) -> None:
        """Close the consumer on behalf of the broker."""
        if not self._closed.done():
            self._closed.set_result(reason)
            self.demand = 0
            self.set_active(False)
            self._active_change.wake()
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_exception(ConsumerClosedError(f"the consumer is closed: {reason}"))

    @property
    def open(self) -> bool:
        return not self._closed.done()

    # --- for gateways -----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.request.consumer_name

    @property
    def subscription(self) -> str:
        return self._owner.name

    @property
    def mark_delete(self) -> int:
        return self._owner.cursor.mark_delete

    @property
    def backlog(self) -> int:
        return self._owner.backlog

    @property
    def gets_parts(self) -> bool:
        return self._owner.deals_parts

    @property
    def unacked(self) -> int:
        """Delivered messages that are not acknowledged, if the subscription counts them."""
        return self.pending.messages + len(self.offsets)

    async def next(self, credit: int) -> list[Delivery]:
        if self._waiter is not None:
            raise NotAllowedError("one next() at a time")
        while not self._inbox:  # repeats if the broker emptied the inbox first, for example for a redelivery
            self._check_open()
            self.demand = credit
            self._owner.demanded(self)
            if not self._inbox:
                await self._arrival()
        self.demand = 0
        return self._fetched()

    def take(self, credit: int) -> list[Delivery]:
        if self._waiter is not None:
            raise NotAllowedError("one next() at a time")
        self._check_open()
        self.demand = credit
        self._owner.demanded(self)
        self.demand = 0
        return self._fetched() if self._inbox else []

    def _fetched(self) -> list[Delivery]:
        """Empty the inbox, count its messages, and return its deliveries."""
        taken = self._empty_inbox()
        messages = sum(d.batch.count if d.wanted is None else d.wanted.bit_count() for d in taken)
        size = sum(len(d.batch.payload) for d in taken)
        self.meter.count(messages, size)
        self._owner.meter.count(messages, size)
        self._latency.note((self._clock.wall_ms() - taken[-1].batch.append_ms) / 1000)
        if self._trace is not None and self._trace.on:
            self._trace.delivered(self._owner.name, self, self.name, self.request.address, taken)
        return taken

    def _on_capacity(self) -> None:
        self._owner.demanded(self)

    async def _arrival(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        if self._share is not None:
            self._share.on_capacity(self, self._on_capacity)
        try:
            await self._waiter
        except BaseException:
            self.demand = 0
            if self._inbox:
                self._owner.give_back(self, self.take_inbox())
            raise
        finally:
            self._waiter = None
            if self._share is not None:
                self._share.forget(self)

    def ack(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._owner.ack(self, ranges)

    def ack_up_to(self, offset: int) -> None:
        self._owner.ack_up_to(self, offset)

    def redeliver(self, ranges: Sequence[tuple[int, int]] | None = None, *, delay_ms: int | None = None) -> None:
        if not self.retired:
            self._check_open()
        self._owner.redeliver(self, ranges, delay_ms=delay_ms)

    def give_back(self, deliveries: list[Delivery]) -> None:
        if self.open:
            self._owner.give_back(self, deliveries)

    def lease(self, ranges: Sequence[tuple[int, int]], span_ms: int) -> None:
        self._check_open()
        self._owner.lease(self, ranges, span_ms)

    def reject(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._check_open()
        self._owner.reject(self, ranges)

    async def seek(self, offset: int) -> None:
        self._check_open()
        await self._owner.seek(offset)

    async def active_change(self, seen: bool) -> bool:
        while self.active == seen:
            self._check_open()
            await self._active_change.wait()
        return self.active

    async def persisted(self) -> None:
        await self._owner.persisted()

    async def unsubscribe(self, *, force: bool = False) -> None:
        self._check_open()
        await self._owner.unsubscribe(self, force=force)

    def count_taken(self, delivery: Delivery) -> None:
        """Count a delivery that bypassed the inbox."""
        messages = delivery.batch.count if delivery.wanted is None else delivery.wanted.bit_count()
        size = len(delivery.batch.payload)
        self.meter.count(messages, size)
        self._owner.meter.count(messages, size)
        if self._trace is not None and self._trace.on:
            self._trace.delivered(self._owner.name, self, self.name, self.request.address, [delivery])

    async def closed(self) -> str:
        return await asyncio.shield(self._closed)

    async def close(self, *, failed: bool = False) -> None:
        await self._owner.leave(self, failed=failed)

    def _check_open(self) -> None:
        if self._closed.done():
            raise ConsumerClosedError(f"the consumer is closed: {self._closed.result()}")
        if self.retired:
            raise ConsumerClosedError("the consumer is cancelled")


def _follows(first: Delivery, second: Delivery) -> bool:
    """Whether one delivery can carry both, in delivery order and with one redelivery count."""
    if first.redelivered != second.redelivered or first.wanted is None or second.wanted is None:
        return False
    return (second.wanted & -second.wanted).bit_length() > first.wanted.bit_length()


def _merged(first: Delivery, second: Delivery) -> Delivery:
    """Merge two consecutive deliveries of one batch."""
    whole = (1 << first.batch.count) - 1
    wanted = (whole if first.wanted is None else first.wanted) | (
        whole if second.wanted is None else second.wanted
    )
    return Delivery(first.batch, None if wanted == whole else wanted, max(first.redelivered, second.redelivered))
