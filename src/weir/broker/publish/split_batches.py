"""Batches of messages with different handling: some are appended, some are delayed, some cancel delayed ones.

The gateway splits such a batch into parts. The publisher stores each part like a batch; all parts have one
receipt. The parts of an idempotent producer queue in its lane (see `publish_order`), so the stored parts are
always a prefix: a retry after a failure or a crash continues behind it.

`DelayedStamps` deduplicates batches of idempotent producers that are not in the log, because they are delayed
or were
cancellations. A delayed batch carries its stamp (producer id, epoch, sequence), as batches in the log do. The
state stores the last sequence number of each such producer, and the position in the holding area up to which it is
valid; the broker reads the rest of the area when it opens the topic.

`DelayedNames` finds delayed messages by the names that producers give them, to cancel them. A delayed batch
contains
its name, so nothing more is stored. The broker keeps a bounded number of names of the batches that it delayed
itself. The first cancellation with another name scans the whole holding area, and adds the names that it finds.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from weir.broker.api.producers import Outgoing, Receipt
from weir.broker.log.producer_state import Pending, ProducerStates
from weir.broker.log.producer_state_manager import ProducerStateManager
from weir.broker.ports import Holding
from weir.broker.publish.batch_store import PublishSteps
from weir.broker.publish.idempotent import IdempotentPublisher
from weir.broker.publish.producers import BrokerProducer
from weir.broker.publish.publish_order import PublishOrder, Waiting
from weir.model.batch import Batch, BatchFlags, HeldId, Prepared, Stamp
from weir.model.errors import (
    NotAllowedError,
    NotHeldError,
    OutOfOrderSequenceError,
    ProducerClosedError,
    WeirError,
)
from weir.model.transactions import Stored
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.stream.state_log import StateLog
from weir.wire.delayed_batches import encode_held
from weir.wire.snapshots.producers import HeldStampsRecord, decode_held_stamps, encode_held_stamps

#: Names in memory per topic.
MOST_NAMES = 100_000

#: The name in a delayed batch, if it has one.
NameOf = Callable[[Batch], str | None]


class DelayedNames:
    """The names of the delayed batches of one topic."""

    def __init__(self, name_of: NameOf, *, most: int = MOST_NAMES) -> None:
        self._name_of = name_of
        self._most = most
        self._places: OrderedDict[str, list[HeldId]] = OrderedDict()
        self._search = asyncio.Lock()  # one scan serves all callers that wait for it
        #: Whether names may be missing: those of a former owner of the topic, or evicted ones.
        self.incomplete = False

    def held(self, name: str, place: HeldId) -> None:
        """Add the name of a delayed batch."""
        places = self._places.setdefault(name, [])
        if place not in places:
            places.append(place)
        self._places.move_to_end(name)
        if len(self._places) > self._most:
            self._places.popitem(last=False)
            self.incomplete = True

    def landed(self, batch: Batch, place: HeldId) -> None:
        """Add the name of a delayed batch, if it has one."""
        name = self._name_of(batch)
        if name is not None:
            self.held(name, place)

    async def cancel(self, name: str, holding: Holding) -> int:
        """Cancel all delayed batches of this name; return how many."""
        if self.incomplete:
            async with self._search:
                if self.incomplete:
                    await self._index_names(holding, name)
        cancelled = 0
        for place in self._places.pop(name, []):
            try:
                await holding.cancel(place)
                cancelled += 1
            except NotHeldError:
                continue  # delivered or cancelled already
        return cancelled

    async def _index_names(self, holding: Holding, wanted: str) -> None:
        """Scan the holding area for names, up to the limit; add the wanted name last, so that it is not
        evicted."""
        self.incomplete = False
        found: list[HeldId] = []
        try:
            async with aclosing(holding.held_since({})) as all_held:
                async for place, batch in all_held:
                    if isinstance(batch.origin, Prepared):
                        continue  # a prepared message is committed or rolled back, not cancelled
                    name = self._name_of(batch)
                    if name == wanted:
                        found.append(place)
                    elif name is not None:
                        self.held(name, place)
        except BaseException:
            self.incomplete = True
            raise
        for place in found:
            self.held(wanted, place)


KEY = "producers/held"
#: Producers in memory: those with the most recent delayed batches.
_MOST = 10_000
_LAST_SEQUENCE = 0x7FFFFFFF


class DelayedStamps:
    """Sequence numbers of one topic's idempotent producers that are not in the log."""

    def __init__(self, state: StateLog, states: ProducerStates) -> None:
        self._state = state
        self._states = states
        #: Epoch and last sequence number of each producer.
        self._last: OrderedDict[int, tuple[int, int]] = OrderedDict()
        #: Entries of each holding ledger that this record covers.
        self._known: dict[int, int] = {}

    def landed(self, place: HeldId) -> None:
        """Record that a batch is in the holding area. For a stamped one the caller has called `taken` right
        before."""
        self._known[place.ledger] = max(self._known.get(place.ledger, 0), place.entry + 1)

    def taken(self, stamp: Stamp, count: int) -> None:
        """Record that its sequence numbers are used; durable with the state's next flush."""
        self._last[stamp.producer_id] = stamp.epoch, (stamp.sequence + count - 1) & _LAST_SEQUENCE
        self._last.move_to_end(stamp.producer_id)
        if len(self._last) > _MOST:
            self._last.popitem(last=False)
        self._state.mark(KEY, self._to_bytes)

    async def open(self, holding: Holding | None, now_ms: int) -> None:
        """Add the recorded sequences to the producer states, which have read the log already."""
        data = self._state.get(KEY)
        if data is not None:
            self._load(data)
        for producer_id, (epoch, last) in self._last.items():
            self._states.catch_up(Stamp(producer_id, epoch, last), 1, now_ms)
        await self.catch_up(holding, now_ms)

    async def catch_up(self, holding: Holding | None, now_ms: int) -> None:
        """Add the sequences of batches that were delayed since the record."""
        if holding is None:
            return
        found: list[tuple[int, int, int, int]] = []
        positions = holding.positions()
        async with aclosing(holding.held_since(self._known)) as all_held:
            async for _, batch in all_held:
                stamp = batch.stamp
                if stamp is not None:
                    found.append((stamp.producer_id, stamp.epoch, stamp.sequence, batch.count))
        for producer_id, epoch, sequence, count in sorted(found):
            stamp = Stamp(producer_id, epoch, sequence)
            if self._states.catch_up(stamp, count, now_ms):
                self.taken(stamp, count)
        self._known = positions
        self.save()

    def save(self) -> None:
        """Record in the state up to which position of the holding area this record is valid."""
        if self._known:
            self._state.mark(KEY, self._to_bytes)

    def _to_bytes(self) -> bytes:
        return encode_held_stamps(HeldStampsRecord(self._last, self._known))

    def _load(self, data: bytes) -> None:
        record = decode_held_stamps(data)
        self._last, self._known = OrderedDict(record.last), dict(record.known)


