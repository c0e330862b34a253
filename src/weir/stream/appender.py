"""The writing end of a stream: a queue of batches, one open ledger, and what to do when it is full or fails.

Appends wait in the queue until a ledger is open and get their offsets when they are sent to it, so nothing has to
be renumbered when a ledger rolls or fails. They are acknowledged in order.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

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
from weir.model.ids import LedgerId
from weir.model.stream import Chain, Span
from weir.runtime.tasks import TaskScope
from weir.runtime.waiters import Waiters
from weir.stream.context import StreamContext
from weir.stream.gaps import End, last_whole, stand_in
from weir.stream.held_chain import HeldChain
from weir.stream.tail import StreamTail
from weir.wire.batch import MAX_COUNT, encode_head

log = logging.getLogger(__name__)

#: `append` refuses above this many times the window that `wait_capacity()` keeps.
_HARD_FACTOR = 2
_LEAST_ROLL_S = 1.0


@dataclass(slots=True)
class _Append:
    """Batches on their way that were appended as one; when they are sent, those with offsets take their place."""

    batches: Sequence[Batch]
    size: int
    done: "asyncio.Future[int]"


class Appender:
    """Appends to the stream whose chain it is given; dies when someone else takes the stream over."""

    def __init__(self, context: StreamContext, name: str, chain: HeldChain, tail: StreamTail) -> None:
        self._name = name
        self._context = context
        self._settings = context.settings
        self._clock = context.runtime.clock
        self._loop = asyncio.get_running_loop()
        self._chain = chain
        self._tail = tail
        self._writer: LedgerWriter | None = None
        self._writer_opened_at = 0.0
        self._stored_entries = 0  # acknowledged in the open ledger; moves together with the end
        self.roll_bytes, self.roll_s = self._settings.roll_bytes, self._settings.roll_s
        self._next_offset = chain.value.end_offset  # given to the next batch that is sent
        self._end_offset = chain.value.end_offset  # after the last acknowledged batch
        self._last_ms = chain.value.spans[-1].last_ms if chain.value.spans else 0
        self._queue: list[_Append] = []
        self._in_flight = 0
        self._waiting_bytes = 0  # queued or sent, and not acknowledged
        self._flush_due = False
        self._turnover: asyncio.Task[None] | None = None  # opening, rolling or recovering the ledger
        self._failure: WeirError | None = None
        self._finished: WeirError | None = None  # why no more appends are taken, while the last ones end
        #: Counts the times that appends failed: a producer that was there before must not go on as if nothing
        #: had happened, or what it sent later would be stored without what it sent before.
        self.failures = 0
        self._listeners: list[Callable[[], None]] = []
        self._on_stored: Callable[[list[Batch]], None] | None = None
        self._growth = Waiters()
        self._capacity = Waiters()
        self._tasks = TaskScope(f"stream {name}", on_failure=self._turnover_failed)

    # --- what the stream sees ---------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """The offset after the last acknowledged message."""
        return self._end_offset

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

    def roll_when(self, size_bytes: int, age_s: float) -> None:
        """Begin a new ledger at this size or age; what the settings say is the most. 0: what they say. More than
        one a second would be more work for the metadata than for the disk."""
        self.roll_bytes = min(size_bytes or self._settings.roll_bytes, self._settings.roll_bytes)
        self.roll_s = min(max(age_s, _LEAST_ROLL_S) if age_s else self._settings.roll_s, self._settings.roll_s)

    def written(self, ledger_id: LedgerId) -> End | None:
        """For reading the open ledger: how far it is acknowledged."""
        if self._writer is not None and self._writer.ledger_id == ledger_id:
            return End(self._stored_entries, self._end_offset)
        return None

    def append(self, batch: Batch) -> "asyncio.Future[int]":
        """Append a batch (its `base_offset` and `append_ms` are set here); done, with its first offset, when it is
        acknowledged. Decides at once: a refusal is an already failed future."""
        done: asyncio.Future[int] = self._loop.create_future()
        refusal = self._refusal()
        if refusal is not None:
            done.set_exception(refusal)
            return done
        self._queue.append(_Append((batch,), len(batch), done))
        self._waiting_bytes += len(batch)
        self._kick()
        return done

    def append_all(self, batches: Sequence[Batch]) -> "asyncio.Future[int]":
        """Append batches one after the other, into one ledger: all are stored, or none is told of. Done with the
        first one's offset."""
        done: asyncio.Future[int] = self._loop.create_future()
        refusal = self._refusal()
        if refusal is not None:
            done.set_exception(refusal)
            return done
        size = sum([len(batch.payload) for batch in batches])
        self._queue.append(_Append(batches, size, done))
        self._waiting_bytes += size
        self._kick()
        return done

    def prepare(self) -> None:
        """Open a ledger now, before there is something to append; if nothing is, it goes when it is closed."""
        if self._writer is None and self._turnover is None and self._refusal() is None:
            self._start_turnover(self._open_ledger)

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
        self._on_stored = callback

    async def settled(self) -> None:
        """Wait until it is known what a failed ledger left behind; raises once the stream is dead."""
        while self._failure is None and (
            self._turnover is not None or (self._writer is not None and self._writer.failure is not None)
        ):
            self._kick()
            await self._growth.wait()
        if self._failure is not None:
            raise self._failure

    def _changed(self) -> None:
        """Tell everyone who waits that the end has moved, or never will again."""
        self._growth.wake()
        for listener in self._listeners:
            listener()

    async def roll(self) -> None:
        """Close the open ledger now, so that it can be trimmed; the next append opens another."""
        await self._quiet()
        if self._writer is not None and self._failure is None:
            self._start_turnover(self._close_ledger)
            await self._quiet()

    async def finish(self, reason: WeirError) -> None:
        """Refuse new appends, acknowledge or fail what is under way, and close the ledger."""
        self._finished = reason
        while self._failure is None and (self._queue or self._in_flight):
            await self._growth.wait()
        await self.roll()

    async def close(self, reason: WeirError) -> None:
        """Finish and let go. Closing twice is fine."""
        await self.finish(reason)
        self.die(reason)
        await self._tasks.close()

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
        last, length = await self._recover(span)
        end = span.first_offset if last is None else last.end_offset
        last_ms = span.first_ms if last is None else last.append_ms
        check(end >= self._end_offset, "a recovered ledger holds everything that was acknowledged")
        await self._chain.change(lambda now: _closed(now, span, end, length, last_ms))
        if last is None:
            await self._context.ledgers.delete(span.ledger_id)
        self._next_offset = self._end_offset = end
        self._last_ms = max(self._last_ms, last_ms)
        self._changed()

    async def _recover(self, span: Span) -> tuple[Batch | None, int]:
        """Fence the ledger and find its end: its last batch and its length. Where the last entries are lost nobody
        knows how many messages they had: the end is as far as it can be, so that no offset is given out twice."""
        try:
            reader = await self._context.ledgers.open(span.ledger_id, recover=True)
        except LedgerNotFoundError as gone:
            raise StreamFencedError(f"stream {self._name} was taken over by another broker") from gone
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
        if self._turnover is not None or self._failure is not None:
            return
        if self._writer is not None and self._writer.failure is not None:
            self._start_turnover(self._replace_failed_ledger)
        elif not self._queue:
            return
        elif self._writer is None:
            self._start_turnover(self._open_ledger)
        elif self._is_full(self._writer):
            self._start_turnover(self._roll_ledger)
        else:
            self._send(self._writer)

    def _send(self, writer: LedgerWriter) -> None:
        sent, self._queue = self._queue, []
        drafts = sent[0].batches if len(sent) == 1 else [batch for append in sent for batch in append.batches]
        offset = self._next_offset
        self._last_ms = now_ms = max(self._last_ms, self._clock.wall_ms())
        pieces = []
        for draft in drafts:
            pieces.append((encode_head(draft, offset, now_ms), draft.payload))
            offset += draft.count
        done, payloads = writer.append_pieces(pieces)
        offset = self._next_offset
        batches: list[Batch] = []
        for draft, payload in zip(drafts, payloads, strict=True):
            # The tail keeps the ledger's bytes, and not those that came: one copy of each in memory.
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
        if not done.done():  # what the ledger refuses at once has used up no entry, and uses up no offset
            self._next_offset = offset
        at = 0
        for append in sent:
            append.batches = batches[at : (at := at + len(append.batches))]
        self._in_flight += 1
        done.add_done_callback(partial(self._sent, sent, batches))

    def _sent(self, sent: list[_Append], batches: list[Batch], done: "asyncio.Future[Any]") -> None:
        """In the order of sending, since the ledger acknowledges in order."""
        self._in_flight -= 1
        self._waiting_bytes -= sum([append.size for append in sent])
        check(self._in_flight >= 0 and self._waiting_bytes >= 0, "an append is answered once")
        failure = done.exception()
        if failure is not None:
            self.failures += 1
            _fail(sent, failure)
            # What waits behind fails too: stored without what stood before it, it would be out of order.
            self._strand(failure if isinstance(failure, WeirError) else StreamBusyError(repr(failure)))
            self._kick()
        else:
            check(batches[0].base_offset == self._end_offset, "offsets are acknowledged in order, without gaps")
            self._tail.push(batches)
            self._end_offset = batches[-1].end_offset
            self._stored_entries += len(batches)
            if self._on_stored is not None:
                self._on_stored(batches)
            for append in sent:
                if not append.done.done():
                    append.done.set_result(append.batches[0].base_offset)
        self._changed()
        if self._waiting_bytes <= self._settings.window_bytes:
            self._capacity.wake()

    def _strand(self, failure: WeirError) -> None:
        """Fail what waits for a ledger."""
        stranded, self._queue = self._queue, []
        self.failures += bool(stranded)
        self._waiting_bytes -= sum([append.size for append in stranded])
        _fail(stranded, failure)

    def _is_full(self, writer: LedgerWriter) -> bool:
        settings = self._settings
        return (
            writer.length >= self.roll_bytes
            or writer.last_confirmed + 1 >= settings.roll_entries
            or self._clock.monotonic() - self._writer_opened_at >= self.roll_s
        )

    # --- opening, rolling, recovering the ledger --------------------------------------------------------

    def _start_turnover(self, work: Callable[[], Awaitable[None]]) -> None:
        self._turnover = self._tasks.spawn(self._turn_over(work), "turnover")

    async def _turn_over(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (StreamFencedError, WriterFencedError) as fenced:
            self.die(StreamFencedError(f"stream {self._name} was taken over: {fenced.what}"))
        except InvariantError:
            raise
        except WeirError as failed:
            log.warning("stream %s has no ledger to write to: %s", self._name, failed)
            self._strand(failed)
            await self._clock.sleep(self._settings.retry_pause_s)
        finally:
            self._turnover = None
            self._kick()
            self._changed()
            self._capacity.wake()

    def _turnover_failed(self, failure: BaseException) -> None:
        self.die(failure if isinstance(failure, WeirError) else InvariantError(f"{self._name}: {failure!r}"))

    async def _quiet(self) -> None:
        while self._turnover is not None:
            await asyncio.wait([self._turnover])

    async def _open_ledger(self) -> None:
        spans = self._chain.value.spans
        # Message ids begin with the ledger's; clients count on ids that grow along the stream.
        above = spans[-1].ledger_id if spans else None
        writer = await self._context.ledgers.create(self._settings.quorum, above=above)
        now_ms = max(self._last_ms, self._clock.wall_ms())
        check(above is None or writer.ledger_id > above, "ids of ledgers grow along a stream")
        check(
            self._next_offset == self._end_offset == self._chain.value.end_offset,
            "a ledger begins at the offset where the one before it ends",
        )
        try:
            await self._chain.change(lambda chain: chain.with_opened(writer.ledger_id, now_ms))
        except StreamFencedError:
            await writer.abandon()
            await self._context.ledgers.delete(writer.ledger_id)
            raise
        self._writer, self._stored_entries = writer, 0
        self._writer_opened_at = self._clock.monotonic()

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
        end, length, last_ms = self._end_offset, writer.length, self._last_ms
        await self._chain.change(lambda chain: _closed(chain, span, end, length, last_ms))
        self._writer = None
        self._next_offset = end
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


def _fail(appends: list[_Append], failure: BaseException) -> None:
    for append in appends:
        if not append.done.done():
            append.done.set_exception(failure)


def _closed(chain: Chain, span: Span, end: int, length: int, last_ms: int) -> Chain:
    """The transform of a close: only if the open last span is still the one that was meant."""
    if not chain.spans or chain.spans[-1].ledger_id != span.ledger_id or chain.spans[-1].closed:
        raise StreamFencedError(f"ledger {span.ledger_id} is no longer the open end of its stream")
    return chain.with_closed(end, length, last_ms)
