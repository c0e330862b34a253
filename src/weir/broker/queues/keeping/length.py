"""How long a queue may be: what is one too many is dropped from its head, or not taken in.

What counts is what is ready, messages and the bytes of their bodies. What is on its way into the log counts as
ready, and what consumers have credit for does not: it goes to them.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyroaring import BitMap64

from weir.broker.dispatch.subscription import Subscription
from weir.broker.queues.keeping.expiry import KeptQueue
from weir.broker.queues.keeping.heads import oldest_ready
from weir.model.batch import Batch, BatchFlags
from weir.model.errors import WeirError
from weir.model.ids import Buffer
from weir.model.queues import Overflow, QueueRules
from weir.runtime.tasks import TaskScope
from weir.runtime.turns import Turns
from weir.wire.formats import opening
from weir.wire.messages import decode_messages, join_messages

#: Read at a time, to learn how large messages are.
_READ_BYTES = 256 * 1024
#: Dropped at a time.
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
    """Of one queue. `give_up`: these are ready, and too many."""

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
        #: With a limit on bytes: of all batches that are not acknowledged, up to an offset.
        self._sizes: deque[_Sizes] = deque()
        self._bytes = 0
        self._known_to = 0
        self._checking: asyncio.Task[None] | None = None
        self._again = False

    # --- what comes -------------------------------------------------------------------------------------

    def refused(self, encoded: Sequence[Buffer]) -> int:
        """Which of these messages the queue does not take, as bits."""
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
        """These are on their way into the log."""
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

    # --- what is too much -------------------------------------------------------------------------------

    def check(self) -> None:
        """The queue may be longer than before, or may be less long."""
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
            pass  # what cannot be read now is looked at when the next one comes
        finally:
            self._checking = None

    async def _drop_some(self) -> bool:
        """Whether there is more to drop."""
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
        """How large the messages are that came since."""
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
        if batch.flags & BatchFlags.UNSEEN:  # it may stand for millions
            self._known_to = batch.end_offset
            return
        messages = await self._turns.through(opening(batch))
        sizes = array("I", [len(message.value or b"") for message in messages])
        if len(sizes) != batch.count:  # one stands for all
            sizes = array("I", [len(batch.payload) // batch.count] * batch.count)
        self._sizes.append(_Sizes(batch.base_offset, sizes, sum(sizes)))
        self._bytes += self._sizes[-1].total
        self._known_to = batch.end_offset

    def _ready_bytes(self, more: int = 0) -> int:
        """Of what is ready, as far as it is known; or more than that, if it does not matter even with `more`."""
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
    """How many messages no consumer has, of those that can be seen."""
    dispatcher = subscription.per_message()
    aside = 0 if dispatcher is None else dispatcher.aside
    return max(0, subscription.backlog - subscription.unacked - aside)


def credit_in(subscription: Subscription) -> int:
    """How many messages consumers wait for."""
    dispatcher = subscription.per_message()
    return 0 if dispatcher is None else sum(max(0, one.capacity) for one in dispatcher.served if one.active)


def body_sizes(encoded: Sequence[Buffer]) -> list[int]:
    return [len(message.value or b"") for message in decode_messages(join_messages(encoded))]
