"""Enforcement of a queue's rules: length limits, message expiry, dead letters, and expiry of unused queues.

A queue over its length limit drops messages from its head, or refuses new ones. Limits count ready messages and
the bytes of their bodies. Messages on their way into the log count as ready; messages covered by consumer credit
do not, because they are delivered at once.

An unused queue expires after the time in its rules without a consumer, a declaration or a get. The time starts
when this broker opens the queue.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pyroaring import BitMap64

from weir.broker.api.queues import QueueMessages
from weir.broker.dead_letters.letters import Destination
from weir.broker.dead_letters.outbox import DeadLetters
from weir.broker.queues.message_expiry import Expiry, KeptQueue, oldest_ready
from weir.broker.subscriptions.consumer import BrokerConsumer
from weir.broker.subscriptions.in_flight import runs_in
from weir.broker.subscriptions.redelivery import Redeliveries
from weir.broker.subscriptions.subscription import Subscription
from weir.model.batch import Batch, BatchFlags, Run
from weir.model.errors import WeirError
from weir.model.ids import Buffer
from weir.model.queues import DELAYED_PREFIX, Overflow, QueueRules
from weir.runtime.interfaces import Clock, Runtime, Timer
from weir.runtime.tasks import TaskScope, Turns
from weir.wire.amqp.dead_letter import Reason
from weir.wire.formats.messages import decode_messages, join_messages
from weir.wire.formats.table import opening

#: Bytes per read when measuring message sizes.
_READ_BYTES = 256 * 1024
#: Messages dropped at a time.
_AT_ONCE = 1000


class _Sizes(NamedTuple):
    """The sizes of the messages of a batch."""

    base: int
    sizes: "array[int]"
    total: int

    @property
    def end(self) -> int:
        return self.base + len(self.sizes)


class Length:
    """Enforces the length limits of one queue. `give_up`: receives the surplus ready messages."""

    def __init__(
        self, queue: KeptQueue, give_up: Callable[[BitMap64], None], turns: Turns, *, tasks: TaskScope
    ) -> None:
        self._queue = queue
        self._give_up = give_up
        self._turns = turns
        self._tasks = tasks
        self._under_way = 0
        self._under_way_bytes = 0
        self._unlearned_bytes = 0
        #: With a limit on bytes: sizes of all unacknowledged batches, up to `_known_to`.
        self._sizes: deque[_Sizes] = deque()
        self._bytes = 0
        self._known_to = 0
        self._checking: asyncio.Task[None] | None = None
        self._again = False

    # --- publishing -------------------------------------------------------------------------------------

    def refused(self, encoded: Sequence[Buffer]) -> int:
        """The messages that the queue refuses, as bits."""
        rules = self._queue.rules
        if rules.overflow is Overflow.DROP_HEAD or (rules.max_length is None and rules.max_bytes is None):
            return 0
        subscription = self._queue.subscription
        ready = self._under_way + (0 if subscription is None else ready_in(subscription))
        credit = 0 if subscription is None else credit_in(subscription)
        sizes = body_sizes(encoded) if rules.max_bytes is not None else None
        size = self._under_way_bytes + self._unlearned_bytes
        size += self._ready_bytes(size + sum(sizes or ()))
        bits = 0
        for place in range(len(encoded)):
            own = 0 if sizes is None else sizes[place]
            over = rules.max_length is not None and ready + 1 > rules.max_length + credit
            over |= rules.max_bytes is not None and not credit and size + own > rules.max_bytes
            if over or rules.max_length == 0 or rules.max_bytes == 0:
                bits |= 1 << place
            else:
                ready, size = ready + 1, size + own
        return bits

    def sent(self, encoded: Sequence[Buffer], done: "asyncio.Future[int]") -> None:
        """Count messages on their way into the log."""
        rules = self._queue.rules
        if rules.overflow is Overflow.DROP_HEAD or (rules.max_length is None and rules.max_bytes is None):
            return
        count = len(encoded)
        size = sum(body_sizes(encoded)) if rules.max_bytes is not None else 0
        self._under_way += count
        self._under_way_bytes += size

        def stored(_: "asyncio.Future[int]") -> None:
            self._under_way -= count
            self._under_way_bytes -= size
            subscription = self._queue.subscription
            if size and subscription is not None and self._known_to < subscription.source.end_offset:
                self._unlearned_bytes += size
                self.check()

        done.add_done_callback(stored)

    # --- surplus ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the length after a change of the queue or of its limits."""
        rules = self._queue.rules
        if rules.max_length is None and rules.max_bytes is None:
            return
        if self._checking is not None:
            self._again = True
        elif rules.max_bytes is not None or self._excess(rules):
            self._checking = self._tasks.spawn(self._check(), f"length of {self._queue.name}")

    async def enforced(self) -> None:
        """Wait until the queue, as it is now, is within its limits."""
        self.check()
        if self._checking is not None:
            await asyncio.wait([self._checking])

    def _excess(self, rules: QueueRules) -> int:
        subscription = self._queue.subscription
        if subscription is None or rules.max_length is None or rules.overflow is not Overflow.DROP_HEAD:
            return 0
        return max(0, ready_in(subscription) - rules.max_length)

    async def _check(self) -> None:
        try:
            self._again = True
            while self._again:
                self._again = False
                if self._queue.rules.max_bytes is not None:
                    await self._learn()
                while await self._drop_some():
                    await self._turns.next()
        except WeirError:
            pass  # unreadable now: the next message triggers another check
        finally:
            self._checking = None

    async def _drop_some(self) -> bool:
        """Drop some surplus messages; return whether more may remain."""
        rules, subscription = self._queue.rules, self._queue.subscription
        if subscription is None or rules.overflow is not Overflow.DROP_HEAD:
            return False
        excess = min(self._excess(rules), _AT_ONCE)
        over_bytes = 0 if rules.max_bytes is None else self._ready_bytes() - rules.max_bytes
        if excess <= 0 and over_bytes <= 0:
            return False
        head = oldest_ready(subscription, max(excess, _AT_ONCE if over_bytes > 0 else 0))
        for place, offset in enumerate(head):
            if place >= excess and over_bytes <= 0:
                head.remove_range(offset, subscription.source.end_offset)
                break
            over_bytes -= self._size_of(offset)
        if not head:
            return False
        self._give_up(head)
        return True

    # --- bytes ------------------------------------------------------------------------------------------

    async def _learn(self) -> None:
        """Read the sizes of new messages."""
        subscription = self._queue.subscription
        if subscription is None:
            return
        source = subscription.source
        self._known_to = max(self._known_to, subscription.cursor.mark_delete + 1, source.start_offset)
        while self._known_to < source.end_offset:
            batches = await source.read(self._known_to, _READ_BYTES)
            if not batches:
                return
            for batch in batches:
                if batch.end_offset > self._known_to:
                    await self._note(batch)
        self._unlearned_bytes = 0

    async def _note(self, batch: Batch) -> None:
        if batch.flags & BatchFlags.UNSEEN:  # it may represent millions of messages
            self._known_to = batch.end_offset
            return
        messages = await self._turns.through(opening(batch))
        sizes = array("I", [len(message.value or b"") for message in messages])
        if len(sizes) != batch.count:  # one represents all
            sizes = array("I", [len(batch.payload) // batch.count] * batch.count)
        self._sizes.append(_Sizes(batch.base_offset, sizes, sum(sizes)))
        self._bytes += self._sizes[-1].total
        self._known_to = batch.end_offset

    def _ready_bytes(self, more: int = 0) -> int:
        """The known bytes of ready messages; an upper bound if even that plus `more` is within the limit."""
        rules, subscription = self._queue.rules, self._queue.subscription
        if rules.max_bytes is None or subscription is None:
            return 0
        cursor = subscription.cursor
        while self._sizes and self._sizes[0].end <= cursor.mark_delete + 1:
            self._bytes -= self._sizes.popleft().total
        if self._bytes + more <= rules.max_bytes:
            return self._bytes
        if cursor.holes or (self._sizes and self._sizes[0].base <= cursor.mark_delete):
            self._sizes = deque(one for one in self._sizes if not cursor.all_acked(one.base, one.end))
            self._bytes = sum(one.total for one in self._sizes)
        dispatcher = subscription.per_message()
        unready = BitMap64() if dispatcher is None else dispatcher.unready()
        gone = 0
        for base, sizes, _ in self._sizes:
            count = len(sizes)
            waiting = cursor.unacked_mask(base, count)
            if waiting.bit_count() != count or unready.range_cardinality(base, base + count):
                gone += sum(
                    size for place, size in enumerate(sizes) if base + place in unready or not waiting >> place & 1
                )
        return self._bytes - gone

    def _size_of(self, offset: int) -> int:
        for base, sizes, _ in self._sizes:
            if base <= offset < base + len(sizes):
                return sizes[offset - base]
        return 0


def ready_in(subscription: Subscription) -> int:
    """The number of visible messages that no consumer has in flight."""
    dispatcher = subscription.per_message()
    aside = 0 if dispatcher is None else dispatcher.aside
    return max(0, subscription.backlog - subscription.unacked - aside)


def credit_in(subscription: Subscription) -> int:
    """The total credit of the active consumers."""
    dispatcher = subscription.per_message()
    return 0 if dispatcher is None else sum(max(0, one.capacity) for one in dispatcher.served if one.active)


def body_sizes(encoded: Sequence[Buffer]) -> list[int]:
    return [len(message.value or b"") for message in decode_messages(join_messages(encoded))]


#: Longest timer; a later deadline sets it again.
_LONGEST_S = 3600.0


class UsedQueue(Protocol):
    @property
    def rules(self) -> QueueRules: ...

    @property
    def consumer_count(self) -> int: ...

    @property
    def alive(self) -> bool: ...


class QueueExpiry:
    """Expiry of an unused queue. `expired`: called after each such period without use, until the queue is gone."""

    def __init__(self, queue: UsedQueue, expired: Callable[[], None], clock: Clock) -> None:
        self._queue = queue
        self._expired = expired
        self._clock = clock
        self._used_s = clock.monotonic()
        self._timer: Timer | None = None
        self._limit_ms: int | None = None

    def used(self) -> None:
        self._used_s = self._clock.monotonic()

    def apply(self) -> None:
        """Apply changed rules."""
        limit_ms = self._queue.rules.expires_ms
        if limit_ms != self._limit_ms:
            self.close()
            self._limit_ms = limit_ms
            self._set()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._limit_ms = None

    def _set(self) -> None:
        if self._limit_ms is not None:
            left_s = self._used_s + self._limit_ms / 1000 - self._clock.monotonic()
            self._timer = self._clock.call_later(min(max(left_s, 0.001), _LONGEST_S), self._rung)

    def _rung(self) -> None:
        self._timer = None
        if self._limit_ms is None or not self._queue.alive:
            return
        if self._queue.consumer_count:
            self.used()
        elif self._clock.monotonic() - self._used_s >= self._limit_ms / 1000:
            self._expired()
            self.used()  # a failed deletion is retried after another period
        self._set()


class RuledQueue(Protocol):
    """A queue as the enforcement of its rules needs it."""

    @property
    def name(self) -> str: ...

    @property
    def rules(self) -> QueueRules: ...

    @property
    def subscription(self) -> Subscription | None: ...

    @property
    def consumer_count(self) -> int: ...

    @property
    def alive(self) -> bool: ...

    def expire(self) -> None:
        """Delete the queue after it was unused for the time in its rules."""


class QueueLimitEnforcer:
    """Implements `queue_side.QueueHooks`. `end_offset`: end of the queue's log when this broker opened it."""

    def __init__(
        self, queue: RuledQueue, letters: DeadLetters, end_offset: int, *, runtime: Runtime, tasks: TaskScope
    ) -> None:
        self._queue = queue
        self._end_offset = end_offset
        self._loop = asyncio.get_running_loop()
        self.letters = letters
        clock = runtime.clock
        self.expiry = Expiry(queue, self._expired, end_offset, clock=clock, tasks=tasks)
        self.length = Length(queue, self._too_many, Turns(clock), tasks=tasks)
        self.unused = QueueExpiry(queue, queue.expire, clock)
        self._looks = False
        #: Numbers of expired messages, and of messages over the length limit.
        self.expired = 0
        self.too_many = 0
        self.apply()

    @property
    def waits(self) -> bool:
        return self.expiry.waits

    def apply(self) -> None:
        """Apply changed rules."""
        self.unused.apply()
        self._look_soon()

    def close(self) -> None:
        self.unused.close()
        self.expiry.close()

    # --- publishers ---------------------------------------------------------------------------------------------

    def admit(self, messages: QueueMessages) -> int:
        """The messages that the queue refuses, as bits; also starts sending dead letters for them, if
        configured."""
        if messages.expirations_ms:
            self.expiry.told()
        refused = self.length.refused(messages.encoded)
        if refused and self._queue.rules.overflow is Overflow.REJECT_PUBLISH_DLX:
            self.letters.refuse(
                [one for place, one in enumerate(messages.encoded) if refused >> place & 1],
                _destination(self._queue.rules),
            )
        return refused

    def grown(self, end_offset: int) -> None:
        """The log has grown, and the consumers received their deliveries."""
        self._end_offset = end_offset
        self._look_soon()

    def _look_soon(self) -> None:
        """Check the ready messages once per turn of the event loop, after deliveries to consumers."""
        if not self._looks:
            self._looks = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._looks = False
        self.expiry.grown(self._end_offset)
        self.length.check()

    # --- the dispatcher -----------------------------------------------------------------------------------------

    def screen(self, batch: Batch, indices: Sequence[int]) -> Sequence[int]:
        gone: Sequence[int] = ()
        base = batch.base_offset
        if self.letters:
            gone = [index for index in indices if base + index in self.letters]
        expired = self.expiry.expired(batch, indices)
        if expired:
            self._take(BitMap64([base + index for index in expired]), Reason.EXPIRED)
            gone = sorted({*gone, *expired}) if gone else expired
        self.expiry.changed_head()
        return gone

    def returned(self, offsets: BitMap64, counts: Redeliveries) -> BitMap64 | None:
        self.expiry.aged(self._end_offset)  # returned messages do not count as just arrived
        self._look_soon()
        limit = self._queue.rules.delivery_limit
        if limit is None:
            return None
        gone = BitMap64()
        for count, some in counts.groups(offsets):
            if count > limit:
                gone |= some
        if gone:
            self._take(gone, Reason.DELIVERY_LIMIT)
        return gone

    # --- consumers ----------------------------------------------------------------------------------------------

    def reject(self, subscription: Subscription, consumer: BrokerConsumer, ranges: Sequence[Run]) -> None:
        """Dead-letter or drop messages that their consumer rejected."""
        dispatcher = subscription.per_message()
        if dispatcher is None or self._queue.rules.dead_letter_exchange is None:
            consumer.ack(ranges)
        else:
            self._take(dispatcher.set_aside(consumer, ranges), Reason.REJECTED)

    # --- expired, surplus, rejected -----------------------------------------------------------------------------

    def _expired(self, offsets: BitMap64) -> None:
        self._give_up(offsets, Reason.EXPIRED)

    def _too_many(self, offsets: BitMap64) -> None:
        self._give_up(offsets, Reason.MAX_LENGTH)

    def _give_up(self, offsets: BitMap64, reason: Reason) -> None:
        """Remove ready messages, as dead letters if configured."""
        subscription = self._queue.subscription
        dispatcher = None if subscription is None else subscription.per_message()
        if dispatcher is not None and offsets:
            self._take(dispatcher.set_aside(None, list(runs_in(offsets))), reason)

    def _take(self, offsets: BitMap64, reason: Reason) -> None:
        if reason is Reason.EXPIRED and self._queue.name.startswith(DELAYED_PREFIX):
            reason = Reason.DUE
        if reason is Reason.EXPIRED:
            self.expired += len(offsets)
        elif reason is Reason.MAX_LENGTH:
            self.too_many += len(offsets)
        to = _destination(self._queue.rules)
        if reason is not Reason.DUE and (subscription := self._queue.subscription) is not None:
            subscription.failing.tell_given_up(offsets - self.letters.offsets, reason, letters=to is not None)
        self.letters.take(offsets, reason, to)


def _destination(rules: QueueRules) -> Destination | None:
    if rules.dead_letter_exchange is None:
        return None
    return Destination(rules.dead_letter_exchange, rules.dead_letter_key)