_NOWHERE = (-1, -1)


class SplitPublisher:
    """Reserves a part's bytes before the part queues: queued parts of a producer cannot fill the memory."""

    def __init__(
        self,
        steps: PublishSteps,
        stamped: IdempotentPublisher,
        lanes: PublishOrder,
        producer_state: ProducerStateManager,
        *,
        state: StateLog,
        names: DelayedNames,
        tasks: TaskScope,
        clock: Clock,
    ) -> None:
        self._steps = steps
        self._stamped = stamped
        self._lanes = lanes
        self._producer_state = producer_state
        self._state = state
        self._names = names
        self._tasks = tasks
        self._clock = clock
        self._held_stamps = DelayedStamps(state, producer_state.states)

    async def open(self) -> None:
        """Read the delayed batches from before this broker owned the topic."""
        holding = self._steps.holding
        self._names.incomplete = holding is not None and bool(holding.positions())
        if self._producer_state.armed:  # else the topic has no stamped batches
            await self._held_stamps.open(holding, self._clock.wall_ms())

    async def catch_up(self) -> None:
        """Read from the holding area which failed writes it contains nevertheless."""
        if self._producer_state.armed:
            await self._held_stamps.catch_up(self._steps.holding, self._clock.wall_ms())

    def landed(self, place: HeldId) -> None:
        """Record a batch in the holding area, from any publish path."""
        if self._producer_state.armed:
            self._held_stamps.landed(place)

    def moved(self, batch: Batch, place: HeldId) -> None:
        """Record a delayed batch of a committed transaction."""
        self.landed(place)
        self._names.landed(batch, place)

    def save(self) -> None:
        """Save the record, so that the next opening of the topic reads little."""
        if self._producer_state.armed:
            self._held_stamps.save()

    def publish(self, producer: BrokerProducer, outgoing: Outgoing, receipt: "asyncio.Future[Receipt]") -> None:
        stamp = outgoing.stamp
        parts: Sequence[Outgoing] = outgoing.parts
        pending = asked = None
        if stamp is not None:
            try:
                known, parts = self._judge(stamp, outgoing)
                if outgoing.transactional:
                    parts = [self._hidden(part) for part in parts]
                asked = None if known is not None else self._producer_state.admit(stamp, outgoing)
            except WeirError as refused:
                receipt.set_exception(refused)
                return
            if known is not None:
                self._stamped.answer_repeated(known, receipt)
                return
            if not parts:
                receipt.set_result(Receipt(-1, _NOWHERE, duplicate=True))
                return
        for part in parts:
            self._steps.count(producer, part)
        answers = [self._answer() for _ in parts]
        if stamp is None:
            for part, answer in zip(parts, answers, strict=True):
                self._send(part, answer)
        else:
            if asked is not None:
                self._stamped.await_answer(stamp.producer_id, asked)
            pending = self._enqueue_parts(stamp, outgoing, parts, answers)
        _Whole(receipt, answers, partial(self._ended, stamp, outgoing.count, pending))

    # --- checks -----------------------------------------------------------------------------------------

    def _judge(self, stamp: Stamp, outgoing: Outgoing) -> tuple[Stored | Pending | None, Sequence[Outgoing]]:
        """Return the batch that this one duplicates, if any, and the parts that remain to be stored."""
        try:
            return self._producer_state.judge(stamp, outgoing), outgoing.parts
        except OutOfOrderSequenceError:
            covered = self._producer_state.states.covered(stamp, outgoing.count)
            if not covered:
                raise
        left = []
        for part in outgoing.parts:
            if covered <= 0:
                left.append(part)
            covered -= part.count
        return None, left

    def _hidden(self, part: Outgoing) -> Outgoing:
        """Convert a part of a transaction to its stored form: a delayed part includes its delivery time. It moves
        to the holding area when the transaction is committed (`delayed_moves`)."""
        if part.cancels is not None:
            raise NotAllowedError("a transaction cannot cancel delayed messages")
        if part.deliver_at_ms is None:
            return part
        if self._steps.holding is None:
            raise NotAllowedError("the topic does not support delayed messages")
        batch = Batch(0, part.count, part.format, 0, part.payload)
        return replace(part, payload=encode_held(max(part.deliver_at_ms, 0), batch))

    # --- writes -----------------------------------------------------------------------------------------

    def _answer(self) -> "asyncio.Future[Receipt]":
        return asyncio.get_running_loop().create_future()

    def _enqueue_parts(
        self,
        stamp: Stamp,
        outgoing: Outgoing,
        parts: Sequence[Outgoing],
        answers: "Sequence[asyncio.Future[Receipt]]",
    ) -> Pending:
        lane = stamp.producer_id
        before = [] if self._lanes.has(lane) else self._producer_state.states.under_way(stamp.producer_id)
        transactional = outgoing.transactional
        pending = self._producer_state.states.push(stamp, outgoing.count, transactional=transactional, parted=True)
        if not self._producer_state.armed:
            self._lanes.enter(lane, Waiting(True, self._stamped.arm, lambda failure: None), before)
        for part, answer in zip(parts, answers, strict=True):
            give_up = partial(self._fail_part, part, answer)
            # All parts of a transaction go to the log, so they need not be written one by one.
            send = partial(self._send, part, answer)
            self._lanes.enter(lane, Waiting(not transactional, send, give_up), before)
        return pending

    def _fail_part(self, part: Outgoing, answer: "asyncio.Future[Receipt]", failure: BaseException) -> None:
        self._steps.give_back(len(part.payload))
        if not answer.done():
            answer.set_exception(failure)

    def _send(self, part: Outgoing, answer: "asyncio.Future[Receipt]") -> "asyncio.Future[Any]":
        batch = Batch(-1, part.count, part.format, 0, part.payload, BatchFlags.NONE, stamp=part.stamp)
        due_ms = part.deliver_at_ms
        if part.transactional:
            flags = BatchFlags.TRANSACTIONAL if due_ms is None else BatchFlags.TRANSACTIONAL | BatchFlags.HIDDEN
            return self._steps.append(replace(batch, flags=flags), answer)
        if part.cancels is not None:
            return self._spawn(self._cancel(part, part.cancels), answer)
        if due_ms is not None and self._steps.is_to_wait(due_ms):
            held = self._steps.hold(batch, due_ms, answer)
            held.add_done_callback(partial(self._on_held, part))
            return held
        return self._steps.append(batch, answer)

    def _on_held(self, part: Outgoing, done: "asyncio.Future[HeldId]") -> None:
        if done.cancelled() or done.exception() is not None:
            return
        if part.stamp is not None:
            self._held_stamps.taken(part.stamp, part.count)
            self._producer_state.states.passed(part.stamp, part.count, self._clock.wall_ms())
        if part.delay_id is not None:
            self._names.held(part.delay_id, done.result())

    def _spawn(
        self, work: Coroutine[Any, Any, None], answer: "asyncio.Future[Receipt]"
    ) -> "asyncio.Future[Receipt]":
        async def tell() -> None:
            try:
                await work
            except asyncio.CancelledError:
                answer.cancel()
                raise
            except WeirError as failed:
                if not answer.done():
                    answer.set_exception(failed)
            else:
                if not answer.done():
                    answer.set_result(Receipt(-1, _NOWHERE, held=True))

        self._tasks.spawn(tell(), "cancel")
        return answer

    async def _cancel(self, part: Outgoing, name: str) -> None:
        """Cancel delayed messages; a stamped cancellation is durable before its acknowledgement."""
        try:
            holding = self._steps.holding
            if holding is not None:
                await self._names.cancel(name, holding)
            if part.stamp is not None:
                self._held_stamps.taken(part.stamp, part.count)
                await self._state.flush()
                self._producer_state.states.passed(part.stamp, part.count, self._clock.wall_ms())
        finally:
            self._steps.give_back(len(part.payload))

    # --- completion -------------------------------------------------------------------------------------

    def _ended(self, stamp: Stamp | None, count: int, pending: Pending | None, failed: bool) -> None:
        if stamp is None or pending is None:
            return
        if failed:
            self._producer_state.states.failed(pending)
        else:
            self._producer_state.states.passed(stamp, count, self._clock.wall_ms())


class _Whole:
    """The common receipt of several parts: the first offset if all are in the log, else none."""

    def __init__(
        self,
        receipt: "asyncio.Future[Receipt]",
        answers: "Sequence[asyncio.Future[Receipt]]",
        ended: Callable[[bool], None],
    ) -> None:
        self._receipt = receipt
        self._answers = answers
        self._ended = ended
        self._left = len(answers)
        for answer in answers:
            answer.add_done_callback(self._done)

    def _done(self, answer: "asyncio.Future[Receipt]") -> None:
        self._left -= 1
        if self._left:
            return
        failures = [failed for one in self._answers if (failed := _failure(one)) is not None]
        self._ended(bool(failures))
        if self._receipt.done():
            return
        if failures:
            self._receipt.set_exception(failures[0])
            return
        receipts = [one.result() for one in self._answers]
        if any(one.held for one in receipts):
            self._receipt.set_result(Receipt(-1, _NOWHERE, held=True))
        else:
            self._receipt.set_result(receipts[0])


def _failure(answer: "asyncio.Future[Receipt]") -> BaseException | None:
    return ProducerClosedError("the topic is being closed") if answer.cancelled() else answer.exception()
