"""What every kind of dispatcher has: a cursor, feeds, a brake, and the consumers of one subscription."""

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

#: Nearly every batch: an identity is cheaper than arithmetic on flags.
_PLAIN = BatchFlags.NONE


@dataclass(slots=True)
class UnackedLimits:
    """How many messages may be unacknowledged before no more are delivered; 0 means no limit."""

    consumer: int = 0
    subscription: int = 0


@dataclass(slots=True)
class DispatchParts:
    """What a dispatcher works with."""

    cursor: Cursor
    settings: BrokerSettings
    #: A new feed that calls the function when what was asked for is there.
    make_feed: Callable[[Callable[[], None]], Feed]
    make_brake: Callable[[Callable[[], None]], Brake]
    #: Messages that a consumer of this subscription may see at all; None: all of them.
    visible: Callable[[Batch], int | None]
    #: How often a batch was delivered before, by its base offset; nothing for the first time.
    counts: dict[int, int] = field(default_factory=dict)
    limits: UnackedLimits = field(default_factory=UnackedLimits)
    #: Messages that are with consumers, all together, where batches are dealt whole.
    unacked: Tally = field(default_factory=Tally)
    #: The partition of the topic, where it has any.
    partition: int | None = None
    #: Its filters; None: there is nothing but what `visible` says.
    screen: Screen | None = None
    now_ms: Callable[[], int] = int


class Dispatcher(Protocol):
    """Hands batches to the consumers of one subscription. Plain functions: nothing here waits."""

    @property
    def consumers(self) -> Collection[BrokerConsumer]:
        """A view: it changes with every consumer that joins or leaves."""

    @property
    def unacked(self) -> int:
        """Messages that were delivered and are not acknowledged."""

    @property
    def read_at(self) -> int:
        """The next offset that was never looked at."""

    def join(self, consumer: BrokerConsumer) -> None:
        """Raises if it does not fit to those that are there."""

    def leave(self, consumer: BrokerConsumer, *, failed: bool = True) -> None:
        """What it has goes to others. `failed`: it has gone without a word."""

    def pump(self) -> None:
        """Deliver whatever can be delivered now."""

    def demanded(self, consumer: BrokerConsumer) -> None:
        """The consumer asks for messages, or may be given some again: deliver."""

    def limits_changed(self) -> None:
        """Of unacknowledged messages: more may be delivered."""

    def give_back(self, consumer: BrokerConsumer, deliveries: list[Delivery]) -> None:
        """The consumer never saw these."""

    def redeliver(
        self, consumer: BrokerConsumer, ranges: Sequence[Run] | None, *, delay_ms: int | None = None
    ) -> None:
        """`delay_ms`: where messages are dealt one by one, how long they wait, whatever the policy says."""

    def settled(self, consumer: BrokerConsumer | None, ranges: Sequence[Run]) -> bool:
        """These offsets were acknowledged, by this consumer if by any. Answers whether something else may be
        delivered now because of that: the caller pumps, once for all that it has."""

    def deliver_again(self, batch: Batch, offset: int, *, acked: bool) -> bool | None:
        """This message of the batch, which is not acknowledged (`acked`: any more), shall come now: whoever has it
        has it no more. False if it comes anyway; None if it cannot come alone while these consumers are there."""

    def rewind(self) -> None:
        """The cursor was moved: begin anew from it."""

    def close(self) -> None: ...


def wanted_of(desk: DispatchParts, batch: Batch) -> int | None:
    """Which messages of a batch are still to be delivered, as bits; None for all, 0 for none."""
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
    """Acknowledge what no consumer will ever see, or the cursor would wait for it for ever."""
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
    """What a consumer gives back of what it has: the offsets that it names, or everything. What is on its way to
    it was not seen: it stays on its way, or goes back uncounted."""
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
    """Take what the consumer acknowledged out of what it has; answers that, and the ranges in which other
    consumers may have messages. Nearly always there are none, since the consumer has all of them."""
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
    """Whether one of them is about to get it."""
    return any(
        delivery.batch.base_offset <= offset < delivery.batch.end_offset
        and (delivery.wanted is None or delivery.wanted >> (offset - delivery.batch.base_offset) & 1)
        for consumer in consumers
        for delivery in consumer.inbox
    )


def count_again(desk: DispatchParts, consumer: BrokerConsumer, pieces: list[Piece]) -> list[Piece]:
    """The pieces will be delivered once more; each batch is counted once, in however many pieces it comes."""
    for base in {piece.base: None for piece in pieces}:
        desk.counts[base] = desk.counts.get(base, 0) + 1
    consumer.redelivered += sum(piece.cost for piece in pieces)
    return pieces


def forget_counts(counts: dict[int, int], first: int, end: int) -> None:
    """Of batches that begin in [first, end): they are acknowledged."""
    if end - first <= len(counts):
        for base in range(first, end):
            counts.pop(base, None)
    else:
        for base in [base for base in counts if first <= base < end]:
            del counts[base]
