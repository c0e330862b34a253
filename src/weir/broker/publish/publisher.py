"""The publish path of a batch from a producer: limits, deduplication, delayed delivery, append, and receipt."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from weir.broker.api.producers import Outgoing, Receipt
from weir.broker.context import BrokerContext
from weir.broker.log.producer_state_manager import ProducerStateManager
from weir.broker.ports import Holding
from weir.broker.prepared.prepared_messages import PreparedMessages
from weir.broker.publish.deduplication import Deduplication, DedupSwitch, Verdict, answer_duplicate, mirror
from weir.broker.publish.idempotent import IdempotentPublisher
from weir.broker.publish.producers import BrokerProducer
from weir.broker.publish.publish_order import PublishOrder, Waiting
from weir.broker.publish.split_batches import DelayedNames, SplitPublisher
from weir.broker.rates import Histogram, Meter, RateLimit
from weir.broker.trace.message_trace import MessageTrace
from weir.model.batch import Addressed, Batch, BatchFlags, HeldId, Origin
from weir.model.check import check
from weir.model.cluster import ADDRESSED
from weir.model.errors import (
    DuplicateInDoubtError,
    MessageTooLargeError,
    NotAllowedError,
    ProducerClosedError,
    StreamTerminatedError,
    SubscriptionNotFoundError,
    WeirError,
)
from weir.model.messages import FOREVER_MS, Preparation
from weir.model.policies import Policies, Rate
from weir.model.topics import TopicName
from weir.runtime.tasks import TaskScope
from weir.runtime.waiters import PromptFuture, tell_promptly
from weir.stream.log import Stream
from weir.stream.state_log import StateLog

#: The position of a duplicate if that of the first copy is unknown.
_NOWHERE = (-1, -1)


class Addressees(Protocol):
    """The subscriptions of the topic that a batch can be addressed to."""

    def has(self, name: str) -> bool: ...

    def pass_by(self, name: str, first: int, end: int) -> None:
        """These stored offsets are addressed to the named subscription: acknowledge them for all others."""


class Publisher:
    """Publishes synchronously up to the append; receipts of one producer complete in the order of its batches.

    When an append fails, the publisher closes all connected producers (`shut_all`): the broker must not store
    batches that follow a failed one. The producers reconnect and send again.
    """

    def __init__(
        self,
        context: BrokerContext,
        stream: Stream,
        producer_state: ProducerStateManager,
        *,
        state: StateLog,
        tasks: TaskScope,
        policies: Policies,
        shut_all: Callable[[str], None],
        topic: TopicName | None = None,
        half: PreparedMessages | None = None,
        trace: MessageTrace | None = None,
        addressees: Callable[[], Addressees] | None = None,
    ) -> None:
        self._context = context
        self._trace = trace
        self._addressees = addressees
        #: The producer of the batch that is being published, for traces.
        self._who: BrokerProducer | None = None
        self._clock = context.runtime.clock
        self._budget = context.publish_budget.share()
        self._loop = asyncio.get_running_loop()
        self._topic = topic
        self._stream = stream
        self._shut_all = shut_all
        self._half = half
        self.dedup_switch = DedupSwitch(context, stream, state, lambda: self.holding, in_doubt=lambda: self.failed)
        self.holding: Holding | None = None
        self.meter = Meter(self._clock, context.flows.taken, topic)
        self.latency = Histogram()
        self._duplicates = 0
        self._lanes = PublishOrder()
        #: Whether a write has failed since deduplication last caught up: its batch may be stored nevertheless.
        self.failed = False
        self.rate = RateLimit(self._clock, policies.publish_rate or Rate(), context.settings.rate_burst_s)
        self.policies = policies
        self.stamped = IdempotentPublisher(self, stream, producer_state, self._lanes)
        names = DelayedNames(context.name_of)
        self.split = SplitPublisher(
            self,
            self.stamped,
            self._lanes,
            producer_state,
            state=state,
            names=names,
            tasks=tasks,
            clock=self._clock,
        )

    @property
    def dedup(self) -> Deduplication | None:
        """None while deduplication is off."""
        return self.dedup_switch.current

    def moved(self, batch: Batch, place: HeldId) -> None:
        """Record a delayed batch of a committed transaction, now in the holding area."""
        self.split.moved(batch, place)
        if self.dedup is not None:
            self.dedup.passed_held(place)

    @property
    def duplicates(self) -> int:
        """Batches that were stored already."""
        return self._duplicates + self.stamped.duplicates

    def publish(self, producer: BrokerProducer, outgoing: Outgoing) -> "asyncio.Future[Receipt]":
        receipt: asyncio.Future[Receipt] = PromptFuture(loop=self._loop)
        self._who = producer
        appended = self._publish(producer, outgoing, receipt)
        self._who = None
        return producer.receipts.appended(receipt) if appended else producer.receipts.behind(receipt)

    def _publish(  # noqa: PLR0911 (one per way that a batch takes)
        self, producer: BrokerProducer, outgoing: Outgoing, receipt: "asyncio.Future[Receipt]"
    ) -> bool:
        """Return whether the batch is being appended to the log; appends end in the order of the calls."""
        refusal = self._refusal(producer, outgoing)
        if refusal is not None:
            receipt.set_exception(refusal)
            return False
        if outgoing.half is not None:
            return self._prepare(producer, outgoing, outgoing.half, receipt)
        if outgoing.parts:
            self.split.publish(producer, outgoing, receipt)
            return False
        if outgoing.stamp is not None:
            return self.stamped.publish(producer, outgoing, outgoing.stamp, receipt)
        origin = None
        if self.dedup is not None and outgoing.sequence >= 0 and not outgoing.partial:
            highest = max(outgoing.sequence, outgoing.highest_sequence)
            verdict = self.dedup.judge(producer.name, outgoing.sequence, highest)
            if verdict is not Verdict.NEW:
                self._answer_duplicate(producer, highest, verdict, receipt)
                return False
            origin = Origin(producer.name, highest)
        batch = Batch(-1, outgoing.count, outgoing.format, 0, outgoing.payload, BatchFlags.NONE, origin)
        self.count(producer, outgoing)
        if outgoing.in_memory:
            return not self.append(batch, receipt, in_memory=True).done()
        return self._send_on(batch, outgoing.deliver_at_ms, receipt)

    def publish_all(
        self, producer: BrokerProducer, outgoings: Sequence[Outgoing]
    ) -> "asyncio.Future[Receipt] | None":
        """Publish several batches that need no more than an append as one write, to save the cost per batch. None
        if the caller must publish them one by one."""
        if self.dedup is not None:
            return None
        limit = self.policies.max_message_bytes or 0
        count = size = 0
        batches: list[Batch] = []
        for outgoing in outgoings:
            payload = outgoing.payload
            if (
                outgoing.stamp is not None
                or outgoing.half is not None
                or outgoing.deliver_at_ms is not None
                or outgoing.parts
                or 0 < limit < len(payload)
            ):
                return None
            count += outgoing.count
            size += len(payload)
            batches.append(Batch(-1, outgoing.count, outgoing.format, 0, payload))
        receipt: asyncio.Future[Receipt] = PromptFuture(loop=self._loop)
        refusal = self._refusal(producer, outgoings[0])
        if refusal is not None:
            receipt.set_exception(refusal)
            return producer.receipts.behind(receipt)
        note = partial(self._note_stored, self._clock.monotonic(), producer, batches)
        stored = self._stream.append_all(batches, in_memory=outgoings[0].in_memory)
        tell_promptly(stored, partial(self._all_stored, receipt, count, size, note))
        self._note_counts(producer, count, size)
        return producer.receipts.behind(receipt) if stored.done() else producer.receipts.appended(receipt)

    def _all_stored(
        self,
        receipt: "asyncio.Future[Receipt]",
        count: int,
        size: int,
        note: Callable[[int], None],
        done: "asyncio.Future[int]",
    ) -> None:
        self._budget.release(size)
        failure = done.exception()
        if failure is not None:
            self._not_stored(failure, receipt)
            return
        offset = done.result()
        if self.dedup is not None:  # turned on during the append
            self.dedup.passed(offset + count)
        note(offset)
        if not receipt.done():
            receipt.set_result(Receipt(offset, self._stream.position_of(offset) or _NOWHERE))

    def _note_stored(
        self, started: float, who: BrokerProducer | None, batches: Sequence[Batch], offset: int
    ) -> None:
        seconds = self._clock.monotonic() - started
        if self._trace is not None and self._trace.on:
            name, address = ("", "") if who is None else (who.name, who.request.address)
            self._trace.stored(batches, offset, seconds, producer=name, address=address)
        self.latency.note(seconds, len(batches))

    def _not_stored(self, failure: BaseException, receipt: "asyncio.Future[Receipt]") -> None:
        if not receipt.done():
            receipt.set_exception(failure)
        if not isinstance(failure, StreamTerminatedError):
            self.failed = True
            self._shut_all(f"a batch could not be stored: {failure}")

    def count(self, producer: BrokerProducer, outgoing: Outgoing) -> None:
        self._note_counts(producer, outgoing.count, len(outgoing.payload))

    def _note_counts(self, producer: BrokerProducer, count: int, size: int) -> None:
        self._budget.acquire(size)
        self.rate.spend(count, size)
        self.meter.count(count, size)
        producer.meter.count(count, size)

    def take_room(self, size: int) -> None:
        self._budget.acquire(size)

    def give_back(self, size: int) -> None:
        self._budget.release(size)

    def last_sequence(self, producer: str) -> int:
        """-1 for a name without stored batches, or while deduplication is off."""
        return -1 if self.dedup is None else self.dedup.last_stored(producer)

    @property
    def has_capacity(self) -> bool:
        """True if `wait_capacity` would certainly return at once."""
        return (
            self._stream.has_capacity
            and not self._budget.exhausted
            and not self.rate.limits
            and (self.holding is None or self.holding.has_capacity)
        )

    async def wait_capacity(self) -> None:
        """Wait for the publish budget, the stream's window, the holding area and the publish rate."""
        if self._budget.exhausted:
            await self._budget.wait_capacity()
        await self._stream.wait_capacity()
        if self.holding is not None:
            await self.holding.wait_capacity()
        while self.rate.limits and (delay := self.rate.delay_s()) > 0:
            await self._clock.sleep(delay)

    # --- checks -----------------------------------------------------------------------------------------

    def _refusal(self, producer: BrokerProducer, outgoing: Outgoing) -> WeirError | None:
        if not producer.open or not producer.admitted:
            return ProducerClosedError(f"producer {producer.name!r} is closed, or may not send yet")
        if producer.failures_seen != self._stream.failures:
            return ProducerClosedError("a batch before this one could not be stored")
        limit = self.policies.max_message_bytes or 0
        if 0 < limit < len(outgoing.payload):
            return MessageTooLargeError(f"a message has {len(outgoing.payload)} bytes, {limit} are allowed")
        return None if outgoing.subscription is None else self._misaddressed(outgoing, outgoing.subscription)

    def _misaddressed(self, outgoing: Outgoing, name: str) -> WeirError | None:
        """The reason why a batch cannot be addressed to this subscription."""
        if self._addressees is None or outgoing.stamp is None or outgoing.transactional or outgoing.parts:
            return NotAllowedError("only a batch of an idempotent producer can be addressed to one subscription")
        if not self._context.streams.features.uses(ADDRESSED):
            return NotAllowedError("messages for one subscription need the same version of Weir on every broker")
        if not self._addressees().has(name):
            return SubscriptionNotFoundError(f"{self._topic} has no subscription {name!r}")
        return None

    def is_to_wait(self, deliver_at_ms: int) -> bool:
        delays = self.holding is not None and bool(self.policies.delayed_delivery)
        return delays and deliver_at_ms > self._clock.wall_ms()

    # --- writes -----------------------------------------------------------------------------------------

    def _send_on(self, batch: Batch, due_ms: int | None, receipt: "asyncio.Future[Receipt]") -> bool:
        origin = batch.origin if isinstance(batch.origin, Origin) else None
        if due_ms is not None and not self.is_to_wait(due_ms):
            due_ms = None
        if origin is not None and (due_ms is not None or self._lanes.has(origin.producer)):
            self._enqueue(origin, batch, due_ms, receipt)
            return False
        if due_ms is not None:
            self.hold(batch, due_ms, receipt)
            return False
        stored = self.append(batch, receipt)
        self._note_push(origin, stored)
        return not stored.done()  # False if it was refused at once

    def append(
        self,
        batch: Batch,
        receipt: "asyncio.Future[Receipt]",
        answer: "asyncio.Future[int] | None" = None,
        *,
        in_memory: bool = False,
    ) -> "asyncio.Future[int]":
        stored = self._stream.append(batch, in_memory=in_memory)
        if answer is not None:  # first, so that the next caller that reads pending answers finds it done
            tell_promptly(stored, partial(mirror, answer))
        started = self._clock.monotonic()
        tell_promptly(stored, partial(self._stored, receipt, batch, len(batch.payload), (started, self._who)))
        return stored

    def hold(
        self,
        batch: Batch,
        due_ms: int,
        receipt: "asyncio.Future[Receipt]",
        answer: "asyncio.Future[int] | None" = None,
    ) -> "asyncio.Future[HeldId]":
        check(self.holding is not None, "a topic that delays batches has a holding area")
        held = self.holding.hold(batch, due_ms)  # type: ignore[union-attr]
        if answer is not None:
            held.add_done_callback(partial(mirror, answer))
        held.add_done_callback(partial(self._on_held, receipt, batch, (due_ms, self._who)))
        return held

    def _prepare(
        self, producer: BrokerProducer, outgoing: Outgoing, half: Preparation, receipt: "asyncio.Future[Receipt]"
    ) -> bool:
        """Store a prepared message (RocketMQ: half message). No deduplication: each copy gets its own decision."""
        messages = self._half
        if messages is None or self.holding is None:
            receipt.set_exception(NotAllowedError("the topic cannot store half messages: it has no holding area"))
            return False
        refusal = messages.refusal(outgoing, half)
        if refusal is not None:
            receipt.set_exception(refusal)
            return False
        origin = messages.origin(half)
        batch = Batch(-1, outgoing.count, outgoing.format, 0, outgoing.payload, BatchFlags.NONE, origin)
        self.count(producer, outgoing)
        messages.preparing(batch, self.hold(batch, FOREVER_MS, receipt))
        return False

    def _enqueue(
        self, origin: Origin, batch: Batch, due_ms: int | None, receipt: "asyncio.Future[Receipt]"
    ) -> None:
        """Queue the batch until the producer's earlier batches are stored or can be stored together with it."""
        dedup = self.dedup
        check(dedup is not None, "only deduplication needs turns")
        before = dedup.pending(origin.producer)  # type: ignore[union-attr]
        answer: asyncio.Future[int] = self._loop.create_future()
        self._note_push(origin, answer)

        def send() -> "asyncio.Future[Any]":
            if due_ms is None:
                return self.append(batch, receipt, answer)
            return self.hold(batch, due_ms, receipt, answer)

        give_up = partial(self._stranded, receipt, batch, answer)
        self._lanes.enter(origin.producer, Waiting(due_ms is not None, send, give_up), before)

    def _stranded(
        self,
        receipt: "asyncio.Future[Receipt]",
        batch: Batch,
        answer: "asyncio.Future[int]",
        failure: BaseException,
    ) -> None:
        """Fail a queued batch, because an earlier one of its producer failed."""
        self._budget.release(len(batch.payload))
        answer.set_exception(failure)
        answer.exception()
        if self.dedup is not None and isinstance(batch.origin, Origin):
            self.dedup.failed(batch.origin.producer)
        if not receipt.done():
            receipt.set_exception(failure)

    def _note_push(self, origin: Origin | None, stored: "asyncio.Future[int]") -> None:
        if origin is not None and self.dedup is not None:
            self.dedup.push(origin.producer, origin.sequence, stored, self._clock.wall_ms())

    def _answer_duplicate(
        self, producer: BrokerProducer, highest: int, verdict: Verdict, receipt: "asyncio.Future[Receipt]"
    ) -> None:
        """Answer a batch with known sequence ids: it is a duplicate as soon as its first copy is stored."""
        self._duplicates += 1
        if verdict is Verdict.DUPLICATE:
            receipt.set_result(Receipt(-1, _NOWHERE, duplicate=True))
            return
        if verdict is Verdict.OVERLAPS:
            receipt.set_exception(NotAllowedError("a part of the batch is stored already"))
            return
        answer = self.dedup.under_way(producer.name, highest) if self.dedup is not None else None
        if answer is None:
            receipt.set_exception(DuplicateInDoubtError("whether the message is stored is not known yet"))
        else:
            answer.add_done_callback(partial(answer_duplicate, receipt))

    # --- completion -------------------------------------------------------------------------------------

    def _stored(
        self,
        receipt: "asyncio.Future[Receipt]",
        batch: Batch,
        size: int,
        began: tuple[float, BrokerProducer | None],
        done: "asyncio.Future[int]",
    ) -> None:
        """`began`: start time and producer, the latter None if unknown."""
        self._budget.release(size)
        failure = done.exception()
        dedup, origin = self.dedup, batch.origin
        if failure is not None:
            if dedup is not None and isinstance(origin, Origin):
                dedup.failed(origin.producer)
            self._not_stored(failure, receipt)
            return
        offset = done.result()
        if dedup is not None:
            if isinstance(origin, Origin):
                dedup.stored(origin.producer, origin.sequence, offset + batch.count)
            else:
                dedup.passed(offset + batch.count)
        if isinstance(origin, Addressed) and self._addressees is not None:
            self._addressees().pass_by(origin.subscription, offset, offset + batch.count)
        self._note_stored(*began, (batch,), offset)
        if not receipt.done():
            receipt.set_result(Receipt(offset, self._stream.position_of(offset) or _NOWHERE))

    def _on_held(
        self,
        receipt: "asyncio.Future[Receipt]",
        batch: Batch,
        about: tuple[int, BrokerProducer | None],
        done: "asyncio.Future[HeldId]",
    ) -> None:
        """`about`: delivery time and producer, the latter None if unknown."""
        self._budget.release(len(batch.payload))
        failure = done.exception()
        if failure is not None:
            if self.dedup is not None and isinstance(batch.origin, Origin):
                self.dedup.failed(batch.origin.producer)
            if not receipt.done():
                receipt.set_exception(failure)
            self.failed = True
            self._shut_all(f"a delayed batch could not be stored: {failure}")
            return
        held = done.result()
        if self._trace is not None and self._trace.on:
            due_ms, who = about
            name, address = ("", "") if who is None else (who.name, who.request.address)
            self._trace.held(batch, held, due_ms, producer=name, address=address)
        self.split.landed(held)
        if self.dedup is not None:
            if isinstance(batch.origin, Origin):
                self.dedup.held(batch.origin.producer, batch.origin.sequence, held)
            else:
                self.dedup.passed_held(held)
        if not receipt.done():
            receipt.set_result(Receipt(-1, (held.ledger, held.entry), held=True))
