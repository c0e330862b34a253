"""A partition's log: dense offsets over a chain of ledgers, one writer, any number of readers.

Opening a stream increments its epoch and recovers (fences) its last ledger first, so a former holder cannot
acknowledge anything more. The former holder's appends fail from then on, and its stream object is dead.

Failed reads raise an error that names stream and offset. A failure that lasts raises ReadStuckError, which users
see.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from weir.ledger.losses import LostRun
from weir.ledger.writer import LedgerWriter
from weir.model.batch import Batch
from weir.model.check import check
from weir.model.errors import (
    BookieError,
    DiskError,
    LedgerError,
    LedgerNotFoundError,
    ObjectMissingError,
    ObjectStoreError,
    OffsetTrimmedError,
    ReadFailedError,
    ReadStuckError,
    SegmentDamagedError,
    StreamClosedError,
    StreamFencedError,
    StreamTerminatedError,
    WeirError,
)
from weir.model.ids import LedgerId
from weir.model.stream import Chain
from weir.runtime.interfaces import Clock
from weir.stream.appender import Appender
from weir.stream.chain import HeldChain
from weir.stream.context import StreamContext
from weir.stream.handover import Left, Taken
from weir.stream.history import History, SpanReads
from weir.stream.read_ahead import ReadAhead
from weir.stream.state_log import StateLog
from weir.stream.tiering import StreamTiering
from weir.stream.unwritten import Unwritten, gaps

#: A bookie restart or a takeover of the stream takes less time than this.
PATIENCE_S = 10.0
#: A failed read counts as current for this time.
_RECENT_S = 60.0
#: Maximum number of remembered failing offsets per stream.
_MOST = 64


@dataclass(slots=True)
class _Place:
    since: float
    last: float
    what: str = ""


class ReadFailures:
    """Offsets at which reads of a stream fail, each from its first failure to the next success."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._places: OrderedDict[int, _Place] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._places)

    def now(self) -> list[str]:
        """Descriptions of recent read failures, for gateways whose protocol has no error for them."""
        recent = self._clock.monotonic() - _RECENT_S
        return [place.what for place in self._places.values() if place.last >= recent]

    def succeeded(self, offset: int) -> None:
        self._places.pop(offset, None)

    def failed(self, offset: int, end: int, failure: WeirError) -> ReadFailedError:
        """Record a failed read and return the error to raise: ReadFailedError at first, ReadStuckError once the
        offset has failed for `PATIENCE_S`, or at once if an object in the lake is missing or damaged."""
        now = self._clock.monotonic()
        place = self._places.get(offset)
        if place is None or now - place.last > PATIENCE_S:  # no read in between: it may have worked
            place = _Place(now, now)
        place.last = now
        self._places[offset] = place
        self._places.move_to_end(offset)
        if len(self._places) > _MOST:
            self._places.popitem(last=False)
        lasted_s = now - place.since
        hint = failure.hint if isinstance(failure, ObjectStoreError) else None
        what = f"{self._name} cannot be read from offset {offset} on (it ends at {end}): {failure.what}"
        place.what = what
        if isinstance(failure, (ObjectMissingError, SegmentDamagedError)):  # a retry alone does not help
            return ReadStuckError(what, hint=hint)
        if lasted_s < PATIENCE_S:
            return ReadFailedError(what, hint=hint)
        return ReadStuckError(f"{what}, for {lasted_s:.0f} s now", hint=hint)


log = logging.getLogger(__name__)

_OPEN_ATTEMPTS = 5


