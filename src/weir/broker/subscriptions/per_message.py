"""The per-message dispatcher: queues, retry policies and message groups. Never exceeds a consumer's credit.

Ready messages are those that were returned, in their old positions, and then the next messages of the log; with
priority levels, all messages by level; with message groups, the first message of each group. A batch goes out
whole if one consumer has credit for all of it. A failed message may wait for its redelivery delay; it is aside
meanwhile: neither ready nor with a consumer.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from itertools import takewhile

from pyroaring import BitMap64

from weir.broker.api.consumers import Delivery
from weir.broker.log.log_feed import Feed
from weir.broker.subscriptions.consumer import BrokerConsumer
from weir.broker.subscriptions.consumer_filters import ConsumerFilters
from weir.broker.subscriptions.demand_ring import MOST_SEATS, DemandRing, FilteredRing
from weir.broker.subscriptions.dispatcher import (
    DispatchParts,
    UnackedLimits,
    ack_invisible,
    is_on_its_way,
    wanted_of,
)
from weir.broker.subscriptions.in_flight import offsets_in, set_of, wanted_bits
from weir.broker.subscriptions.queue_mode import LevelsOf, QueueMode
from weir.broker.subscriptions.ready_messages import MessageGroups, Ready, ReadyByPriority, Returned, hold
from weir.broker.subscriptions.redelivery import MOST_WAITING, Redeliveries, Retries
from weir.broker.subscriptions.selectors import KeysOf, Seat, deal
from weir.model.batch import Batch, BatchFlags, Run, indices_of
from weir.model.errors import SubscriptionBusyError
from weir.runtime.waiters import Waiters

#: Messages that one scan for message groups reads at most, without a pause.
_LOOK_MESSAGES = 4096


class Gathering:
    """Fills message groups from the log, until enough messages are ready. `fresh`: returns the messages of a batch
    that are not scanned yet, without those that are aside."""

    def __init__(
        self, groups: MessageGroups, feed: Feed, groups_of: KeysOf, fresh: Callable[[Batch], Sequence[int]]
    ) -> None:
        self._groups = groups
        self._feed = feed
        self._groups_of = groups_of
        self._fresh = fresh

    def look(self, read_at: int, wanted: int, aside: BitMap64) -> tuple[int, bool]:
        """Scan from `read_at` until `wanted` messages are ready, the groups are full, or the log ends. Return the
        next offset to scan, and whether the scan waits for a read."""
        groups, left = self._groups, _LOOK_MESSAGES
        while left > 0 and groups.count_ready() < wanted and not groups.is_full():
            batches = self._feed.get(read_at, wanted)
            if not batches:
                return read_at, batches is None
            for batch in batches:
                indices = self._with_aside(batch, read_at, self._fresh(batch), aside)
                if indices:
                    groups.note(batch.base_offset, indices, self._groups_of(batch), aside)
                read_at = max(read_at, batch.end_offset)
                left -= batch.count
                if left <= 0 or groups.is_full() or groups.count_ready() >= wanted:
                    break
        return read_at, False

    @staticmethod
    def _with_aside(batch: Batch, read_at: int, fresh: Sequence[int], aside: BitMap64) -> Sequence[int]:
        """Add the messages that are aside: they block their groups."""
        first = max(read_at, batch.base_offset)
        if not aside or aside.max() < first:
            return fresh
        base, end = batch.base_offset, batch.end_offset
        held = [offset - base for offset in takewhile(end.__gt__, aside.iter_equal_or_larger(first))]
        return sorted({*fresh, *held}) if held else fresh


#: Messages, and batches, that one scan for priority levels covers without a pause.
_LOOKING_LOOK_MESSAGES = 512
_LOOK_BATCHES = 32
#: Messages per read of the scan, approximately.
_LOOK_CREDIT = 100
_A_BATCH = _LOOKING_LOOK_MESSAGES // _LOOK_BATCHES


class PriorityScan:
    """Scans the log for priority levels before delivery, in bounded steps. `fresh`: returns the messages of a
    batch that are not scanned yet. `wake`: called when the scan can continue."""

    def __init__(
        self,
        levels: ReadyByPriority,
        feed: Feed,
        levels_of: LevelsOf,
        fresh: Callable[[Batch], Sequence[int]],
        wake: Callable[[], None],
    ) -> None:
        self._levels = levels
        self._feed = feed
        self._levels_of = levels_of
        self._fresh = fresh
        self._wake = wake
        self._again = False
        #: No message is delivered before the scan has reached this offset.
        self.until = 0

    def look(self, read_at: int) -> tuple[int, bool, bool]:
        """Scan from `read_at`. Return the next offset to scan, whether the scan has covered enough to deliver, and
        whether it waits for a read."""
        left = _LOOKING_LOOK_MESSAGES
        while left > 0:
            batches = self._feed.get(read_at, _LOOK_CREDIT)
            if not batches:
                return read_at, batches is not None or read_at >= self.until, batches is None
            for batch in batches:
                indices = self._fresh(batch)
                if indices:
                    self._levels.note(batch.base_offset, indices, self._levels_of(batch))
                read_at = max(read_at, batch.end_offset)
                left -= max(_A_BATCH, batch.count)
                if left <= 0:
                    break
        if not self._again:
            self._again = True
            asyncio.get_running_loop().call_soon(self._look_on)
        reading = read_at < self.until
        return read_at, not reading, reading

    def _look_on(self) -> None:
        self._again = False
        self._wake()


def give(consumer: BrokerConsumer, batch: Batch, indices: Sequence[int], counts: Redeliveries) -> None:
    """Deliver messages of a batch, in ascending order, to a consumer, and record that it has them."""
    base = batch.base_offset
    hold(consumer.offsets, base, indices)
    if counts.any_in(base + indices[0], base + indices[-1] + 1):
        _deliver_counted(consumer, batch, indices, counts)
    else:
        consumer.give(Delivery(batch, wanted_bits(indices, batch.count)), len(indices), in_order=True)


def _deliver_counted(consumer: BrokerConsumer, batch: Batch, indices: Sequence[int], counts: Redeliveries) -> None:
    """Deliver runs of messages with equal redelivery counts as one delivery each."""
    run: list[int] = []
    times = 0
    for index in indices:
        count = counts.of(batch.base_offset + index)
        if run and count != times:
            consumer.give(Delivery(batch, wanted_bits(run, batch.count), times), len(run), in_order=True)
            run = []
        run.append(index)
        times = count
    consumer.give(Delivery(batch, wanted_bits(run, batch.count), times), len(run), in_order=True)


def credits_of(served: Sequence[BrokerConsumer], unacked: int, limits: UnackedLimits) -> tuple[list[int], bool]:
    """Return the credit of each of `served`, and whether an unacked limit blocked one of them. `unacked`: messages
    that consumers have."""
    credit_of = [consumer.capacity if consumer.active else 0 for consumer in served]
    if not limits.subscription and not limits.consumer:
        return credit_of, False
    capped = False
    room = limits.subscription - unacked if limits.subscription else None
    for place, consumer in enumerate(served):
        wanted = credit = credit_of[place]
        if credit > 0 and limits.consumer:
            credit = min(credit, limits.consumer - consumer.unacked)
        if credit > 0 and room is not None:
            credit = min(credit, room)
            room -= max(0, credit)
        capped |= credit <= 0 < wanted
        credit_of[place] = max(0, credit)
    return credit_of, capped


#: The flags of most batches: an identity check is cheaper than flag arithmetic.
_PLAIN = BatchFlags.NONE
#: Messages that may wait behind others of their groups, per group of the look-ahead limit.
_WAITING_PER_GROUP = 64


class PerMessage:
    """`side`: the queue settings of the topic. Every message before `read_at` is acknowledged, with a consumer,
    ready or aside."""

    def __init__(
        self,
        desk: DispatchParts,
        side: QueueMode,
        counts: Redeliveries,
        levels_of: LevelsOf,
        *,
        queue: bool,
        retries: Retries,
        dead: Callable[[], BitMap64],
        groups_of: KeysOf | None = None,
        owners: ConsumerFilters | None = None,
    ) -> None:
        """`queue`: True for the queue's own subscription, to which its rules apply. `dead`: messages that were
        given up and are not acknowledged yet. `groups_of`: message groups, each delivered in order; priority
        levels are ignored then. `owners`: routes messages to consumers; by default any consumer with credit gets
        them."""
        self._desk = desk
        self._side = side
        self._queue = queue
        self._feed = desk.make_feed(self._read)
        self._ready_feed = desk.make_feed(self._read)
        self._brake = desk.make_brake(self.pump)
        self._consumers: dict[int, BrokerConsumer] = {}
        #: Consumers that receive ready messages; other consumers only have messages, or fetch them with `take`.
        self._served: dict[int, BrokerConsumer] = {}
        #: The served consumer if exactly one is served. It needs no round robin: it is not in the ring.
        self._sole: BrokerConsumer | None = None
        self._ring: DemandRing = DemandRing(desk.limits, exact=True)
        #: Whether a single consumer is active, and which one.
        self._single = False
        self._active: BrokerConsumer | None = None
        #: How many messages consumers have.
        self._out = 0
        priority = side.priority
        self._levels = (
            ReadyByPriority(priority.levels, priority.passed, priority.longest_ms, desk.now_ms)
            if priority.levels and groups_of is None
            else None
        )
        self._groups: MessageGroups | None = None
        self._gathering: Gathering | None = None
        self._ready: Ready = Returned() if self._levels is None else self._levels
        if groups_of is not None:
            most = desk.settings.look_ahead
            self._ready = self._groups = MessageGroups(most, _WAITING_PER_GROUP * most)
            self._gathering = Gathering(self._groups, self._feed, groups_of, self._fresh)
        self._owners = owners
        self._selecting = ConsumerFilters(desk.screen) if owners is None else owners
        self._look_ahead = (
            None
            if self._levels is None
            else PriorityScan(self._levels, self._feed, levels_of, self._fresh, self._read)
        )
        self._retries = retries
        self._dead = dead
        self._aside = desk.cursor.unacked_of(retries.waiting() | dead())
        self._counts = counts
        self._levels_of = levels_of
        self._turn = 0
        #: Whether an unacked limit blocked a consumer, where all consumers are served in one step.
        self._capped = False
        self._pumping = False
        self._reading = False  # the next batch must be read first
        #: Woken when a read has completed, for callers of `take`.
        self.looked = Waiters()
        self.read_at = desk.cursor.mark_delete + 1

    # --- consumers --------------------------------------------------------------------------------------

    @property
    def consumers(self) -> Collection[BrokerConsumer]:
        return self._consumers.values()

    def has(self, consumer: BrokerConsumer) -> bool:
        return consumer.number in self._consumers

    @property
    def served(self) -> Collection[BrokerConsumer]:
        """The consumers that receive messages by dispatch."""
        return self._served.values()

    @property
    def unacked(self) -> int:
        return self._out

    @property
    def aside(self) -> int:
        """How many messages are neither ready nor with a consumer."""
        return len(self._aside)

    def join(self, consumer: BrokerConsumer) -> None:
        self._look_through()
        if consumer.request.counted:
            first = next(iter(self._served.values()), None)
            if first is not None and (consumer.request.alone or first.request.alone):
                raise SubscriptionBusyError("another consumer is connected, and one of the two is exclusive")
            again = self._selecting.joined(consumer, consumer.filter)
            self._served[consumer.number] = consumer
            self._ready.add(again)
            if consumer.filter is not None and self._owners is None and not isinstance(self._ring, FilteredRing):
                self._begin_filtering()
        self._consumers[consumer.number] = consumer
        self._choose(consumer)

    def _begin_filtering(self) -> None:
        """Switch to a ring per filter when the first consumer with a filter joins."""
        self._ring = FilteredRing(self._desk.limits)
        for consumer in self._served.values():
            self._asks(consumer)

    def _look_through(self) -> None:
        """With priority levels: require a scan of the log up to its present end before delivery."""
        if self._look_ahead is not None:
            self._look_ahead.until = self._feed.end_offset

    def leave(self, consumer: BrokerConsumer, *, failed: bool = True) -> None:
        """`failed`: messages that its client has seen and not acknowledged count as failed deliveries."""
        del self._consumers[consumer.number]
        self._stop_serving(consumer)
        held, consumer.offsets = consumer.offsets, BitMap64()
        self._out -= len(held)
        unseen = offsets_in(consumer.take_inbox())
        self._put_back(held, held - unseen if failed or self._queue else BitMap64())
        self.pump()

    def retire(self, consumer: BrokerConsumer) -> None:
        """Stop serving the consumer; messages that its client has not seen become ready for others."""
        unseen = offsets_in(consumer.take_inbox())
        consumer.retire()
        self._stop_serving(consumer)
        self._taken_from(consumer, unseen)
        self._ready.add(unseen)
        self.pump()

    def _taken_from(self, consumer: BrokerConsumer, offsets: BitMap64) -> None:
        """Remove messages from those that the consumer has."""
        before = len(consumer.offsets)
        consumer.offsets -= offsets
        self._out -= before - len(consumer.offsets)

    def _stop_serving(self, consumer: BrokerConsumer) -> None:
        self._ring.discard(consumer)
        if self._served.pop(consumer.number, None) is not None:
            self._ready.add(self._selecting.left(consumer))
            self._choose()

    def _choose(self, joined: BrokerConsumer | None = None) -> None:
        """Activate all consumers, or the first that joined if the queue has a single active consumer."""
        single = self._queue and self._side.single_active
        first = next(iter(self._served.values()), None) if single else None
        if single != self._single:
            self._single = single
            changed = list(self._served.values())
        else:
            changed = [
                one for one in (joined, self._active, first) if one is not None and one.number in self._served
            ]
        self._active = first
        for consumer in changed:
            consumer.set_active(not single or consumer is first)
        self._choose_sole()
        for consumer in changed:
            self._asks(consumer)

    def _choose_sole(self) -> None:
        before = self._sole
        self._sole = next(iter(self._served.values())) if len(self._served) == 1 else None
        if self._sole is not None:
            self._ring.discard(self._sole)
        elif before is not None:
            self._asks(before)

    # --- delivering -------------------------------------------------------------------------------------

    def demanded(self, consumer: BrokerConsumer) -> None:
        if consumer is not self._sole:
            self._asks(consumer)
        self.pump()

    def limits_changed(self) -> None:
        for consumer in self._served.values():
            self._asks(consumer)
        self.pump()

    def pump(self) -> None:
        if self._pumping:  # a rule of the queue may acknowledge messages during a pump
            return
        sole = self._sole
        self._pumping = True
        groups = self._groups
        if groups is not None and self._takes_turns():
            groups.begin_turn()
        try:
            while (self._ring.count if sole is None else sole.demand > 0) and (
                self._ready
                or self._selecting.waits
                or (self.read_at < self._feed.end_offset and len(self._aside) < MOST_WAITING)
            ):
                if not (self._serve_all() if sole is not None or self._selecting else self._serve_in_turn()):
                    return
        finally:
            self._pumping = False
            if groups is not None:
                groups.end_turn()

    def _takes_turns(self) -> bool:
        """Whether one delivery may hold several messages of one group."""
        served = self._served
        return not self._selecting and len(served) == 1 and next(iter(served.values())).request.turns

    def _serve_in_turn(self) -> bool:
        """Serve the next consumers; return whether the caller should continue."""
        self._capped = False
        messages = MOST_SEATS if self._ready else self._feed.end_offset - self.read_at
        line = self._ring.line(self._out, max(1, messages))
        if line is None or not self._brake.free():
            return False
        # A consumer behind these gets its first message before one of these gets its second.
        credit_of = [1] * len(line.credit) if line.more else line.credit
        self._turn = 0
        return self._serve(line.consumers, credit_of)

    def _serve_all(self) -> bool:
        """Serve all consumers in one step: filters or keys route the messages, or only one consumer is served."""
        served: Sequence[BrokerConsumer]
        if self._sole is None and isinstance(self._ring, FilteredRing):
            self._capped = False
            line = self._ring.line(self._out, MOST_SEATS)
            served, credit_of = ([], []) if line is None else (line.consumers, line.credit)
            self._turn = 0
        else:
            served = list(self._served.values())
            credit_of, self._capped = credits_of(served, self._out, self._desk.limits)
        if not any(credit_of) or not self._brake.free():
            return False
        if self._selecting:
            self._ready.add(self._selecting.due(zip(served, credit_of, strict=True)))
        return self._serve(served, credit_of)

    def take(self, consumer: BrokerConsumer) -> Delivery | bool:
        """Return the next message to a consumer that polls; False if none is ready, True if a read must complete
        first (then `looked` is woken)."""
        self._look_through()
        self._reading = False
        if self._selecting:
            self._ready.add(self._selecting.oldest())
        consumer.charge(-1)
        try:
            while self._serve([consumer], [1]):
                if consumer.inbox:
                    return consumer.take_inbox()[0]
        finally:
            consumer.charge(max(0, consumer.demand))
        return self._reading

    def _read(self) -> None:
        self.looked.wake()
        self.pump()

    def _serve(self, who: Sequence[BrokerConsumer], credit_of: list[int]) -> bool:
        """Deliver messages to these consumers, some of which have credit; return whether to continue."""
        if self._gathering is not None:
            self.read_at, self._reading = self._gathering.look(self.read_at, sum(credit_of), self._aside)
            return bool(self._ready) and self._from_ready(who, credit_of)
        if self._look_ahead is not None:
            self.read_at, enough, self._reading = self._look_ahead.look(self.read_at)
            if not enough:
                return False
        if self._ready:
            return self._from_ready(who, credit_of)
        return self._levels is None and self._from_log(who, credit_of)

    def _from_log(self, who: Sequence[BrokerConsumer], credit_of: list[int]) -> bool:
        """Deliver the next messages of the log."""
        batches = self._feed.get(self.read_at, sum(credit_of))
        if not batches:
            self._reading = batches is None
            return False
        for batch in batches:
            indices = self._fresh(batch)
            given = self._hand_out(batch, indices, who, credit_of) if indices else 0
            if given < len(indices):
                self.read_at = batch.base_offset + indices[given]
                return True
            self.read_at = max(self.read_at, batch.end_offset)
        return True

    def _fresh(self, batch: Batch) -> Sequence[int]:
        """Messages of a batch that are not scanned yet and may be delivered."""
        desk, base, end = self._desk, batch.base_offset, batch.end_offset
        if end <= self.read_at:
            return ()
        low = max(0, self.read_at - base)
        plain = batch.flags is _PLAIN and not self._aside and desk.visible(batch) is None
        if plain and desk.cursor.none_acked(base + low, end):
            return range(low, batch.count)
        wanted = wanted_of(desk, batch)
        if wanted is not None:
            ack_invisible(desk, batch)
        indices = range(batch.count) if wanted is None else indices_of(wanted)
        aside = self._aside
        return [index for index in indices if index >= low and base + index not in aside]

    def _from_ready(self, who: Sequence[BrokerConsumer], credit_of: list[int]) -> bool:
        """Deliver messages that were returned, or that have the highest level."""
        ready = self._ready
        first = ready.first()
        start = self._feed.start_offset
        if first < start:
            ready.drop(0, start)
            return True
        batches = self._ready_feed.get(first, sum(credit_of))
        if not batches:
            self._reading = batches is None
            return False
        if batches[0].base_offset > first:  # trimmed or compacted
            ready.drop(first, batches[0].base_offset)
            return True
        for batch in batches:
            if not batch.base_offset <= first < batch.end_offset:
                break
            offsets = ready.within(batch.end_offset, sum(credit_of))
            if not offsets:
                break
            base = batch.base_offset
            indices: Sequence[int] = (
                range(offsets.start - base, offsets.stop - base)
                if isinstance(offsets, range)
                else [offset - base for offset in offsets]
            )
            ready.remove(offsets)
            indices = self._still_wanted(batch, indices)
            if indices:
                self._hand_out(batch, indices, who, credit_of)
            if not ready:
                break
            first = ready.first()
        return True

    def _still_wanted(self, batch: Batch, indices: Sequence[int]) -> Sequence[int]:
        """Return the messages that match the present filter, and settle the others; all were delivered before."""
        screen = self._desk.screen
        if screen is None or screen.filter is None:
            return indices
        taken = screen.mask(screen.filter, batch)
        if taken is None:
            return indices
        left_out = [index for index in indices if not taken >> index & 1]
        if not left_out:
            return indices
        ack_invisible(self._desk, batch)
        self.settled(None, [(batch.base_offset + index, batch.base_offset + index + 1) for index in left_out])
        return [index for index in indices if taken >> index & 1]

    def _hand_out(
        self, batch: Batch, indices: Sequence[int], who: Sequence[BrokerConsumer], credit_of: list[int]
    ) -> int:
        """Deliver messages of a batch, from the first on, to the next consumers, and spend their credit; return
        how many messages of the batch are processed."""
        room = credit_of[0] if len(credit_of) == 1 else sum(credit_of)
        if room <= 0:
            return 0
        if room < len(indices):
            indices = indices[:room]
        kept = indices
        hooks = self._side.hooks
        if hooks is not None and self._queue:
            gone = hooks.screen(batch, indices)
            if gone:
                hold(self._aside, batch.base_offset, gone)
                taken = dict.fromkeys(gone)
                kept = [index for index in indices if index not in taken]
        if self._selecting and kept:
            taken_by, self._turn = self._selecting.deal(batch, kept, who, credit_of, self._turn)
            for place, mine in taken_by.items():
                self._deliver(who[place], batch, mine)
                credit_of[place] = min(credit_of[place] - len(mine), who[place].capacity)
            return len(indices)
        if len(who) == 1:
            if kept:
                self._deliver(who[0], batch, kept)
                credit_of[0] = min(credit_of[0] - len(kept), who[0].capacity)
            return len(indices)
        seats = [Seat("", consumer.priority, credit) for consumer, credit in zip(who, credit_of, strict=True)]
        dealt, self._turn = deal(len(kept), seats, self._turn)
        for place, part in dealt:
            self._deliver(who[place], batch, kept[part.start : part.stop : part.step])
            credit_of[place] = min(credit_of[place] - len(part), who[place].capacity)
        return len(indices)

    def _deliver(self, consumer: BrokerConsumer, batch: Batch, indices: Sequence[int]) -> None:
        give(consumer, batch, indices, self._counts)
        self._out += len(indices)
        if self._sole is None:
            self._ring.served(consumer)
        self._brake.spend(len(indices), len(batch.payload))

    # --- redelivery -------------------------------------------------------------------------------------

    def give_back(self, consumer: BrokerConsumer, deliveries: list[Delivery]) -> None:
        unseen = offsets_in(deliveries) & consumer.offsets
        self._taken_from(consumer, unseen)
        self._ready.add(unseen)
        self._asks(consumer)
        self.pump()

    def _asks(self, consumer: BrokerConsumer) -> None:
        """Note that the consumer has credit again."""
        if consumer is not self._sole and consumer.number in self._served:
            self._ring.add(consumer)

    def redeliver(
        self, consumer: BrokerConsumer, ranges: Sequence[Run] | None, *, delay_ms: int | None = None
    ) -> None:
        if ranges is None:
            unseen = offsets_in(consumer.take_inbox())
            back, consumer.offsets = consumer.offsets, BitMap64()
            self._out -= len(back)
            seen = back - unseen
        else:
            back = set_of(ranges) & consumer.offsets
            if consumer.inbox:  # the client has not seen these
                back -= offsets_in(consumer.inbox)
            self._taken_from(consumer, back)
            seen = back
        consumer.redelivered += len(seen)
        self._put_back(back, seen, delay_ms)
        self._asks(consumer)
        self.pump()

    def _put_back(self, offsets: BitMap64, seen: BitMap64, delay_ms: int | None = None) -> None:
        if seen:
            self._counts.count(seen)
            hooks = self._side.hooks
            gone = (
                hooks.returned(seen, self._counts) if hooks is not None and self._queue else None
            ) or BitMap64()
            gone = gone | self._retries.failed(seen - gone, delay_ms)
            if gone:
                self._aside |= gone
                offsets = offsets - gone
        self._ready.add(offsets)

    def lease(self, consumer: BrokerConsumer, ranges: Sequence[Run], span_ms: int) -> None:
        """Lease messages that the consumer has or leased before: unless acknowledged, they fail after the span,
        whether or not the consumer is still connected."""
        found = set_of(ranges)
        mine = found & consumer.offsets
        self._taken_from(consumer, mine)
        self._asks(consumer)
        self._aside |= mine
        again = found - mine
        if again:
            again &= self._aside & self._retries.leased()
        self._retries.lease(mine, again, span_ms)

    def lease_over(self, offsets: BitMap64) -> None:
        """Handle expired leases: unacknowledged messages have failed, and need no further redelivery delay."""
        failed = (offsets & self._aside) - self._dead()
        self._aside -= failed
        self._put_back(self._read_before(failed), failed, 0)
        self.pump()

    def _read_before(self, offsets: BitMap64) -> BitMap64:
        """Those before `read_at`; later ones become ready when the scan of the log reaches them."""
        found = BitMap64(offsets)
        if found and found.max() >= self.read_at:
            found.remove_range(self.read_at, found.max() + 1)
        return found

    def set_aside(self, consumer: BrokerConsumer | None, ranges: Sequence[Run]) -> BitMap64:
        """Set aside messages that the consumer has, or (None) that are ready; return them."""
        found = set_of(ranges)
        if consumer is not None:
            found &= consumer.offsets | (self._aside & self._retries.leased())
            self._taken_from(consumer, found)
            self._asks(consumer)
            self._counts.count(found)
        else:
            for other in self._consumers.values():
                found -= other.offsets
            found -= self._aside
            for first, end in ranges:
                self._ready.drop(first, end)
                self._selecting.drop(first, end)
        self._aside |= found
        return found

    def put_back(self, offsets: BitMap64) -> None:
        """Make messages that were aside ready again."""
        back = (offsets & self._aside) - self._dead()
        self._aside -= back
        self._ready.add(self._read_before(back))
        self.pump()

    def deliver_again(self, batch: Batch, offset: int, *, acked: bool) -> bool | None:
        """None with message groups: a message may not overtake an unacknowledged one of its group."""
        if offset >= self.read_at or is_on_its_way(self.consumers, offset) or offset in self._dead():
            return False
        one = BitMap64([offset])
        if not acked and one.isdisjoint(self.unready()):
            return False
        if self._groups is not None:
            return None
        self._take_from_all(one)
        self._aside -= one
        self._counts.count(one)
        if self._levels is None:
            self._ready.add(one)
        else:
            self._levels.note(batch.base_offset, [offset - batch.base_offset], self._levels_of(batch))
        self.pump()
        return True

    def forget_ready(self, end: int) -> BitMap64:
        """Drop all ready messages before `end`; the caller acknowledges them. Return the messages that are not
        ready."""
        kept = self.unready()
        self._ready.empty(kept)
        self._selecting.clear()
        self._counts.keep(kept)
        self._retries.keep(kept)
        self.read_at = max(self.read_at, end)
        return kept

    def unready(self) -> BitMap64:
        """Messages that are with a consumer or aside."""
        found = BitMap64(self._aside)
        for consumer in self._consumers.values():
            found |= consumer.offsets
        return found

    def _take_from_all(self, offsets: BitMap64) -> None:
        """Remove the messages from the consumers that have them."""
        for consumer in self._consumers.values() if self._out else ():
            if consumer.offsets and not consumer.offsets.isdisjoint(offsets):
                self._taken_from(consumer, offsets)
                self._asks(consumer)

    def settled(self, consumer: BrokerConsumer | None, ranges: Sequence[Run]) -> bool:
        held_back = self._capped or (self._sole is None and self._ring.holds_back)
        others: list[Run] = []
        for first, end in ranges:
            if consumer is not None and consumer.offsets.contains_range(first, end):
                consumer.offsets.remove_range(first, end)
                self._out -= end - first
                if self._levels is not None:
                    self._levels.unmark(first, end)
                if self._groups is not None:
                    self._groups.settled(first, end)
                continue
            others.append((first, end))
            self._aside.remove_range(first, end)
            self._ready.drop(first, end)
            self._selecting.drop(first, end)
        if others:
            self._take_from_all(set_of(others))
        if self._counts:
            for first, end in ranges:
                self._counts.forget(first, end)
        if held_back and consumer is not None:
            self._asks(consumer)
        return held_back or self._groups is not None

    def rewind(self) -> None:
        self._out = 0
        for consumer in self._consumers.values():
            consumer.take_inbox()
            consumer.offsets.clear()
            self._asks(consumer)
        self._ready.clear()
        self._selecting.clear()
        self._counts.clear()
        self._retries.clear()
        self._aside = BitMap64(self._dead())
        self.read_at = self._desk.cursor.mark_delete + 1
        self._look_through()
        self.pump()

    def close(self) -> None:
        self._brake.close()
        self.looked.wake()
