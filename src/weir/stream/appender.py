"""The writing end of a stream: a queue of batches, one open ledger, and what to do when it is full or fails.

Appends wait in the queue until a ledger is open and get their offsets when they are sent to it, so nothing has to
be renumbered when a ledger rolls or fails. They are acknowledged in order. What is to stay in memory takes its
place among them and needs no ledger: it is acknowledged when all that stands before it is.

Opening, rolling or recovering the ledger of a stream: when it is due, and one at a time, in the background.

Offsets for batches that are sent together, and what of them a ledger gets.

Some stay in memory. The ledger has a gap for these as soon as something behind them is written.

Where a ledger that was left open ends, and the change of the chain that says so.
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
    """When a ledger is full."""

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self.bytes, self.s = settings.roll_bytes, settings.roll_s

    def set(self, size_bytes: int, age_s: float) -> None:
        """A ledger is full at this size or age; what the settings say is the most. 0: what they say. More than one
        a second would be more work for the metadata than for the disk."""
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
    """Whose ledger it is."""

    def die(self, failure: WeirError) -> None:
        """Nothing can be appended any more."""

    def turnover_failed(self, failure: WeirError) -> None:
        """There is no ledger for now."""

    def turned_over(self) -> None:
        """It is over, whatever came of it."""


class Turnover:
    def __init__(self, name: str, owner: TurnoverOwner, clock: Clock, pause_s: float) -> None:
        self._name = name
        self._owner = owner
        self._clock = clock
        self._pause_s = pause_s
        self._task: asyncio.Task[None] | None = None
        self._tasks = TaskScope(f"stream {name}", on_failure=self._broken)

    def __bool__(self) -> bool:
        """Whether one is under way."""
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
            log.warning("stream %s has no ledger to write to: %s", self._name, failed)
            self._owner.turnover_failed(failed)
            await self._clock.sleep(self._pause_s)
        finally:
            self._task = None
            self._owner.turned_over()

    def _broken(self, failure: BaseException) -> None:
        wrapped = InvariantError(f"{self._name}: {failure!r}")
        self._owner.die(failure if isinstance(failure, WeirError) else wrapped)


#: A head, and the payload behind it.
Piece = tuple[bytes, Buffer]


@dataclass(slots=True)
class Append:
    """Batches on their way that were appended as one; when they are sent, those with offsets take their place.
    Without any: what is in memory so far gets its gap."""

    batches: Sequence[Batch]
    size: int
    done: "asyncio.Future[int]"
    #: They are not written.
    in_memory: bool = False


@dataclass(frozen=True, slots=True)
class Placed:
    """What was sent at once, in its places."""

    appends: Sequence[Append]
    batches: list[Batch]
    #: Of them, those that are in memory only.
    unwritten: list[Batch]
    #: The offset after all, and after those that are written.
    end: int
    written_to: int
    #: How many entries the ledger got.
    entries: int


def pieces_of(
    appends: Sequence[Append], offset: int, written_to: int, *, before_ms: int, now_ms: int
) -> list[Piece]:
    """What is to be written of appends that begin at the offset, behind what is written; `before_ms`: when the one
    before them was appended."""
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
    """Give them their offsets. `payloads`: as the ledger keeps them, of all pieces: one copy of each in memory."""
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
    """Fence the ledger and find its end: its last batch and its length. Where the last entries are lost nobody
    knows how many messages they had: the end is as far as it can be, so that no offset is given out twice."""
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
    """The transform of a close: only if the open last span is still the one that was meant."""
    if not chain.spans or chain.spans[-1].ledger_id != span.ledger_id or chain.spans[-1].closed:
        raise StreamFencedError(f"ledger {span.ledger_id} is no longer the open end of its stream")
    return chain.with_closed(end, length, last_ms)


#: `append` refuses above this many times the window that `wait_capacity()` keeps.
_HARD_FACTOR = 2


class Appender:
    """Appends to the stream whose chain it is given; dies when someone else takes the stream over. `keep` is given
    what stays in memory, when it is acknowledged."""

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
        self._next_offset = chain.value.end_offset  # given to the next batch that is sent
        self._end_offset = chain.value.end_offset  # after the last acknowledged batch
        #: The same of what is sent to ledgers, and of what they have: the rest, up to the end, is in memory.
        self._next_written = self._written_to = chain.value.end_offset
        self._last_ms = chain.value.spans[-1].last_ms if chain.value.spans else 0
        self._queue: list[Append] = []
        self._to_write = 0  # of the queue, those that need a ledger
        self._in_flight = 0
        self._waiting_bytes = 0  # queued or sent, and not acknowledged
        self._flush_due = False
        self._turnover = Turnover(name, self, self._clock, self._settings.retry_pause_s)
        self._turnover_failure: WeirError | None = None
        self._failure: WeirError | None = None
        self._finished: WeirError | None = None  # why no more appends are taken, while the last ones end
        #: Counts the times that appends failed: a producer that was there before must not go on as if nothing
        #: had happened, or what it sent later would be stored without what it sent before.
        self.failures = 0
        self._listeners: list[Callable[[], None]] = []
        self._on_stored: Callable[[list[Batch]], None] | None = None
        self._growth = Waiters()
        self._capacity = Waiters()

    # --- what the stream sees ---------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """The offset after the last acknowledged message."""
        return self._end_offset

    @property
    def written_to(self) -> int:
        """The offset after the last message that is in a ledger, or in a gap there."""
        return self._written_to

    def begin_at(self, offset: int) -> None:
        """Before anything is appended: offsets before this one were given out, and never written."""
        self._next_offset = self._end_offset = max(self._end_offset, offset)

    @property
    def failure(self) -> WeirError | None:
        """Why nothing can be appended any more, if so."""
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
        """For reading the open ledger: how far it is acknowledged."""
        if self._writer is not None and self._writer.ledger_id == ledger_id:
            return End(self._stored_entries, self._written_to)
        return None

    def append(self, batches: Sequence[Batch], *, in_memory: bool = False) -> "asyncio.Future[int]":
        """Append batches (`base_offset` and `append_ms` are set here) one after the other, into one ledger or, if
        `in_memory`, none: all are stored, or none is told of. Done, with the first one's offset, when they are
        acknowledged. Decides at once: a refusal is an already failed future."""
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
        """Have the ledger say that what is in memory up to now is not in it; done when it does."""
        if self._next_written == self._next_offset and self._to_write == len(self._queue):
            done: asyncio.Future[int] = self._loop.create_future()
            done.set_result(self._next_offset)
            return done
        return self.append(())

    def prepare(self) -> None:
        """Open a ledger now, before there is something to append; if nothing is, it goes when it is closed."""
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
        """Wait until an append may be made without growing memory beyond the window."""
        while self._failure is None and self._waiting_bytes > self._settings.window_bytes:
            await self._capacity.wait()
        if self._failure is not None:
            raise self._failure

    async def wait_beyond(self, offset: int) -> None:
        """Wait until the end lies beyond the offset; raises once nothing can be appended any more."""
        while self._end_offset <= offset:
            if self._failure is not None:
                raise self._failure
            await self._growth.wait()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a plain function whenever the end has moved, appends have failed, or the stream has died."""
        self._listeners.append(listener)

    def on_stored(self, callback: Callable[[list[Batch]], None]) -> None:
        """Call a plain function with what was stored, before anybody else is told that the end has moved. What a
        failed append left behind it is not told of: then the end moves past something that it does not know."""
        before = self._on_stored
        if before is None:
            self._on_stored = callback
            return

        def both(batches: list[Batch]) -> None:
            before(batches)
            callback(batches)

        self._on_stored = both

    async def settled(self, *, patient: bool = True) -> None:
        """Wait until it is known what a failed ledger left behind; raises once the stream is dead and, unless
        `patient`, when an attempt to find out fails."""
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
        """Tell everyone who waits that the end has moved, or never will again."""
        self._growth.wake()
        for listener in self._listeners:
            listener()

    async def close_ledger(self) -> None:
        """Close the open ledger now, so that it can be trimmed; the next append opens another."""
        await self._turnover.quiet()
        if self._writer is not None and self._failure is None:
            self._turnover.start(self._close_ledger)
            await self._turnover.quiet()

    async def finish(self, reason: WeirError) -> None:
        """Refuse new appends, acknowledge or fail what is under way, and close the ledger."""
        await self._finish_appends(reason)
        await self.close_ledger()

    async def _finish_appends(self, reason: WeirError) -> None:
        self._finished = reason
        while self._failure is None and (self._queue or self._in_flight):
            await self._growth.wait()

    async def end(self, reason: WeirError) -> bool:
        """Refuse new appends, and acknowledge or fail what is under way. Whether `ledger_end` tells where the
        stream ends: not if its ledger failed, and one that is empty is to go."""
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
        """How far the open ledger is written; None if none is open."""
        writer = self._writer
        return None if writer is None else LedgerEnd(self._written_to, writer.length, self._last_ms)

    async def release(self, reason: WeirError) -> LedgerWriter | None:
        """Let go of what the next holder has already; answers the writer of the ledger, which is to be closed."""
        self.die(reason)
        await self._turnover.close()
        return self._writer

    def adopt(self, writer: LedgerWriter) -> None:
        """Write to this ledger, which the chain names."""
        self._writer, self._stored_entries = writer, 0
        self._writer_opened_at = self._clock.monotonic()

    async def close(self, reason: WeirError) -> None:
        """Finish and let go. Closing twice is fine."""
        await self.finish(reason)
        self.die(reason)
        await self._turnover.close()

    def die(self, failure: WeirError) -> None:
        """Refuse everything from now on."""
        if self._failure is not None:
            return
        self._failure = failure
        self._strand(failure)
        self._changed()
        self._capacity.wake()

    async def settle(self) -> None:
        """Close the chain's open ledger, if there is one, where its recovery says that it ends."""
        chain = self._chain.value
        if not chain.spans or chain.spans[-1].closed:
            return
        span = chain.spans[-1]
        last, length = await recover(self._context, self._name, span)
        end = span.first_offset if last is None else last.end_offset
        last_ms = span.first_ms if last is None else last.append_ms
        check(end >= self._written_to, "a recovered ledger holds everything that was acknowledged")
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
            return StreamBusyError(f"stream {self._name} has too much waiting to be stored")
        return None

    def _kick(self) -> None:
        """Look at the end of this turn of the loop what can be sent, and by whom."""
        if not self._flush_due and self._failure is None:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send what this turn of the loop brought, or see to it that there is a ledger to send it to."""
        self._flush_due = False
        if self._turnover or self._failure is not None:
            return
        if self._writer is not None and self._writer.failure is not None:
            self._turnover.start(self._replace_failed_ledger)
        elif not self._to_write:  # all stays in memory, behind what is under way
            if self._queue and not self._in_flight:
                self._keep_in_memory()
        elif self._writer is None:
            self._turnover.start(self._open_ledger)
        elif self.roll.is_full(self._writer, self._clock.monotonic() - self._writer_opened_at):
            self._turnover.start(self._roll_ledger)
        else:
            self._send(self._writer)

    def _keep_in_memory(self) -> None:
        """What waits needs no ledger."""
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
        if not done.done():  # what the ledger refuses at once has used up no entry, and uses up no offset
            self._next_offset, self._next_written = placed.end, placed.written_to
        self._in_flight += 1
        tell_promptly(done, partial(self._sent, placed))

    def _sent(self, placed: Placed, done: "asyncio.Future[Any]") -> None:
        """In the order of sending, since the ledger acknowledges in order."""
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
        # What waits behind fails too: stored without what stood before it, it would be out of order.
        self._strand(failure if isinstance(failure, WeirError) else StreamBusyError(repr(failure)))
        self._kick()
        self._changed()
        self._wake_waiting()

    def _answered(self, placed: Placed) -> None:
        """All of it is stored, or in memory where that was wanted."""
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
        """Fail what waits for a ledger."""
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
        # Message ids begin with the ledger's; clients count on ids that grow along the stream.
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
        """Everything sent is acknowledged or failed once it is closed; then the chain says where it ends."""
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
        """The writer is dead: find out what it left behind. Batches whose append failed may turn out to be there;
        producers that try again are served by deduplication."""
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
