"""Durable queues and streams, both stored in a topic.

A durable queue is the topic with its subscription `queue`; it contains all messages of the topic. The consumers of
a stream read the topic from any position and remove nothing.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any

from weir.broker.api.consumers import StartAt, SubscribeRequest, SubscriptionType
from weir.broker.api.producers import Outgoing, Receipt
from weir.broker.api.queues import ConsumeRequest, QueueCounts, QueueMessages
from weir.broker.publish.producers import BrokerProducer
from weir.broker.queues.local_queue import LocalConsumer, LocalQueue, QueueOwner, StreamConsumer
from weir.broker.queues.queue_arguments import max_age_ms
from weir.broker.queues.queue_limits import QueueLimitEnforcer
from weir.broker.subscriptions.consumer import BrokerConsumer
from weir.broker.subscriptions.subscription import Subscription
from weir.broker.topics.topic import BrokerTopic
from weir.model.batch import BatchFormat, Stamp
from weir.model.errors import (
    MessageTooLargeError,
    OutOfOrderSequenceError,
    ProducerBusyError,
    ProducerClosedError,
    QueueArgumentError,
    QueueNotFoundError,
    StaleEpochError,
    TopicClosedError,
    WeirError,
)
from weir.model.ids import Buffer
from weir.model.queues import QUEUE_SUBSCRIPTION, QueueDeclaration, QueueKind, QueueRules
from weir.runtime.budgets import ByteShare
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.runtime.waiters import PromptFuture, tell_promptly
from weir.wire.formats.messages import join_messages

log = logging.getLogger(__name__)

#: Largest size of an entry, unless a single message is larger.
_ENTRY_BYTES = 1024 * 1024


class DurableQueue(LocalQueue):
    """Implements `api.Queue`. Closes with the topic, after a change of owner or a deletion."""

    def __init__(
        self, owner: QueueOwner, declaration: QueueDeclaration, topic: BrokerTopic, tasks: TaskScope
    ) -> None:
        super().__init__(owner, declaration, topic.name.namespace)
        self.topic = topic
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._producer: BrokerProducer | None = None
        #: Waits until the topic knows the outcome of failed publishes; and the messages published meanwhile, in
        #: order.
        self._settling: asyncio.Task[None] | None = None
        self._deferred: list[tuple[QueueMessages, asyncio.Future[int]]] = []
        self._deferred_bytes = 0
        self._making: asyncio.Future[None] | None = None
        #: The last result that waits for a disk: results of transient messages follow it.
        self._last: asyncio.Future[int] | None = None
        #: The last receipt: once it is complete, all messages published before it are visible.
        self._accepted: asyncio.Future[Receipt] | None = None

    def keep(self, runtime: Runtime) -> None:
        """Start applying the queue's rules."""
        topic = self.topic
        letters = topic.letters.of(QUEUE_SUBSCRIPTION)
        keeper = self.keeper = QueueLimitEnforcer(
            self, letters, topic.end_offset, runtime=runtime, tasks=self._tasks
        )
        topic.queue_side.hooks = keeper
        topic.on_death(keeper.close)

    def topic_changed(self) -> None:
        """The topic has grown, or this broker has closed it."""
        keeper = self.keeper
        if self.topic.alive:
            if keeper is not None:
                keeper.grown(self.topic.stable_offset)
            return
        if keeper is not None:
            keeper.close()
        self._owner.closed(self)

    def declared(self) -> None:
        """Allow transient messages: the topic has a queue declaration."""
        self.topic.transient.allow()

    @property
    def rules(self) -> QueueRules:
        return self.topic.queue_rules

    @property
    def alive(self) -> bool:
        return self.topic.alive and not self.gone

    @property
    def subscription(self) -> Subscription | None:
        return self.topic.subscriptions.get(QUEUE_SUBSCRIPTION)

    async def ensure_subscription(self) -> Subscription:
        """Return the subscription; create it, durably, at the oldest message if it does not exist."""
        while (making := self._making) is not None:
            await asyncio.wait([making])
        found = self.subscription
        if found is not None:
            return found
        self._making = self._loop.create_future()
        try:
            return await self.topic.stored.create_subscription(QUEUE_SUBSCRIPTION, StartAt())
        finally:
            self._making.set_result(None)
            self._making = None

    async def subscribe(self, request: SubscribeRequest, share: ByteShare | None) -> BrokerConsumer:
        return await self.topic.subscribe(request, delivery_share=share)

    def _unsubscribed_messages(self) -> int:
        return max(0, self.topic.stable_offset - self.topic.start_offset)

    # --- publishing -------------------------------------------------------------------------------------

    def publish(self, messages: QueueMessages) -> "asyncio.Future[int]":
        answer: asyncio.Future[int] = PromptFuture(loop=self._loop)
        producer = self._ready_producer()
        if isinstance(producer, WeirError):
            answer.set_exception(producer)
        elif producer is None or self._deferred:
            self._defer(messages, answer)
        else:
            self._publish(producer, messages, answer)
        return answer

    def _defer(self, messages: QueueMessages, answer: "asyncio.Future[int]") -> None:
        """Publish it once the topic knows the outcome of failed publishes. This takes a moment; the next message
        that can be stored then follows."""
        size = sum(map(len, messages.encoded))
        if self._deferred and self._deferred_bytes + size > _DEFERRED_BYTES:
            answer.set_exception(_closed())
            return
        self._deferred.append((messages, answer))
        self._deferred_bytes += size
        if self._settling is None:
            self._settling = self._tasks.spawn(self._settle(), "settle")

    def _publish(self, producer: BrokerProducer, messages: QueueMessages, answer: "asyncio.Future[int]") -> None:
        refused = 0 if self.keeper is None else self.keeper.admit(messages)
        if refused:
            messages = taken_of(messages, refused)
        receipts = self._send(producer, messages)
        if self.keeper is not None:
            self.keeper.length.sent(messages.encoded, answer)
        if receipts:
            self._accepted = receipts[-1]
        if not (messages.persistent or self._replicated) or not receipts:
            self._answer_at_once(receipts, answer, refused)
            return
        self._last = answer
        left = len(receipts)

        def stored(receipt: "asyncio.Future[Receipt]") -> None:
            nonlocal left
            left -= 1
            if answer.done():
                receipt.exception()  # mark it as retrieved
            elif (failure := receipt.exception()) is not None:
                answer.set_exception(failure)
            elif not left:
                answer.set_result(refused)

        for receipt in receipts:
            tell_promptly(receipt, stored)

    async def accepted(self) -> None:
        if self._settling is not None:
            await asyncio.wait([self._settling])
        last = self._accepted
        if last is not None:
            if not last.done():
                await asyncio.wait([last])
            if self._accepted is last:
                self._accepted = None

    def _send(self, producer: BrokerProducer, messages: QueueMessages) -> "Sequence[asyncio.Future[Receipt]]":
        if not messages.encoded:
            return []
        entries = self._entries(messages.encoded)
        if messages.kept:
            self.topic.keep_for_queue()
        if messages.stamp is not None:
            return self._send_stamped(producer, entries, messages.stamp)
        in_memory = self._stays_in_memory(messages)
        outgoings = [
            Outgoing(
                join_messages(entry),
                len(entry),
                BatchFormat.MESSAGES,
                deliver_at_ms=messages.deliver_at_ms,
                in_memory=in_memory,
            )
            for entry in entries
        ]
        if len(outgoings) > 1:
            together = producer.publish_all(outgoings)
            if together is not None:
                return [together]
        return [producer.publish(outgoing) for outgoing in outgoings]

    @property
    def _replicated(self) -> bool:
        """As in RabbitMQ, all messages in a quorum queue are persistent."""
        return self.topic.queue_rules.kind is QueueKind.QUORUM

    def _stays_in_memory(self, messages: QueueMessages) -> bool:
        """Whether the messages stay in memory only. Delayed messages are always stored durably."""
        if messages.persistent or messages.deliver_at_ms is not None or self._replicated:
            return False
        return self.topic.transient.takes(sum(map(len, messages.encoded)))

    def _send_stamped(
        self, producer: BrokerProducer, entries: Sequence[Sequence[Buffer]], stamp: Stamp
    ) -> "Sequence[asyncio.Future[Receipt]]":
        """Send dead letters. Messages that the topic already stored, or never accepts, count as sent."""
        receipts: list[asyncio.Future[Receipt]] = []
        sequence = stamp.sequence
        for entry in entries:
            numbered = Stamp(stamp.producer_id, stamp.epoch, sequence)
            outgoing = Outgoing(join_messages(entry), len(entry), BatchFormat.MESSAGES, stamp=numbered)
            receipt: asyncio.Future[Receipt] = self._loop.create_future()
            producer.publish(outgoing).add_done_callback(partial(_done_with, receipt))
            receipts.append(receipt)
            sequence += len(entry)
        return receipts

    def _entries(self, encoded: Sequence[Buffer]) -> list[Sequence[Buffer]]:
        """Join messages into as few entries as possible, each within the topic's size limit unless a single
        message exceeds it."""
        limit = self.topic.policies.max_message_bytes or 0
        most = min(_ENTRY_BYTES, limit or _ENTRY_BYTES) - _HEAD_BYTES
        size = sum(map(len, encoded))
        if size <= most:
            return [encoded]
        entries: list[Sequence[Buffer]] = []
        first = size = 0
        for place, message in enumerate(encoded):
            if place > first and size + len(message) > most:
                entries.append(encoded[first:place])
                first, size = place, 0
            size += len(message)
        entries.append(encoded[first:])
        return entries

    def _answer_at_once(
        self, receipts: "Sequence[asyncio.Future[Receipt]]", answer: "asyncio.Future[int]", refused: int
    ) -> None:
        """Answer once the topic accepted or refused transient messages, in the order of the calls."""
        failed = next((r.exception() for r in receipts if r.done() and r.exception() is not None), None)
        for receipt in receipts:
            receipt.add_done_callback(_looked_at)
        last = self._last

        def say(_: object = None) -> None:
            if answer.done():  # the caller no longer waits
                return
            if failed is not None:
                answer.set_exception(failed)
            else:
                answer.set_result(refused)

        if last is None or last.done():
            self._last = None
            say()
        else:
            last.add_done_callback(say)
            self._last = answer

    def _ready_producer(self) -> BrokerProducer | WeirError | None:
        """The broker's own producer; a new one after a failure, None until the outcome of the failure is known."""
        topic = self.topic
        if not self.alive:
            return TopicClosedError(f"{topic.name} is not served here any more")
        if topic.producers.exclusive:
            return ProducerBusyError(f"{topic.name} has an exclusive producer")
        if topic.producers.over_quota is not None:
            return topic.producers.over_quota
        producer = self._producer
        if producer is not None and producer.failures_seen == topic.stream.failures:
            return producer
        if topic.publisher.failed:
            return None
        self._producer = producer = topic.writing.produce_as_broker("weir-queue")
        return producer

    async def _settle(self) -> None:
        """Publish deferred messages after one attempt to settle: while the disk is full, the queue refuses
        publishes instead of buffering them."""
        try:
            with suppress(WeirError):
                await self.topic.writing.settled(patient=False)
        finally:
            self._settling = None
            deferred, self._deferred, self._deferred_bytes = self._deferred, [], 0
            for messages, answer in deferred:
                producer = self._ready_producer()
                if answer.done():  # the caller no longer waits
                    continue
                if isinstance(producer, BrokerProducer):
                    self._publish(producer, messages, answer)
                else:
                    answer.set_exception(producer or _closed())

    @property
    def has_capacity(self) -> bool:
        return self.topic.publisher.has_capacity

    async def wait_capacity(self) -> None:
        await self.topic.publisher.wait_capacity()