class Stream:
    """A stream, created by `Stream.open`. At most one object per stream is alive, in one broker."""

    def __init__(self, context: StreamContext, name: str, chain: HeldChain) -> None:
        self.name = name
        self._context = context
        self._chain = chain
        self._tail = context.tails.tail()
        self._appender = Appender(context, name, chain, self._tail, self._keep)
        #: Batches that are in memory and not in the log; None until the first one.
        self.unwritten: Unwritten | None = None
        self._forgotten: Callable[[int, int], None] = lambda first, end: None
        self._history = History(context.ledgers, context.settings.readers, self._appender.written)
        self._spans = SpanReads(self._history, context.segments)
        #: Copies of the stream's ledgers in the lake.
        self.tiering = StreamTiering(context, name, chain, self._history.forget)
        self._ahead = ReadAhead(name, context.ahead, context.settings.ahead_bytes, self._read_old)
        #: Data from the former holder's handover, until the state is opened.
        self._left: Left | None = None
        self._failures = ReadFailures(name, context.runtime.clock)

    @classmethod
    async def open(
        cls, context: StreamContext, name: str, *, create_missing: bool = False, leader: int = 0
    ) -> "Stream":
        """Take the stream over: fence its former holder, find its end, and become its only writer, in this leader
        epoch."""
        taken = await context.coming.taken(name)
        if taken is not None:
            try:
                return await cls._open_taken(context, name, taken, leader)
            except StreamFencedError:
                log.info("stream %s: another broker took it over after the handover, opening it normally", name)
        for attempt in range(1, _OPEN_ATTEMPTS + 1):
            try:
                chain = await HeldChain.take(context, name, create_missing=create_missing, leader=leader)
                stream = cls(context, name, chain)
                await stream._appender.settle()
            except StreamFencedError:  # another broker was faster; take the stream over from it
                if attempt == _OPEN_ATTEMPTS:
                    raise
                await context.runtime.clock.sleep(context.settings.retry_pause_s * context.runtime.rng.random())
            else:
                return stream
        raise StreamFencedError(f"stream {name}: other brokers keep taking it over")

    @classmethod
    async def _open_taken(cls, context: StreamContext, name: str, taken: Taken, leader: int) -> "Stream":
        """Open a stream that this broker took over ahead. The former holder predicted the leader epoch."""
        chain = taken.chain
        try:
            if chain.value.leader < leader:
                await chain.change(lambda now: replace(now, leader=leader))
        except StreamFencedError:
            if taken.writer is not None:
                await taken.writer.abandon()
            raise
        stream = cls(context, name, chain)
        stream._left = taken.left
        if taken.writer is not None:
            stream._appender.adopt(taken.writer)
        return stream

    # --- properties -------------------------------------------------------------------------------------

    @property
    def chain(self) -> Chain:
        return self._chain.value

    @property
    def chain_version(self) -> int:
        """Version of the chain record in the metadata."""
        return self._chain.version

    @property
    def start_offset(self) -> int:
        """The oldest readable offset."""
        return self.chain.start_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last acknowledged message."""
        return self._appender.end_offset

    @property
    def failure(self) -> WeirError | None:
        """Why this stream is dead: closed, or another broker holds it now. None while it is alive."""
        return self._appender.failure

    @property
    def size_bytes(self) -> int:
        """Payload bytes in its ledgers."""
        return sum(span.size_bytes for span in self.chain.spans) + self._appender.open_bytes

    @property
    def lake_bytes(self) -> int:
        """Payload bytes of ledgers that are read from the lake; part of `size_bytes`."""
        return sum(span.size_bytes for span in self.chain.spans if span.in_lake)

    @property
    def open_bytes(self) -> int:
        """Payload bytes in the open ledger, which the chain does not count yet."""
        return self._appender.open_bytes

    @property
    def lost(self) -> list[tuple[LedgerId, LostRun]]:
        """Entries that are damaged in all copies, as far as reads found them: recorded, and skipped by reads."""
        losses = self._context.ledgers.context.losses
        return [(span.ledger_id, run) for span in self.chain.spans for run in losses.of(span.ledger_id)]

    @property
    def now_ms(self) -> int:
        """Current time of the clock that sets append times."""
        return self._context.runtime.clock.wall_ms()

    @property
    def last_ms(self) -> int:
        """When the last batch was appended; 0 if none ever was."""
        return self._appender.last_ms

    @property
    def roll_limits(self) -> tuple[int, float]:
        """Size in bytes and age in seconds at which the ledger rolls."""
        return self._appender.roll.bytes, self._appender.roll.s

    def roll_when(self, size_bytes: int, age_s: float) -> None:
        """Roll ledgers at a lower size or age than the settings; 0 means the limit from the settings."""
        self._appender.roll.set(size_bytes, age_s)

    @property
    def tail_reads(self) -> tuple[int, int]:
        """Hits and misses of the tail cache."""
        return self._tail.hits, self._tail.misses

    def position_of(self, offset: int) -> tuple[LedgerId, int] | None:
        """Ledger id and distance from its first offset: the parts of a Pulsar message id."""
        span = self.chain.span_at(offset)
        return None if span is None else (span.ledger_id, offset - span.first_offset)

    def offset_of(self, ledger_id: int, distance: int) -> int | None:
        """The offset of a position; None if the ledger is not in the chain (any more)."""
        span = self.chain.span_of(ledger_id)
        return None if span is None else span.first_offset + distance

    # --- appending and reading --------------------------------------------------------------------------

    def append(self, batch: Batch, *, in_memory: bool = False) -> "asyncio.Future[int]":
        """Append a batch (sets `base_offset` and `append_ms`). The future completes with its first offset when it
        is acknowledged; a refusal is immediate: an already failed future. `in_memory`: readers get the batch, but
        no ledger does; it ends with this holder of the stream, or once it is acknowledged (`unwritten`)."""
        return self._appender.append((batch,), in_memory=in_memory)

    def append_all(self, batches: Sequence[Batch], *, in_memory: bool = False) -> "asyncio.Future[int]":
        """Append batches one after the other to one ledger; all of them are acknowledged or none. The future
        completes with the first batch's offset."""
        return self._appender.append(batches, in_memory=in_memory)

    def _keep(self, batches: Sequence[Batch], *, carried: bool = False) -> None:
        if self.unwritten is None:
            self.unwritten = Unwritten(self._context.memory.share(), self._forgotten)
        self.unwritten.add(batches, carried=carried)

    def begin_at(self, end_offset: int, carried: Sequence[Batch] = ()) -> None:
        """Start at `end_offset` at the earliest: a former holder assigned offsets before it without writing them,
        and saved the batches `carried` elsewhere. Call it before the first append."""
        self._appender.begin_at(end_offset)
        if carried:
            self._keep(carried, carried=True)

    def on_forgotten(self, callback: Callable[[int, int], None]) -> None:
        """Call a plain function with offsets [first, end) of in-memory batches that are dropped after their
        acknowledgement. Register it before the first in-memory append."""
        self._forgotten = callback

    @property
    def written_to(self) -> int:
        """The offset after the last written message; messages from here to the end are in memory only."""
        return self._appender.written_to

    def write_gap(self) -> "asyncio.Future[int]":
        """Write a gap to the log for all in-memory batches so far. The future completes when the gap is stored and
        all earlier appends are acknowledged."""
        return self._appender.write_gap()

    def prepare(self) -> None:
        """Open a ledger now, before the first append."""
        self._appender.prepare()

    @property
    def in_flight(self) -> bool:
        """Whether an append is neither acknowledged nor refused yet."""
        return self._appender.in_flight

    @property
    def has_capacity(self) -> bool:
        return self._appender.has_capacity

    async def wait_capacity(self) -> None:
        """Wait until unacknowledged appends fit the window again; raises once the stream is dead."""
        await self._appender.wait_capacity()

    @property
    def unreadable(self) -> list[str]:
        """Descriptions of recent read failures."""
        return self._failures.now() if self._failures else []

    @property
    def failures(self) -> int:
        """Number of times that appends failed. An append that follows a failed one must fail with it."""
        return self._appender.failures

    async def settled(self, *, patient: bool = True) -> None:
        """Wait until recovery has decided which failed appends are stored. Unless `patient`, the first failed
        recovery attempt raises instead of a retry."""
        await self._appender.settled(patient=patient)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a plain function whenever the end moves, appends fail, or the stream dies."""
        self._appender.listen(listener)

    def on_stored(self, callback: Callable[[list[Batch]], None]) -> None:
        """Call a plain function with stored batches before listeners and waiters learn that the end moved."""
        self._appender.on_stored(callback)

    async def wait_beyond(self, offset: int) -> None:
        """Wait until the end lies beyond the offset; raises once the stream is dead."""
        await self._appender.wait_beyond(offset)

    def read_cached(self, offset: int, max_bytes: int) -> list[Batch] | None:
        """The result of `read` if it is available without waiting; None otherwise."""
        if offset >= self._appender.end_offset:
            return []
        if offset < self.start_offset:
            return None
        if offset >= self._appender.written_to:
            return self._read_unwritten(offset, max_bytes)
        cached = self._tail.read(offset, max_bytes)
        if cached is None:
            cached = self._ahead.cached(offset, max_bytes)
        return self._merged(cached, offset, max_bytes) if cached else cached

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        """Read acknowledged batches, starting with the one that contains `offset`; empty only at the end.
        OffsetTrimmedError if the offset is trimmed; ReadFailedError if its storage fails."""
        if offset >= self.end_offset:
            return []
        if offset < self.start_offset:
            raise self._trimmed(offset)
        while True:
            if offset >= self.written_to:
                return self._read_unwritten(offset, max_bytes)
            try:
                found = self._tail.read(offset, max_bytes) or await self._ahead.read(offset, max_bytes)
            except (LedgerError, BookieError, DiskError, ObjectStoreError) as failure:
                raise self._failures.failed(offset, self.end_offset, failure) from failure
            if self._failures:
                self._failures.succeeded(offset)
            if found or offset >= self.end_offset:
                return self._merged(found, offset, max_bytes)

    def _read_unwritten(self, offset: int, max_bytes: int) -> list[Batch]:
        """Read batches after the last written one."""
        if self.unwritten is None:
            return gaps(offset, self.end_offset, self.last_ms)
        return self.unwritten.between(offset, self.end_offset, max_bytes, self.last_ms)

    def _merged(self, batches: list[Batch], offset: int, max_bytes: int) -> list[Batch]:
        return self.unwritten.merged(batches, offset, max_bytes) if batches and self.unwritten else batches

    async def _read_old(self, offset: int, max_bytes: int) -> list[Batch]:
        """Read batches from the ledgers; empty if the tail has them, or at the end."""
        if offset >= self.written_to or self._tail.holds(offset):
            return []
        while True:
            chain = self.chain
            span = chain.span_at(offset)
            if offset < chain.start_offset or span is None:
                raise self._trimmed(offset)
            try:
                return await self._spans.read(chain, span, offset, max_bytes)
            except (LedgerNotFoundError, ObjectMissingError):
                if self.chain is chain:
                    raise
                # trimmed or moved to the lake during the read: retry

    def _trimmed(self, offset: int) -> OffsetTrimmedError:
        return OffsetTrimmedError(f"offset {offset} of {self.name} is trimmed; the oldest is {self.start_offset}")

    async def offset_at(self, moment_ms: int) -> int:
        """The first offset with an append time at or after the moment; the end if none has."""
        offset = self.written_to
        chain = self.chain
        for span in chain.spans:
            if span.closed and span.last_ms < moment_ms:
                continue
            found = await self._spans.offset_at(chain, span, moment_ms)
            if found is not None:
                offset = max(found, self.start_offset)
                break
        if self.unwritten:
            offset = self.unwritten.older_than(moment_ms, offset)
        return offset

    async def open_state(self) -> StateLog:
        """Open the stream's state log as the former holder left it."""
        left, self._left = self._left, None
        if left is None:
            return await StateLog.open(self._context, self.name, self._chain)
        return StateLog.given(self._context, self.name, self._chain, left.state, unsaved=left.unsaved)

    # --- changing the chain -----------------------------------------------------------------------------

    async def trim(self, start_offset: int) -> None:
        """Trim the stream to start at the offset, and delete ledgers whose offsets are all before it."""
        start_offset = min(start_offset, self.written_to)
        if start_offset <= self.start_offset:
            return
        before = self.chain.spans
        await self._chain.change(lambda chain: chain.trimmed(start_offset))
        check(self.start_offset <= self.end_offset, "a trim removes acknowledged messages only")
        await self._history.forget(self.chain)
        kept = {span.ledger_id: None for span in self.chain.spans}
        await self.tiering.delete_trimmed([span for span in before if span.ledger_id not in kept])

    async def roll(self) -> None:
        """Close the open ledger now, so that it can be trimmed; the next append opens a new one."""
        await self._appender.close_ledger()

    async def terminate(self) -> int:
        """Refuse all further messages, permanently; return the offset after the last one."""
        if self.chain.terminated_at is None:
            gap = self.write_gap()
            await self._appender.finish(StreamTerminatedError(f"stream {self.name} is terminated"))
            await gap
            await self._chain.change(lambda chain: replace(chain, terminated_at=chain.end_offset))
        return self.end_offset

    async def set_properties(self, properties: dict[str, str]) -> None:
        """Replace the stream's own key-value pairs."""
        await self._chain.change(lambda chain: replace(chain, properties=dict(properties)))

    async def end(self) -> bool:
        """Refuse new appends, and acknowledge or fail the pending ones. Return whether `leave` may hand the stream
        over; otherwise the caller must `close` it."""
        ended = await self._appender.end(StreamClosedError(f"stream {self.name} is closed"))
        return ended and self.unwritten is None and self.chain.doomed is None

    def leave(self, state: dict[str, bytes], *, unsaved: bool) -> Left:
        """The handover data for the next holder, with this state. Call it after `end`; no change may follow."""
        return Left(self.chain, self._chain.version, self._appender.ledger_end, state, unsaved)

    async def release(self) -> LedgerWriter | None:
        """Release the stream after the handover to the next holder. The caller must close the returned writer of
        the ledger eventually: readers of the ledger wait for that, or recover it."""
        writer = await self._appender.release(StreamClosedError(f"stream {self.name} is closed"))
        await self._let_go()
        return writer

    async def close(self) -> None:
        """Acknowledge or fail pending appends, close the ledger, release everything. Idempotent."""
        await self._appender.close(StreamClosedError(f"stream {self.name} is closed"))
        await self._let_go()

    async def _let_go(self) -> None:
        await self._ahead.close()
        await self._history.close()
        self._tail.clear()
        if self.unwritten is not None:
            self.unwritten.close()

    async def delete(self, also: tuple[LedgerId, ...] = ()) -> None:
        """Close and delete the stream with all its ledgers, and the ledgers in `also`, which only its state names.
        StreamFencedError, and no deletion, if another broker holds it now."""
        await self.close()
        await self._chain.delete(also)
