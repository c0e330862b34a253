"""The publish path of idempotent producers and of transaction markers: check the sequence, order, append."""

import asyncio
from functools import partial

from weir.broker.api.producers import Outgoing, Receipt
from weir.broker.log.producer_state import Pending
from weir.broker.log.producer_state_manager import ProducerStateManager
from weir.broker.publish.batch_store import PublishSteps
from weir.broker.publish.producers import BrokerProducer
from weir.broker.publish.publish_order import PublishOrder, Waiting
from weir.model.batch import Addressed, Batch, BatchFlags, BatchFormat, Stamp
from weir.model.errors import ProducerClosedError, WeirError
from weir.model.transactions import Stored
from weir.stream.log import Stream
from weir.wire.formats.marker import encode_marker

#: The position of a duplicate if that of the first copy is unknown.
_NOWHERE = (-1, -1)


class IdempotentPublisher:
    """Checks a batch before the first `await`: the order of the calls is the order of the sequence numbers."""

    def __init__(
        self, steps: PublishSteps, stream: Stream, producer_state: ProducerStateManager, lanes: PublishOrder
    ) -> None:
        self._steps = steps
        self._stream = stream
        self._producer_state = producer_state
        self._lanes = lanes
        self.duplicates = 0

    def publish(
        self, producer: BrokerProducer, outgoing: Outgoing, stamp: Stamp, receipt: "asyncio.Future[Receipt]"
    ) -> bool:
        """Return whether the batch is being appended to the log; appends end in the order of the calls."""
        producer_state = self._producer_state
        try:
            known = producer_state.judge(stamp, outgoing)
            asked = None if known is not None else producer_state.admit(stamp, outgoing)
        except WeirError as refused:
            receipt.set_exception(refused)
            return False
        if known is not None:
            self.answer_repeated(known, receipt)
            return False
        pending = producer_state.states.push(stamp, outgoing.count, transactional=outgoing.transactional)
        flags = BatchFlags.TRANSACTIONAL if outgoing.transactional else BatchFlags.NONE
        origin = None
        if outgoing.subscription is not None:
            flags, origin = flags | BatchFlags.PRIVATE, Addressed(outgoing.subscription)
        batch = Batch(-1, outgoing.count, outgoing.format, 0, outgoing.payload, flags, origin, stamp=stamp)
        self._steps.count(producer, outgoing)
        if asked is not None:
            self.await_answer(stamp.producer_id, asked)
        return self._send(batch, pending, receipt)

    def await_answer(self, producer_id: int, asked: "asyncio.Future[None]") -> None:
        """Queue the producer's batches until its coordinator answers; a refusal fails all of them."""
        self._lanes.enter(producer_id, Waiting(True, lambda: asked, lambda failure: None), ())
        if not self._producer_state.armed:
            self._lanes.enter(producer_id, Waiting(True, self.arm, lambda failure: None), ())

    def arm(self) -> "asyncio.Future[None]":
        """Record in the state that the topic has batches of idempotent producers; queued batches wait for that."""
        armed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def then(failure: WeirError | None) -> None:
            if failure is None:
                armed.set_result(None)
            else:
                armed.set_exception(failure)

        if self._producer_state.armed:
            then(None)
        else:
            self._producer_state.arm(then)
        return armed

    def _await_turn(self, batch: Batch, pending: Pending, receipt: "asyncio.Future[Receipt]") -> None:
        """Queue the batch, because an earlier batch of the producer is on its way to the holding area, or its
        coordinator has not answered."""

        def send() -> "asyncio.Future[int]":
            return self._append_one(batch, pending, receipt)

        def give_up(failure: BaseException) -> None:
            self._steps.give_back(len(batch.payload))
            self._producer_state.states.failed(pending)
            if not receipt.done():
                receipt.set_exception(failure)

        self._lanes.enter(pending.producer_id, Waiting(False, send, give_up), ())

    def _send(self, batch: Batch, pending: Pending, receipt: "asyncio.Future[Receipt]") -> bool:
        """Append the batch after the queued batches of its producer. The first ones of a topic wait until the
        state records that the topic has batches of idempotent producers."""
        if batch.stamp is not None and self._lanes.has(batch.stamp.producer_id):
            self._await_turn(batch, pending, receipt)
        elif self._producer_state.armed:
            return not self._append_one(batch, pending, receipt).done()
        else:
            self._producer_state.arm(partial(self._armed, self._stream.failures, batch, pending, receipt))
        return False

    def _armed(
        self,
        failures_seen: int,
        batch: Batch,
        pending: Pending,
        receipt: "asyncio.Future[Receipt]",
        failure: WeirError | None,
    ) -> None:
        lost = not self._producer_state.states.awaits(pending)  # with an earlier batch that waited longer
        if failure is None and (lost or failures_seen != self._stream.failures):
            failure = ProducerClosedError("a batch before this one could not be stored")
        if failure is None:
            self._append_one(batch, pending, receipt)
            return
        self._steps.give_back(len(batch.payload))
        self._producer_state.states.failed(pending)
        if not receipt.done():
            receipt.set_exception(failure)

    def _append_one(
        self, batch: Batch, pending: Pending, receipt: "asyncio.Future[Receipt]"
    ) -> "asyncio.Future[int]":
        stored = self._steps.append(batch, receipt)
        if stored.done():  # refused at once: the next batch must not count as its successor
            self._producer_state.states.failed(pending)
        else:
            stored.add_done_callback(partial(self._answered, pending))
        return stored

    def _answered(self, pending: Pending, done: "asyncio.Future[int]") -> None:
        if done.exception() is not None:  # the producer state reads stored batches from the log
            self._producer_state.states.failed(pending)

    def answer_repeated(self, known: Stored | Pending, receipt: "asyncio.Future[Receipt]") -> None:
        self.duplicates += 1
        if isinstance(known, Stored):
            receipt.set_result(self._duplicate_of(known.offset))
        else:
            known.offset().add_done_callback(partial(self._repeated, receipt))

    def _repeated(self, receipt: "asyncio.Future[Receipt]", first: "asyncio.Future[int]") -> None:
        failure = first.exception()
        if receipt.done():
            return
        if failure is not None:
            receipt.set_exception(failure)
        else:
            receipt.set_result(self._duplicate_of(first.result()))

    def _duplicate_of(self, offset: int) -> Receipt:
        return Receipt(offset, self._stream.position_of(offset) or _NOWHERE, duplicate=True)

    def mark(self, stamp: Stamp, *, abort: bool, decided_ms: int) -> "asyncio.Future[Receipt]":
        """Append the marker that ends the producer's open transaction."""
        flags = BatchFlags.CONTROL | BatchFlags.TRANSACTIONAL
        if abort:
            flags |= BatchFlags.ABORT
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        pending = self._producer_state.states.push(stamp, 1, transactional=True, marker=True)
        payload = encode_marker(decided_ms)
        self._steps.take_room(len(payload))
        self._send(Batch(-1, 1, BatchFormat.MARKER, 0, payload, flags, stamp=stamp), pending, receipt)
        return receipt