#: Most bytes of deferred messages while the outcome of failed publishes is unknown.
_DEFERRED_BYTES = 4 * 1024 * 1024
#: Bytes before the messages of an entry.
_HEAD_BYTES = 5
#: Errors for a stamp of an earlier epoch, or with sequence numbers that the topic already stored.
_STORED_BEFORE = (StaleEpochError, OutOfOrderSequenceError)


def _closed() -> ProducerClosedError:
    return ProducerClosedError("earlier messages could not be stored", hint="publish the messages again")


def taken_of(messages: QueueMessages, refused: int) -> QueueMessages:
    """The messages without the refused ones."""
    return replace(
        messages, encoded=[one for place, one in enumerate(messages.encoded) if not refused >> place & 1]
    )


def _done_with(receipt: "asyncio.Future[Receipt]", done: "asyncio.Future[Receipt]") -> None:
    failure = done.exception()
    if failure is None or isinstance(failure, _STORED_BEFORE):
        receipt.set_result(Receipt(-1, (-1, -1), duplicate=True))
    elif isinstance(failure, MessageTooLargeError):
        log.warning("a dead letter is dropped: %s", failure)
        receipt.set_result(Receipt(-1, (-1, -1)))
    else:
        receipt.set_exception(failure)


def _looked_at(receipt: "asyncio.Future[Receipt]") -> None:
    if not receipt.cancelled():
        receipt.exception()


