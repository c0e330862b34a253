"""The dispatcher interface, and what all dispatchers share: cursor, feeds, rate limiter, and unacked limits."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weir.broker.api.consumers import Delivery
from weir.broker.log.log_feed import Feed
from weir.broker.rates import Brake
from weir.broker.settings import BrokerSettings
from weir.broker.subscriptions.consumer import BrokerConsumer
from weir.broker.subscriptions.filter_screen import Screen
from weir.broker.subscriptions.in_flight import Piece, Pieces, Tally
from weir.model.batch import Batch, BatchFlags, Run, runs_of
from weir.stream.cursor import Cursor

#: The flags of most batches: an identity check is cheaper than flag arithmetic.
_PLAIN = BatchFlags.NONE


@dataclass(slots=True)
class UnackedLimits:
    """How many messages may be unacknowledged before delivery stops; 0 means no limit."""

    consumer: int = 0
    subscription: int = 0


@dataclass(slots=True)
class DispatchParts:
    """The dependencies of a dispatcher."""

    cursor: Cursor
    settings: BrokerSettings
    #: Makes a feed that calls the function when the requested batches are available.
    make_feed: Callable[[Callable[[], None]], Feed]
    make_brake: Callable[[Callable[[], None]], Brake]
    #: Messages of a batch that consumers of this subscription may see, as bits; None: all of them.
    visible: Callable[[Batch], int | None]
    #: Redelivery counts of batches by base offset; no entry before the first redelivery.
    counts: dict[int, int] = field(default_factory=dict)
    limits: UnackedLimits = field(default_factory=UnackedLimits)
    #: Messages that all consumers together have, if the dispatcher delivers whole batches.
    unacked: Tally = field(default_factory=Tally)
    #: The partition of the topic, if the topic is partitioned.
    partition: int | None = None
    #: The filters; None: only `visible` hides messages.
    screen: Screen | None = None
    now_ms: Callable[[], int] = int


class Dispatcher(Protocol):
    """Delivers batches to the consumers of one subscription. All methods are synchronous."""

    @property
    def consumers(self) -> Collection[BrokerConsumer]:
        """A live view: it changes when consumers join or leave."""

    @property
    def unacked(self) -> int:
        """Delivered messages that are not acknowledged."""

    @property
    def read_at(self) -> int:
        """The next offset to scan."""

    def join(self, consumer: BrokerConsumer) -> None:
        """Raise if the consumer conflicts with the consumers that are connected."""

    def leave(self, consumer: BrokerConsumer, *, failed: bool = True) -> None:
        """Redeliver the consumer's messages to others. `failed`: its connection broke without a close."""

    def pump(self) -> None:
        """Deliver all messages that can be delivered now."""

    def demanded(self, consumer: BrokerConsumer) -> None:
        """The consumer requests messages or has capacity again: deliver."""

    def limits_changed(self) -> None:
        """The unacked limits changed: more messages may be deliverable."""

    def give_back(self, consumer: BrokerConsumer, deliveries: list[Delivery]) -> None:
        """The gateway returns deliveries that the client never saw."""

    def redeliver(
        self, consumer: BrokerConsumer, ranges: Sequence[Run] | None, *, delay_ms: int | None = None
    ) -> None:
        """`delay_ms`: with per-message dispatch, the redelivery delay; it overrides the retry policy."""

    def settled(self, consumer: BrokerConsumer | None, ranges: Sequence[Run]) -> bool:
        """These offsets are acknowledged, by this consumer unless it is None. Return whether more messages can be
        delivered because of it; the caller then calls `pump` once for all its acknowledgements."""

    def deliver_again(self, batch: Batch, offset: int, *, acked: bool) -> bool | None:
        """Deliver this message of the batch now, and take it from the consumer that has it. `acked`: whether the
        message is acknowledged. Return False if its delivery is due anyway, and None if it cannot be delivered on
        its own with the connected consumers."""

    def rewind(self) -> None:
        """The cursor was moved: restart delivery at the cursor."""

    def close(self) -> None: ...


