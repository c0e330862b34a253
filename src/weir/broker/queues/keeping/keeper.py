"""The rules of a queue at work: what its dispatcher, its publishers and its consumers ask of them."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from pyroaring import BitMap64

from weir.broker.api import QueueMessages
from weir.broker.dead_letters.outbox import DeadLetters
from weir.broker.dead_letters.parcels import Destination
from weir.broker.dispatch.consumer import BrokerConsumer
from weir.broker.dispatch.offsets import runs_in
from weir.broker.dispatch.redeliveries import Redeliveries
from weir.broker.dispatch.subscription import Subscription
from weir.broker.queues.keeping.expiry import Expiry
from weir.broker.queues.keeping.length import Length
from weir.broker.queues.keeping.unused import UnusedQueue
from weir.model.batch import Batch
from weir.model.bits import Run
from weir.model.queues import DELAYED_PREFIX, Overflow, QueueRules
from weir.runtime import Runtime
from weir.runtime.tasks import TaskScope
from weir.runtime.turns import Turns
from weir.wire.amqp.death import Reason


class RuledQueue(Protocol):
    """What the rules ask of their queue."""

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
        """Nobody has used it for as long as its rules say."""


class QueueKeeper:
    """Fills `queue_side.QueueHooks`. `end_offset`: of the queue's log, when it was opened."""

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
        self.unused = UnusedQueue(queue, queue.expire, clock)
        self._looks = False
        #: Messages that expired, and that were too many.
        self.expired = 0
        self.too_many = 0
        self.apply()

    @property
    def waits(self) -> bool:
        return self.expiry.waits

    def apply(self) -> None:
        """The rules may have changed."""
        self.unused.apply()
        self._look_soon()

    def close(self) -> None:
        self.unused.close()
        self.expiry.close()

    # --- publishers ---------------------------------------------------------------------------------------------

    def admit(self, messages: QueueMessages) -> int:
        """Which of them are not taken in, as bits; dead letters of those that become such are on their way."""
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
        """The log has grown, and consumers got what they wanted of it."""
        self._end_offset = end_offset
        self._look_soon()

    def _look_soon(self) -> None:
        """At what waits, once in a turn of the loop, when consumers have what they get."""
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
        self.expiry.aged(self._end_offset)  # what comes back has not just come
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
        """Not wanted by the consumer that has them."""
        dispatcher = subscription.per_message()
        if dispatcher is None or self._queue.rules.dead_letter_exchange is None:
            consumer.ack(ranges)
        else:
            self._take(dispatcher.set_aside(consumer, ranges), Reason.REJECTED)

    # --- what is given up ---------------------------------------------------------------------------------------

    def _expired(self, offsets: BitMap64) -> None:
        self._give_up(offsets, Reason.EXPIRED)

    def _too_many(self, offsets: BitMap64) -> None:
        self._give_up(offsets, Reason.MAX_LENGTH)

    def _give_up(self, offsets: BitMap64, reason: Reason) -> None:
        """Of what is ready."""
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