#: Prefix of the subscriptions of stream consumers; each ends with its consumer.
_PREFIX = "stream-"
_NUMBERS = count(1)


async def offset_in(topic: BrokerTopic, wanted: Any, now_ms: int) -> int:
    """The start offset of a consumer with this `x-stream-offset`; without one, the end. QueueArgumentError."""
    match wanted:
        case None | "next":
            return topic.end_offset
        case "first":
            return topic.start_offset
        case "last":  # the last batch
            batches = await topic.read(max(topic.start_offset, topic.end_offset - 1), 1)
            return batches[0].base_offset if batches else topic.end_offset
        case bool():
            pass
        case int():
            if wanted >= 0:
                return max(topic.start_offset, min(wanted, topic.end_offset))
        case datetime():
            return await topic.offset_at(int(wanted.timestamp() * 1000))
        case str() if (ago := max_age_ms(wanted)) is not None:
            return await topic.offset_at(now_ms - ago)
    raise QueueArgumentError(
        f"invalid value {wanted!r} of x-stream-offset",
        hint="use first, last, next, an offset, a timestamp or an interval such as 7D or 1h",
    )


class StreamQueue(DurableQueue):
    """A stream. Each consumer has its own subscription, which ends with it."""

    async def ensure_subscription(self) -> Subscription:
        raise QueueArgumentError(
            f"{self.said} is a stream: nothing is taken away from it",
            hint="consume it, with x-stream-offset to say where to begin",
        )

    async def consume(self, request: ConsumeRequest, *, share: ByteShare | None = None) -> LocalConsumer:
        topic = self.topic
        name = f"{_PREFIX}{request.tag or 'consumer'}-{next(_NUMBERS)}"
        try:
            await self.accepted()  # the end includes all confirmed messages
            start = await offset_in(topic, request.stream_offset, topic.stream.now_ms)
            consumer = await self.subscribe(
                SubscribeRequest(
                    request.role,
                    name,
                    SubscriptionType.SHARED,
                    consumer_name=request.tag,
                    durable=False,
                    start=StartAt(offset=start),
                    address=request.address,
                    per_message=True,
                    filter=request.filter,
                ),
                share,
            )
        except TopicClosedError as closed:
            if self.gone:
                raise QueueNotFoundError(f"no {self.said}") from closed
            raise
        return StreamConsumer(self, topic.subscriptions[name], consumer)

    def _passing(self) -> list[Subscription]:
        return [one for one in self.topic.subscriptions.values() if one.name.startswith(_PREFIX)]

    @property
    def consumer_count(self) -> int:
        return sum(len(one.consumers) for one in self._passing())

    def counts_now(self) -> QueueCounts:
        """Current counts; all messages of the stream count as ready."""
        unacked = sum(one.unacked for one in self._passing())
        return QueueCounts(self._unsubscribed_messages(), unacked, self.consumer_count)
