"""Message expiry of a queue: removes expired messages at the head of the queue before delivery.

The time to live counts from a message's arrival in the queue; the lower value of the queue's and the message's TTL
applies. As in RabbitMQ, only the oldest ready message can expire: an expired message behind an unexpired one stays
in the queue until it is at the head. A message that has just arrived is delivered regardless of its TTL, so that 0
means immediate delivery or expiry.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pyroaring import BitMap64

from weir.broker.subscriptions.subscription import Subscription
from weir.model.batch import Batch, BatchFormat, indices_of
from weir.model.errors import WeirError, WireError
from weir.model.queues import QueueRules
from weir.runtime.interfaces import Clock, Timer
from weir.runtime.tasks import TaskScope
from weir.wire.formats.messages import decode_messages

#: Offsets scanned together.
_WINDOW = 1024


def oldest_ready(subscription: Subscription, most: int, end: int | None = None) -> BitMap64:
    """Offsets of the oldest ready messages, at most `most`, before `end`."""
    found = BitMap64()
    dispatcher = subscription.per_message()
    if dispatcher is None or most <= 0:
        return found
    source, cursor = subscription.source, subscription.cursor
    end = source.end_offset if end is None else min(end, source.end_offset)
    unready, hidden = dispatcher.unready(), source.hidden
    offset = max(cursor.next_unacked(0), source.start_offset)
    while offset < end and len(found) < most:
        count = min(_WINDOW, end - offset)
        some = BitMap64([offset + index for index in indices_of(cursor.unacked_mask(offset, count))])
        some -= unready
        if hidden:
            some -= hidden
        if len(found) + len(some) > most:
            some = some[: most - len(found)]
        found |= some
        offset = cursor.next_unacked(offset + count)
    return found


#: The header with a message's own TTL, in milliseconds.
EXPIRATION = "amqp-expiration"
_NAME = EXPIRATION.encode()
_MOST_DIGITS = 15
#: Batches with cached TTLs of their messages.
_REMEMBERED = 64
#: Messages scanned between two pauses.
_AT_ONCE = 1000
#: Longest timer; a later deadline sets it again.
_LONGEST_S = 3600.0
_AGAIN_S = 1.0
_NOTHING: Mapping[int, int] = {}


class KeptQueue(Protocol):
    """A queue as the enforcers of its limits need it."""

    @property
    def name(self) -> str: ...

    @property
    def rules(self) -> QueueRules: ...

    @property
    def subscription(self) -> Subscription | None: ...

    @property
    def alive(self) -> bool: ...


class Expiry:
    """Expires the messages of one queue. `give_up`: receives the expired ready messages."""

    def __init__(
        self,
        queue: KeptQueue,
        give_up: Callable[[BitMap64], None],
        end_offset: int,
        *,
        clock: Clock,
        tasks: TaskScope,
    ) -> None:
        self._queue = queue
        self._give_up = give_up
        self._clock = clock
        self._tasks = tasks
        #: Messages before this offset predate this object: each of them may have its own TTL.
        self._unknown_to = end_offset
        #: Whether a message with its own TTL arrived since.
        self._has_own_ttl = False
        #: Messages from this offset on have just arrived.
        self._fresh_from = end_offset
        self._words: dict[int, Mapping[int, int]] = {}
        self._timer: Timer | None = None
        self._looking: asyncio.Task[None] | None = None
        self._again = False

    @property
    def waits(self) -> bool:
        """Whether an expiry of the head is scheduled, or a scan for it runs."""
        return self._timer is not None or self._looking is not None

    def told(self) -> None:
        """Note the publish of messages with their own TTL."""
        self._has_own_ttl = True

    def aged(self, end_offset: int) -> None:
        """Messages before the offset no longer count as just arrived."""
        self._fresh_from = end_offset

    def grown(self, end_offset: int) -> None:
        """After the delivery of new messages to consumers: the undelivered ones can now expire."""
        self.aged(end_offset)
        if self._timer is None:
            self.look()

    @property
    def _idle(self) -> bool:
        """Whether no message can expire."""
        return (
            self._queue.rules.message_ttl_ms is None
            and not self._has_own_ttl
            and ((found := self._queue.subscription) is None or found.cursor.mark_delete + 1 >= self._unknown_to)
        )

    # --- before delivery ----------------------------------------------------------------------------------------

    def expired(self, batch: Batch, indices: Sequence[int]) -> Sequence[int]:
        """The expired messages of these; ascending."""
        if batch.base_offset >= self._fresh_from:
            return ()
        ttl, words = self._queue.rules.message_ttl_ms, self._words_of(batch)
        if ttl is None and not words:
            return ()
        age = self._clock.wall_ms() - batch.append_ms
        if not words:
            return indices if ttl is not None and age >= ttl else ()
        return [index for index in indices if (has := _lower(ttl, words.get(index))) is not None and age >= has]

    def _words_of(self, batch: Batch) -> Mapping[int, int]:
        """The own TTLs of the messages of a batch, in milliseconds, by index; cached."""
        without = not self._has_own_ttl and batch.base_offset >= self._unknown_to
        if batch.format is not BatchFormat.MESSAGES or without:
            return _NOTHING
        known = self._words.get(batch.base_offset)
        if known is None:
            known = words_in(batch)
            if len(self._words) >= _REMEMBERED:
                del self._words[next(iter(self._words))]
            self._words[batch.base_offset] = known
        return known

    # --- the head -----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Scan the head of the queue, which may have changed."""
        if self._looking is not None:
            self._again = True
        elif not self._idle and self._queue.alive:
            self._looking = self._tasks.spawn(self._look(), f"expiry of {self._queue.name}")

    def changed_head(self) -> None:
        """Scan after a delivery: the new head may expire earlier than the old one."""
        if self._has_own_ttl or self._timer is None:
            self.look()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _look(self) -> None:
        try:
            self._again = True
            while self._again:
                self._again = False
                self.close()
                due_ms = await self._give_up_expired()
                if due_ms is not None and not self._again:
                    wait_s = min(max(0.0, (due_ms - self._clock.wall_ms()) / 1000), _LONGEST_S)
                    self._timer = self._clock.call_later(wait_s, self._rung)
        except WeirError:  # the head is unreadable now: scan again later
            self._timer = self._clock.call_later(_AGAIN_S, self._rung)
        finally:
            self._looking = None

    def _rung(self) -> None:
        self._timer = None
        self.look()

    async def _give_up_expired(self) -> int | None:
        """Give up all expired messages from the head on; return the expiry time of the new head, None if it has
        none."""
        while True:
            subscription = self._queue.subscription
            head = None if subscription is None else oldest_ready(subscription, 1)
            if subscription is None or not head:
                return None
            first = head.min()
            batches = await subscription.source.read(first, 1)
            if not batches:
                return None
            batch = batches[0]
            if batch.base_offset > first:
                return None  # it was trimmed; readers notice this themselves
            ready = oldest_ready(subscription, min(_AT_ONCE, batch.end_offset - first), batch.end_offset)
            more, due_ms = self._ripe(batch, ready)
            if ready:
                self._give_up(ready)
            if not more:
                return due_ms
            await self._clock.sleep(0)

    def _ripe(self, batch: Batch, ready: BitMap64) -> tuple[bool, int | None]:
        """Reduce `ready` to the expired messages before the first unexpired one. Returns whether all are expired,
        else the expiry time of that message (None if it never expires)."""
        ttl, words = self._queue.rules.message_ttl_ms, self._words_of(batch)
        now_ms = self._clock.wall_ms()
        for offset in ready:
            has = _lower(ttl, words.get(offset - batch.base_offset)) if words else ttl
            if has is None or now_ms < batch.append_ms + has:
                ready.remove_range(offset, batch.end_offset)
                return False, None if has is None else batch.append_ms + has
            if not words:
                break  # all messages of the batch have the same arrival time
        return True, None


def words_in(batch: Batch) -> Mapping[int, int]:
    """The own TTLs of the messages of a batch, in milliseconds, by index."""
    if bytes(batch.payload).find(_NAME) < 0:
        return _NOTHING
    try:
        messages = decode_messages(batch.payload)
    except WireError:
        return _NOTHING
    found: dict[int, int] = {}
    for index, message in enumerate(messages):
        for name, value in message.headers:
            if name == EXPIRATION and value is not None and value.isdigit() and len(value) <= _MOST_DIGITS:
                found[index] = int(value)
    return found


def _lower(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)
