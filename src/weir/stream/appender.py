"""The write path of a stream: a queue of batches, one open ledger, and its turnover (open, roll, recover).

Appends wait in the queue until a ledger is open. They get their offsets when the appender sends them to it, so a
roll or a failure of the ledger renumbers nothing. The appender acknowledges them in order. In-memory batches
(transient messages) get offsets in the same order but need no ledger: the appender acknowledges them after all
appends before them. The ledger gets a gap for their offsets as soon as a later batch is written.

Only one turnover of the ledger runs at a time, in the background. A ledger that its writer left open is fenced and
recovered, and a change of the chain records its end.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from weir.ledger.writer import LedgerWriter
from weir.model.batch import Batch
from weir.model.check import check
from weir.model.errors import (
    InvariantError,
    LedgerNotFoundError,
    StreamBusyError,
    StreamFencedError,
    StreamTerminatedError,
    WeirError,
    WriterFencedError,
)
from weir.model.ids import Buffer, LedgerId
from weir.model.stream import Chain, Span
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.runtime.waiters import PromptFuture, Waiters, tell_promptly
from weir.stream.chain import HeldChain
from weir.stream.context import StreamContext
from weir.stream.handover import LedgerEnd
from weir.stream.history import End, last_whole, stand_in
from weir.stream.settings import StreamSettings
from weir.stream.tail import StreamTail
from weir.stream.unwritten import gaps, without
from weir.wire.batch import MAX_COUNT, encode_head

log = logging.getLogger(__name__)

_LEAST_ROLL_S = 1.0


class RollLimits:
    """Size and age limits at which a ledger is full."""

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self.bytes, self.s = settings.roll_bytes, settings.roll_s

    def set(self, size_bytes: int, age_s: float) -> None:
        """Set the size and age at which a ledger is full. The settings are the upper limits; 0 means the limit
        from the settings. The age is at least 1 s: more frequent rolls load the metadata store more than disks."""
        settings = self._settings
        self.bytes = min(size_bytes or settings.roll_bytes, settings.roll_bytes)
        self.s = min(max(age_s, _LEAST_ROLL_S) if age_s else settings.roll_s, settings.roll_s)

    def is_full(self, writer: LedgerWriter, age_s: float) -> bool:
        return (
            writer.length >= self.bytes
            or writer.last_confirmed + 1 >= self._settings.roll_entries
            or age_s >= self.s
        )


class TurnoverOwner(Protocol):
    """The owner of the ledger: receives the outcome of a turnover."""

    def die(self, failure: WeirError) -> None:
        """Refuse all further appends."""

    def turnover_failed(self, failure: WeirError) -> None:
        """Record that no ledger is open; the next attempt follows after a pause."""

    def turned_over(self) -> None:
        """Continue after a turnover, successful or not."""


class Turnover:
    def __init__(self, name: str, owner: TurnoverOwner, clock: Clock, pause_s: float) -> None:
        self._name = name
        self._owner = owner
        self._clock = clock
        self._pause_s = pause_s
        self._task: asyncio.Task[None] | None = None
        self._tasks = TaskScope(f"stream {name}", on_failure=self._broken)

    def __bool__(self) -> bool:
        """Whether a turnover is running."""
        return self._task is not None

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        self._task = self._tasks.spawn(self._run(work), "turnover")

    async def quiet(self) -> None:
        while self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        await self._tasks.close()

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (StreamFencedError, WriterFencedError) as fenced:
            self._owner.die(StreamFencedError(f"stream {self._name} was taken over: {fenced.what}"))
        except InvariantError:
            raise
        except WeirError as failed:
            log.warning("stream %s: opening or closing the ledger failed, trying again: %s", self._name, failed)
            self._owner.turnover_failed(failed)
            await self._clock.sleep(self._pause_s)
        finally:
            self._task = None
            self._owner.turned_over()

    def _broken(self, failure: BaseException) -> None:
        wrapped = InvariantError(f"{self._name}: {failure!r}")
        self._owner.die(failure if isinstance(failure, WeirError) else wrapped)


#: The encoded head of a batch and its payload.
Piece = tuple[bytes, Buffer]


@dataclass(slots=True)
class Append:
    """Pending batches of one append. When they are sent, the batches with offsets replace them.
    An append without batches writes the gap for the in-memory batches before it."""

    batches: Sequence[Batch]
    size: int
    done: "asyncio.Future[int]"
    #: The ledger does not get these batches.
    in_memory: bool = False


@dataclass(frozen=True, slots=True)
class Placed:
    """Appends that were sent together, with the offsets of their batches."""

    appends: Sequence[Append]
    batches: list[Batch]
    #: The batches of these that are in memory only.
    unwritten: list[Batch]
    #: The offset after all batches, and the offset after the written ones.
    end: int
    written_to: int
    #: Number of entries that the ledger got.
    entries: int


def pieces_of(
    appends: Sequence[Append], offset: int, written_to: int, *, before_ms: int, now_ms: int
) -> list[Piece]:
    """Encode the ledger entries of appends that begin at `offset`, with gaps from `written_to` on.
    `before_ms`: append time of the batch before them."""
    pieces: list[Piece] = []
    for append in appends:
        if append.in_memory:
            offset += sum([draft.count for draft in append.batches])
            continue
        if written_to < offset:
            missing = gaps(written_to, offset, before_ms)
            pieces += [(encode_head(gap, gap.base_offset, before_ms), b"") for gap in missing]
        for draft in append.batches:
            pieces.append((encode_head(draft, offset, now_ms), draft.payload))
            offset += draft.count
        written_to = offset
    return pieces


def place(
    appends: Sequence[Append], offset: int, written_to: int, *, now_ms: int, payloads: Sequence[Buffer] = ()
) -> Placed:
    """Assign offsets to the batches of the appends. `payloads`: the ledger writer's buffers of all pieces; the
    batches share them, so memory has one copy of each."""
    batches: list[Batch] = []
    unwritten: list[Batch] = []
    at = 0
    for append in appends:
        first = len(batches)
        if not append.in_memory and written_to < offset:
            at += len(gaps(written_to, offset, 0))
        for draft in append.batches:
            if append.in_memory:
                payload = draft.payload
            else:
                payload = payloads[at]
                at += 1
            batches.append(
                Batch(
                    offset,
                    draft.count,
                    draft.format,
                    now_ms,
                    payload,
                    draft.flags,
                    draft.origin,
                    draft.held,
                    draft.stamp,
                )
            )
            offset += draft.count
        append.batches = batches[first:]
        if append.in_memory:
            unwritten += append.batches
        else:
            written_to = offset
    return Placed(appends, batches, unwritten, offset, written_to, at)


async def recover(context: StreamContext, name: str, span: Span) -> tuple[Batch | None, int]:
    """Fence the ledger and return its last batch and its length. If the last entries are lost, their message count
    is unknown: the end is then the highest possible offset, so that no offset is assigned twice."""
    try:
        reader = await context.ledgers.open(span.ledger_id, recover=True)
    except LedgerNotFoundError as gone:
        raise StreamFencedError(f"stream {name} was taken over by another broker") from gone
    try:
        end = reader.metadata.last_entry
        if end < 0:
            return None, 0
        entry, last = await last_whole(reader, end)
        if entry < end:
            base = span.first_offset if last is None else last.end_offset
            append_ms = span.first_ms if last is None else last.append_ms
            last = stand_in(base, (end - entry) * MAX_COUNT, append_ms)
        return last, reader.metadata.length
    finally:
        await reader.close()


def closed(chain: Chain, span: Span, end: int, length: int, last_ms: int) -> Chain:
    """Return the chain with its open last span closed. StreamFencedError if the last span is not `span` or is
    closed already."""
    if not chain.spans or chain.spans[-1].ledger_id != span.ledger_id or chain.spans[-1].closed:
        raise StreamFencedError(f"ledger {span.ledger_id} is no longer the open end of its stream")
    return chain.with_closed(end, length, last_ms)


#: `append` refuses above this many times the window that `wait_capacity()` keeps.
_HARD_FACTOR = 2


class Appender:
    """Appends to the stream of `chain`; dies when another broker takes the stream over. `keep` receives in-memory
    batches when they are acknowledged."""

    def __init__(
        self,
        context: StreamContext,
        name: str,
        chain: HeldChain,
        tail: StreamTail,
        keep: Callable[[Sequence[Batch]], None],
    ) -> None:
        self._name = name
        self._context = context
        self._settings = context.settings
        self._clock = context.runtime.clock
        self._loop = asyncio.get_running_loop()
        self._chain = chain
        self._tail = tail
        self._keep = keep
        self._writer: LedgerWriter | None = None
        self._writer_opened_at = 0.0
        self._stored_entries = 0  # acknowledged in the open ledger; moves together with the end
        self.roll = RollLimits(context.settings)
        self._next_offset = chain.value.end_offset  # of the next batch that is sent
        self._end_offset = chain.value.end_offset  # after the last acknowledged batch
        #: The same two offsets for batches that ledgers get: offsets from `_written_to` to the end are in memory.
        self._next_written = self._written_to = chain.value.end_offset
        self._last_ms = chain.value.spans[-1].last_ms if chain.value.spans else 0
        self._queue: list[Append] = []
        self._to_write = 0  # queued appends that need a ledger
        self._in_flight = 0
        self._waiting_bytes = 0  # queued or sent, and not acknowledged
        self._flush_due = False
        self._turnover = Turnover(name, self, self._clock, self._settings.retry_pause_s)
        self._turnover_failure: WeirError | None = None
        self._failure: WeirError | None = None
        self._finished: WeirError | None = None  # the refusal of new appends while the last ones complete
        #: Number of times that appends failed. A producer from before a failure must not continue as if it had not
        #: happened: the stream would store its later messages without the earlier ones.
        self.failures = 0
        self._listeners: list[Callable[[], None]] = []
        self._on_stored: Callable[[list[Batch]], None] | None = None
        self._growth = Waiters()
        self._capacity = Waiters()

    # --- interface of the stream ------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """The offset after the last acknowledged message."""
        return self._end_offset

    @property
    def written_to(self) -> int:
        """The offset after the last message that a ledger has, as data or as a gap."""
        return self._written_to

    def begin_at(self, offset: int) -> None:
        """Start at `offset` at the earliest: a former holder assigned the offsets before it and never wrote them.
        Call it before the first append."""
        self._next_offset = self._end_offset = max(self._end_offset, offset)

    @property
    def failure(self) -> WeirError | None:
        """Why the appender is dead; None while it is alive."""
        return self._failure

    @property
    def open_bytes(self) -> int:
        """Payload bytes in the open ledger, which the chain does not count yet."""
        return self._writer.length if self._writer is not None else 0

    @property
    def last_ms(self) -> int:
        """When the last batch was appended; 0 if none ever was."""
        return self._last_ms

    def written(self, ledger_id: LedgerId) -> End | None:
        """The acknowledged end of the open ledger, for its readers; None for any other ledger."""
        if self._writer is not None and self._writer.ledger_id == ledger_id:
            return End(self._stored_entries, self._written_to)
        return None

    def append(self, batches: Sequence[Batch], *, in_memory: bool = False) -> "asyncio.Future[int]":
        """Append batches (sets `base_offset` and `append_ms`) one after the other to one ledger, or, if
        `in_memory`, to none: the appender acknowledges all of them or none. The future completes with the first
        batch's offset when they are acknowledged. A refusal is immediate: an already failed future."""
        done: asyncio.Future[int] = PromptFuture(loop=self._loop)
        refusal = self._refusal()
        if refusal is not None:
            done.set_exception(refusal)
            return done
        size = sum([len(batch.payload) for batch in batches])
        self._queue.append(Append(batches, size, done, in_memory))
        self._to_write += not in_memory
        self._waiting_bytes += size
        self._kick()
        return done

    def write_gap(self) -> "asyncio.Future[int]":
        """Write a gap to the ledger for all in-memory batches so far; the future completes when it is stored."""
        if self._next_written == self._next_offset and self._to_write == len(self._queue):
            done: asyncio.Future[int] = self._loop.create_future()
            done.set_result(self._next_offset)
            return done
        return self.append(())

    def prepare(self) -> None:
        """Open a ledger before the first append; closing a ledger without entries deletes it."""
        if self._writer is None and not self._turnover and self._refusal() is None:
            self._turnover.start(self._open_ledger)

    @property
    def in_flight(self) -> bool:
        """Whether an append is neither acknowledged nor refused yet."""
        return bool(self._queue or self._in_flight)

    @property
    def has_capacity(self) -> bool:
        """Whether `wait_capacity` neither waits nor raises."""
        return self._failure is None and self._waiting_bytes <= self._settings.window_bytes

    async def wait_capacity(self) -> None:
        """Wait until unacknowledged appends fit the window again; raises once the appender is dead."""
        while self._failure is None and self._waiting_bytes > self._settings.window_bytes:
            await self._capacity.wait()
        if self._failure is not None:
            raise self._failure

    async def wait_beyond(self, offset: int) -> None:
        """Wait until the end lies beyond the offset; raises once the appender is dead."""
        while self._end_offset <= offset:
            if self._failure is not None:
                raise self._failure
            await self._growth.wait()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a plain function whenever the end moves, appends fail, or the stream dies."""
        self._listeners.append(listener)

    def on_stored(self, callback: Callable[[list[Batch]], None]) -> None:
        """Call a plain function with stored batches before listeners and waiters learn that the end moved. It does
        not get the batches of a failed append that recovery finds in the ledger; the end still moves past them."""
        before = self._on_stored
        if before is None:
            self._on_stored = callback
            return

        def both(batches: list[Batch]) -> None:
            before(batches)
            callback(batches)

        self._on_stored = both

    async def settled(self, *, patient: bool = True) -> None:
        """Wait until the recovery of a failed ledger has its end. Raises once the stream is dead and, unless
        `patient`, when one attempt at the recovery fails."""
        known = self._turnover_failure
        while self._failure is None and (
            self._turnover or (self._writer is not None and self._writer.failure is not None)
        ):
            self._kick()
            await self._growth.wait()
            latest = self._turnover_failure
            if not patient and latest is not None and latest is not known:
                raise latest
        if self._failure is not None:
            raise self._failure

    def _changed(self) -> None:
        """Wake waiters and call listeners: the end moved, or will never move again."""
        self._growth.wake()
        for listener in self._listeners:
            listener()

    async def close_ledger(self) -> None:
        """Close the open ledger now, so that it can be trimmed; the next append opens a new one."""
        await self._turnover.quiet()
        if self._writer is not None and self._failure is None:
            self._turnover.start(self._close_ledger)
            await self._turnover.quiet()

    async def finish(self, reason: WeirError) -> None:
        """Refuse new appends, acknowledge or fail the pending ones, and close the ledger."""
        await self._finish_appends(reason)
        await self.close_ledger()

    async def _finish_appends(self, reason: WeirError) -> None:
        self._finished = reason
        while self._failure is None and (self._queue or self._in_flight):
            await self._growth.wait()

    async def end(self, reason: WeirError) -> bool:
        """Refuse new appends, and acknowledge or fail the pending ones. Return whether `ledger_end` is the end of
        the stream: False if its ledger failed, or is empty and must be deleted."""
        await self._finish_appends(reason)
        await self._turnover.quiet()
        if self._failure is not None or self._written_to != self._end_offset:
            return False
        chain, writer = self._chain.value, self._writer
        if writer is None:
            return not chain.spans or chain.spans[-1].closed
        return writer.failure is None and self._written_to > chain.spans[-1].first_offset

    @property
    def ledger_end(self) -> LedgerEnd | None:
        """The end of the open ledger; None if none is open."""
        writer = self._writer
        return None if writer is None else LedgerEnd(self._written_to, writer.length, self._last_ms)

    async def release(self, reason: WeirError) -> LedgerWriter | None:
        """Drop a stream that the next holder already has. Return the ledger's writer, which the caller closes."""
        self.die(reason)
        await self._turnover.close()
        return self._writer

    def adopt(self, writer: LedgerWriter) -> None:
        """Continue with this writer; the chain already contains its ledger."""
        self._writer, self._stored_entries = writer, 0
        self._writer_opened_at = self._clock.monotonic()

    async def close(self, reason: WeirError) -> None:
        """Finish, and release everything. Idempotent."""
        await self.finish(reason)
        self.die(reason)
        await self._turnover.close()

    def die(self, failure: WeirError) -> None:
        """Fail all queued appends and refuse all further ones."""
        if self._failure is not None:
            return
        self._failure = failure
        self._strand(failure)
        self._changed()
        self._capacity.wake()

    async def settle(self) -> None:
        """Recover the chain's open ledger, if any, and close it at the recovered end."""
        chain = self._chain.value
        if not chain.spans or chain.spans[-1].closed:
            return
        span = chain.spans[-1]
        last, length = await recover(self._context, self._name, span)
        end = span.first_offset if last is None else last.end_offset
        last_ms = span.first_ms if last is None else last.append_ms
        check(end >= self._written_to, "a recovered ledger has all acknowledged entries")
        await self._chain.change(lambda now: closed(now, span, end, length, last_ms))
        if last is None:
            await self._context.ledgers.delete(span.ledger_id)
        self._next_written = self._written_to = end
        self._next_offset = self._end_offset = max(self._end_offset, end)
        self._last_ms = max(self._last_ms, last_ms)
        self._changed()

    # --- sending ----------------------------------------------------------------------------------------

    def _refusal(self) -> WeirError | None:
        if self._failure is not None or self._finished is not None:
            return self._failure or self._finished
        if self._chain.value.terminated_at is not None:
            return StreamTerminatedError(f"stream {self._name} is terminated")
        if self._waiting_bytes > _HARD_FACTOR * self._settings.window_bytes:
            return StreamBusyError(f"stream {self._name} has too many bytes waiting to be stored")
        return None

    def _kick(self) -> None:
        """Schedule one flush at the end of this iteration of the event loop."""
        if not self._flush_due and self._failure is None:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send the appends of this loop iteration, or start the turnover that provides a ledger for them."""
        self._flush_due = False
        if self._turnover or self._failure is not None:
            return
        if self._writer is not None and self._writer.failure is not None:
            self._turnover.start(self._replace_failed_ledger)
        elif not self._to_write:  # only in-memory appends, which follow the ones in flight
            if self._queue and not self._in_flight:
                self._keep_in_memory()
        elif self._writer is None:
            self._turnover.start(self._open_ledger)
        elif self.roll.is_full(self._writer, self._clock.monotonic() - self._writer_opened_at):
            self._turnover.start(self._roll_ledger)
        else:
            self._send(self._writer)

    def _keep_in_memory(self) -> None:
        """Acknowledge the queue, which has in-memory appends only."""
        appends, self._queue = self._queue, []
        placed = place(appends, self._next_offset, self._next_written, now_ms=self._now_ms())
        self._next_offset = placed.end
        self._answered(placed)

    def _now_ms(self) -> int:
        self._last_ms = max(self._last_ms, self._clock.wall_ms())
        return self._last_ms

    def _send(self, writer: LedgerWriter) -> None:
        appends, self._queue, self._to_write = self._queue, [], 0
        offset, written_to = self._next_offset, self._next_written
        before_ms, now_ms = self._last_ms, self._now_ms()
        pieces = pieces_of(appends, offset, written_to, before_ms=before_ms, now_ms=now_ms)
        done, payloads = writer.append_pieces(pieces)
        placed = place(appends, offset, written_to, now_ms=now_ms, payloads=payloads)
        if not done.done():  # an append that the ledger refuses at once uses no entry and no offset
            self._next_offset, self._next_written = placed.end, placed.written_to
        self._in_flight += 1
        tell_promptly(done, partial(self._sent, placed))

    def _sent(self, placed: Placed, done: "asyncio.Future[Any]") -> None:
        """Handle the result of a send. The ledger acknowledges in order, so results arrive in order of sending."""
        self._in_flight -= 1
        check(self._in_flight >= 0, "an append is answered once")
        failure = done.exception()
        if failure is None:
            self._stored_entries += placed.entries
            self._written_to = placed.written_to
            self._answered(placed)
            return
        self.failures += 1
        self._gone_from_waiting(placed.appends)
        _fail(placed.appends, failure)
        # Queued appends fail too: stored without the failed ones before them, they would be out of order.
        self._strand(failure if isinstance(failure, WeirError) else StreamBusyError(repr(failure)))
        self._kick()
        self._changed()
        self._wake_waiting()

    def _answered(self, placed: Placed) -> None:
        """Acknowledge appends that are stored, or kept in memory if they are in-memory appends."""
        self._gone_from_waiting(placed.appends)
        if placed.unwritten:
            self._keep(placed.unwritten)
        batches = placed.batches
        if batches:
            check(batches[0].base_offset == self._end_offset, "offsets are acknowledged in order, without gaps")
            self._tail.push(without(batches, placed.unwritten))
            self._end_offset = batches[-1].end_offset
            if self._on_stored is not None:
                self._on_stored(batches)
        for append in placed.appends:
            if not append.done.done():
                append.done.set_result(append.batches[0].base_offset if append.batches else self._end_offset)
        if self._queue and not self._in_flight:
            self._kick()
        self._changed()
        self._wake_waiting()

    def _gone_from_waiting(self, appends: Sequence[Append]) -> None:
        self._waiting_bytes -= sum([append.size for append in appends])
        check(self._waiting_bytes >= 0, "an append is answered once")

    def _wake_waiting(self) -> None:
        if self._waiting_bytes <= self._settings.window_bytes:
            self._capacity.wake()

    def _strand(self, failure: WeirError) -> None:
        """Fail all queued appends."""
        stranded, self._queue, self._to_write = self._queue, [], 0
        self.failures += bool(stranded)
        self._gone_from_waiting(stranded)
        _fail(stranded, failure)

    # --- opening, rolling, recovering the ledger --------------------------------------------------------

    def turnover_failed(self, failure: WeirError) -> None:
        self._turnover_failure = failure
        self._strand(failure)
        self._growth.wake()

    def turned_over(self) -> None:
        self._kick()
        self._changed()
        self._capacity.wake()

    async def _open_ledger(self) -> None:
        spans = self._chain.value.spans
        # A message id begins with the ledger id; clients rely on ids that grow along the stream.
        above = spans[-1].ledger_id if spans else None
        writer = await self._context.coming.ledger(self._name, above)
        if writer is None:
            writer = await self._context.ledgers.create(self._settings.quorum, above=above)
        now_ms = max(self._last_ms, self._clock.wall_ms())
        check(above is None or writer.ledger_id > above, "ids of ledgers grow along a stream")
        check(
            self._next_written == self._written_to == self._chain.value.end_offset,
            "a ledger begins at the offset where the one before it ends",
        )
        try:
            await self._chain.change(lambda chain: chain.with_opened(writer.ledger_id, now_ms))
        except StreamFencedError:
            await writer.abandon()
            if not await self._chain.may_name(writer.ledger_id):
                await self._context.ledgers.delete(writer.ledger_id)
            raise
        self.adopt(writer)

    async def _roll_ledger(self) -> None:
        await self._close_ledger()
        await self._open_ledger()

    async def _close_ledger(self) -> None:
        """Close the ledger, which acknowledges or fails all sent appends, then record its end in the chain."""
        writer = self._writer
        if writer is None:
            return
        if writer.failure is not None:
            await self._replace_failed_ledger()
            return
        await writer.close()
        check(self._in_flight == 0, "a closed ledger has answered every append")
        span = self._chain.value.spans[-1]
        end, length, last_ms = self._written_to, writer.length, self._last_ms
        await self._chain.change(lambda chain: closed(chain, span, end, length, last_ms))
        self._writer = None
        self._next_written, self._next_offset = end, self._end_offset
        if end == span.first_offset:
            await self._context.ledgers.delete(span.ledger_id)

    async def _replace_failed_ledger(self) -> None:
        """Recover the ledger of a dead writer. It may have batches of failed appends; deduplication handles
        producers that send them again."""
        writer = self._writer
        if writer is not None and isinstance(writer.failure, WriterFencedError):
            raise writer.failure
        self._tail.clear()
        await self.settle()
        self._writer = None


def _fail(appends: Sequence[Append], failure: BaseException) -> None:
    for append in appends:
        if not append.done.done():
            append.done.set_exception(failure)