def wanted_of(desk: DispatchParts, batch: Batch) -> int | None:
    """Messages of a batch that remain to be delivered, as bits; None for all, 0 for none."""
    cursor = desk.cursor
    visible = desk.visible(batch)
    if (batch.flags is not _PLAIN and batch.flags & BatchFlags.NOTHING) or visible == 0:
        return 0
    if visible is None and not cursor.holes and batch.base_offset > cursor.mark_delete:
        return None
    whole = (1 << batch.count) - 1
    mask = cursor.unacked_mask(batch.base_offset, batch.count)
    if visible is not None:
        mask &= visible
    return None if mask == whole else mask


def ack_invisible(desk: DispatchParts, batch: Batch) -> None:
    """Acknowledge messages that no consumer can see; otherwise they would block the cursor forever."""
    base = batch.base_offset
    if desk.screen is not None:
        desk.screen.settle(batch)
        return
    if batch.flags is not _PLAIN and batch.flags & BatchFlags.UNSEEN:
        desk.cursor.ack(base, batch.end_offset)
        return
    visible = desk.visible(batch)
    if visible == 0:
        desk.cursor.ack(base, batch.end_offset)
    elif visible is not None:
        for first, end in runs_of(((1 << batch.count) - 1) & ~visible, base):
            desk.cursor.ack(first, end)


def returned(
    consumer: BrokerConsumer,
    ranges: Sequence[tuple[int, int]] | None,
    take_back: Callable[[BrokerConsumer, list[Delivery]], None],
) -> list[Piece]:
    """Take the named offsets (None: all) from a consumer for redelivery. The client has not seen the messages in
    its inbox: named ones stay in the inbox; for None all of them return without a redelivery count."""
    if ranges is None:
        take_back(consumer, consumer.take_inbox())
        return consumer.pending.clear()
    back = Pieces()
    for piece in consumer.pending.cut_all(ranges):
        back.add(piece)
    for delivery in consumer.inbox:
        for piece in back.cut_bits(delivery.batch.base_offset, delivery.wanted):
            consumer.pending.add(piece)
    return list(back)


def settle_own(consumer: BrokerConsumer, ranges: Sequence[Run]) -> tuple[list[Piece], Sequence[Run]]:
    """Remove acknowledged messages from the consumer's pending pieces. Return those pieces and the ranges that
    other consumers may have; usually none, since the consumer has all of them."""
    found: list[Piece] = []
    others: list[Run] = []
    for first, end in ranges:
        whole = consumer.pending.pop_whole(first, end)
        if whole is None:
            others.append((first, end))
        else:
            found.append(whole)
    if others:
        mine = consumer.pending.cut_all(others)
        found += mine
        if sum(piece.cost for piece in mine) == sum(end - first for first, end in others):
            others = []
    return found, others


def is_on_its_way(consumers: Iterable[BrokerConsumer], offset: int) -> bool:
    """Whether the offset is in the inbox of one of the consumers."""
    return any(
        delivery.batch.base_offset <= offset < delivery.batch.end_offset
        and (delivery.wanted is None or delivery.wanted >> (offset - delivery.batch.base_offset) & 1)
        for consumer in consumers
        for delivery in consumer.inbox
    )


def count_again(desk: DispatchParts, consumer: BrokerConsumer, pieces: list[Piece]) -> list[Piece]:
    """Increment the redelivery count of each batch once, however many of the pieces it has."""
    for base in {piece.base: None for piece in pieces}:
        desk.counts[base] = desk.counts.get(base, 0) + 1
    consumer.redelivered += sum(piece.cost for piece in pieces)
    return pieces


def forget_counts(counts: dict[int, int], first: int, end: int) -> None:
    """Drop the counts of batches that begin in [first, end): they are acknowledged."""
    if end - first <= len(counts):
        for base in range(first, end):
            counts.pop(base, None)
    else:
        for base in [base for base in counts if first <= base < end]:
            del counts[base]
