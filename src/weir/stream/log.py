"""A partition's log: dense offsets over a chain of ledgers, one writer, any number of readers.

Whoever opens a stream counts its epoch on and recovers (fences) its last ledger first, so a former holder can
acknowledge nothing more; it learns so from its own failing appends and is dead from then on.

Reads of one stream that fail: the error that names stream and offset, and whether trying again has lasted long
enough for users to hear of it.
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

#: A bookie that starts again, or a stream that changes hands, is back sooner than this.
PATIENCE_S = 10.0
#: A failure tells something about now for so long after it.
_RECENT_S = 60.0
#: Places that are remembered; readers are seldom stuck at more.
_MOST = 64


@dataclass(slots=True)
class _Place:
    since: float
    last: float
    what: str = ""


class ReadFailures:
    """Where reads of a stream failed, each place from its first failure to the next success."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._places: OrderedDict[int, _Place] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._places)

    def now(self) -> list[str]:
        """What cannot be read, and why, of what somebody tried of late: for those whose protocol has no word for
        it."""
        recent = self._clock.monotonic() - _RECENT_S
        return [place.what for place in self._places.values() if place.last >= recent]

    def succeeded(self, offset: int) -> None:
        self._places.pop(offset, None)

    def failed(self, offset: int, end: int, failure: WeirError) -> ReadFailedError:
        """What to raise: ReadFailedError at first, ReadStuckError once the place has failed for `PATIENCE_S`; at
        once where an object of the lake is missing or damaged."""
        now = self._clock.monotonic()
        place = self._places.get(offset)
        if place is None or now - place.last > PATIENCE_S:  # nobody tried meanwhile: it may have been well
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
        if isinstance(failure, (ObjectMissingError, SegmentDamagedError)):  # trying again brings nothing by itself
            return ReadStuckError(what, hint=hint)
        if lasted_s < PATIENCE_S:
            return ReadFailedError(what, hint=hint)
        return ReadStuckError(f"{what}, for {lasted_s:.0f} s now", hint=hint)


log = logging.getLogger(__name__)

_OPEN_ATTEMPTS = 5


class Stream:
    """Made by `Stream.open`; one at a time per stream is alive, in one broker."""

    def __init__(self, context: StreamContext, name: str, chain: HeldChain) -> None:
        self.name = name
        self._context = context
        self._chain = chain
        self._tail = context.tails.tail()
        self._appender = Appender(context, name, chain, self._tail, self._keep)
        #: What is in memory and not in the log; None while nothing ever was.
        self.unwritten: Unwritten | None = None
        self._forgotten: Callable[[int, int], None] = lambda first, end: None
        self._history = History(context.ledgers, context.settings.readers, self._appender.written)
        self._spans = SpanReads(self._history, context.segments)
        #: Its ledgers and their copies in the lake.
        self.tiering = StreamTiering(context, name, chain, self._history.forget)
        self._ahead = ReadAhead(name, context.ahead, context.settings.ahead_bytes, self._read_old)
        #: How its former holder left it, until its state is opened.
        self._left: Left | None = None
        self._failures = ReadFailures(name, context.runtime.clock)

    @classmethod
    async def open(
        cls, context: StreamContext, name: str, *, create_missing: bool = False, leader: int = 0
    ) -> "Stream":
        """Take the stream over: fence its former holder, find its end, be its one writer from now on, in this
        leader epoch."""
        taken = await context.coming.taken(name)
        if taken is not None:
            try:
                return await cls._open_taken(context, name, taken, leader)
            except StreamFencedError:
                log.info("stream %s was taken over ahead, and is another broker's since", name)
        for attempt in range(1, _OPEN_ATTEMPTS + 1):
            try:
                chain = await HeldChain.take(context, name, create_missing=create_missing, leader=leader)
                stream = cls(context, name, chain)
                await stream._appender.settle()
            except StreamFencedError:  # another opener was faster; take it over from that one
                if attempt == _OPEN_ATTEMPTS:
                    raise
                await context.runtime.clock.sleep(context.settings.retry_pause_s * context.runtime.rng.random())
            else:
                return stream
        raise StreamFencedError(f"stream {name} is being opened by others all the time")

    @classmethod
    async def _open_taken(cls, context: StreamContext, name: str, taken: Taken, leader: int) -> "Stream":
        """One that is this broker's already. Who left it foretold the leader epoch."""
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

    # --- what it is -------------------------------------------------------------------------------------

    @property
    def chain(self) -> Chain:
        return self._chain.value

    @property
    def chain_version(self) -> int:
        """Of the chain, in the metadata."""
        return self._chain.version

    @property
    def start_offset(self) -> int:
        """The oldest offset that may still be read."""
        return self.chain.start_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last acknowledged message."""
        return self._appender.end_offset

    @property
    def failure(self) -> WeirError | None:
        """Why this stream is dead, if it is: closed, or someone else holds it now."""
        return self._appender.failure

    @property
    def size_bytes(self) -> int:
        """Payload bytes in its ledgers."""
        return sum(span.size_bytes for span in self.chain.spans) + self._appender.open_bytes

    @property
    def lake_bytes(self) -> int:
        """Of these, what is read from the lake."""
        return sum(span.size_bytes for span in self.chain.spans if span.in_lake)

    @property
    def open_bytes(self) -> int:
        """Payload bytes in the open ledger, which the chain does not count yet."""
        return self._appender.open_bytes

    @property
    def lost(self) -> list[tuple[LedgerId, LostRun]]:
        """What of it is damaged everywhere, as far as somebody wanted it: left out, and written down."""
        losses = self._context.ledgers.context.losses
        return [(span.ledger_id, run) for span in self.chain.spans for run in losses.of(span.ledger_id)]

    @property
    def now_ms(self) -> int:
        """By the clock that its batches are stamped with."""
        return self._context.runtime.clock.wall_ms()

    @property
    def last_ms(self) -> int:
        """When the last batch was appended; 0 if none ever was."""
        return self._appender.last_ms

    @property
    def roll_limits(self) -> tuple[int, float]:
        """The bytes and the seconds at which it begins a new ledger."""
        return self._appender.roll.bytes, self._appender.roll.s

    def roll_when(self, size_bytes: int, age_s: float) -> None:
        """Begin new ledgers sooner than the settings say; 0 means as they say."""
        self._appender.roll.set(size_bytes, age_s)

    @property
    def tail_reads(self) -> tuple[int, int]:
        """Reads that the tail served, and reads that it could not."""
        return self._tail.hits, self._tail.misses

    def position_of(self, offset: int) -> tuple[LedgerId, int] | None:
        """Ledger and distance from its first offset: what a Pulsar message id is made of."""
        span = self.chain.span_at(offset)
        return None if span is None else (span.ledger_id, offset - span.first_offset)

    def offset_of(self, ledger_id: int, distance: int) -> int | None:
        """The offset of a position; None if the ledger is not part of the chain (any more)."""
        span = self.chain.span_of(ledger_id)
        return None if span is None else span.first_offset + distance

    # --- appending and reading --------------------------------------------------------------------------

    def append(self, batch: Batch, *, in_memory: bool = False) -> "asyncio.Future[int]":
        """Append a batch (its `base_offset` and `append_ms` are set here); done, with its first offset, when it is
        acknowledged. Decides at once: a refusal is an already failed future. `in_memory`: it is read as any other,
        and never written; it is gone with this holder of the stream, or when it is forgotten (`unwritten`)."""
        return self._appender.append((batch,), in_memory=in_memory)

    def append_all(self, batches: Sequence[Batch], *, in_memory: bool = False) -> "asyncio.Future[int]":
        """Append batches one after the other, into one ledger: all are stored, or none is told of. Done with the
        first one's offset."""
        return self._appender.append(batches, in_memory=in_memory)

    def _keep(self, batches: Sequence[Batch], *, carried: bool = False) -> None:
        if self.unwritten is None:
            self.unwritten = Unwritten(self._context.memory.share(), self._forgotten)
        self.unwritten.add(batches, carried=carried)

    def begin_at(self, end_offset: int, carried: Sequence[Batch] = ()) -> None:
        """Before anything is appended: a former holder gave out offsets before this one that it never wrote, and
        wrote these batches down elsewhere."""
        self._appender.begin_at(end_offset)
        if carried:
            self._keep(carried, carried=True)

    def on_forgotten(self, callback: Callable[[int, int], None]) -> None:
        """Call a plain function with offsets, [first, end), that were in memory only, when nobody wants them any
        more. Before anything is in memory."""
        self._forgotten = callback

    @property
    def written_to(self) -> int:
        """The offset after the last that is written; what is behind it is in memory only."""
        return self._appender.written_to

    def write_gap(self) -> "asyncio.Future[int]":
        """Have the log say that what is in memory up to now is not in it; done when it does, and all that was
        appended before is acknowledged."""
        return self._appender.write_gap()

    def prepare(self) -> None:
        """Open a ledger now, before there is something to append."""
        self._appender.prepare()

    @property
    def in_flight(self) -> bool:
        """Whether an append is neither acknowledged nor refused yet."""
        return self._appender.in_flight

    @property
    def has_capacity(self) -> bool:
        return self._appender.has_capacity

    async def wait_capacity(self) -> None:
        """Wait until an append may be made without growing memory beyond the window."""
        await self._appender.wait_capacity()

    @property
    def unreadable(self) -> list[str]:
        """What cannot be read now, and why."""
        return self._failures.now() if self._failures else []

    @property
    def failures(self) -> int:
        """How often appends failed so far: one that was made after a failed one must not outlive it."""
        return self._appender.failures

    async def settled(self, *, patient: bool = True) -> None:
        """Wait until it is known what became of appends that failed. Unless `patient`, an attempt to find out that
        fails is raised, and not repeated."""
        await self._appender.settled(patient=patient)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a plain function whenever the end has moved, appends have failed, or the stream has died."""
        self._appender.listen(listener)

    def on_stored(self, callback: Callable[[list[Batch]], None]) -> None:
        """Call a plain function with what was stored, before anybody else is told that the end has moved."""
        self._appender.on_stored(callback)

    async def wait_beyond(self, offset: int) -> None:
        """Wait until the end lies beyond the offset; raises once the stream is dead."""
        await self._appender.wait_beyond(offset)

    def read_cached(self, offset: int, max_bytes: int) -> list[Batch] | None:
        """What `read` would answer, if that can be told without waiting."""
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
        """Acknowledged batches from the one that holds `offset` on, at least one; none only at the end.
        OffsetTrimmedError if the offset is gone; ReadFailedError if its storage does not give it."""
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
        """Behind all that is written."""
        if self.unwritten is None:
            return gaps(offset, self.end_offset, self.last_ms)
        return self.unwritten.between(offset, self.end_offset, max_bytes, self.last_ms)

    def _merged(self, batches: list[Batch], offset: int, max_bytes: int) -> list[Batch]:
        return self.unwritten.merged(batches, offset, max_bytes) if batches and self.unwritten else batches

    async def _read_old(self, offset: int, max_bytes: int) -> list[Batch]:
        """Batches from the ledgers; none where the tail has them, or at the end."""
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
                # trimmed, or let go, while it was being read: look again

    def _trimmed(self, offset: int) -> OffsetTrimmedError:
        return OffsetTrimmedError(f"offset {offset} of {self.name} is gone; the oldest is {self.start_offset}")

    async def offset_at(self, moment_ms: int) -> int:
        """The first offset appended at or after the moment; the end if there is none."""
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
        """The stream's small state, as its former holder left it."""
        left, self._left = self._left, None
        if left is None:
            return await StateLog.open(self._context, self.name, self._chain)
        return StateLog.given(self._context, self.name, self._chain, left.state, unsaved=left.unsaved)

    # --- changing the chain -----------------------------------------------------------------------------

    async def trim(self, start_offset: int) -> None:
        """Forget everything before the offset; ledgers that lie wholly before it are deleted."""
        start_offset = min(start_offset, self.written_to)
        if start_offset <= self.start_offset:
            return
        before = self.chain.spans
        await self._chain.change(lambda chain: chain.trimmed(start_offset))
        check(self.start_offset <= self.end_offset, "nothing is trimmed that was not acknowledged yet")
        await self._history.forget(self.chain)
        kept = {span.ledger_id: None for span in self.chain.spans}
        await self.tiering.delete_trimmed([span for span in before if span.ledger_id not in kept])

    async def roll(self) -> None:
        """Close the open ledger now, so that it can be trimmed; the next append opens another."""
        await self._appender.close_ledger()

    async def terminate(self) -> int:
        """Take no more messages, for good; answers the offset after the last."""
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
        """Take no more appends, and acknowledge or fail what is under way. Whether `leave` may tell the next
        holder how it ends; only `close` ends it else."""
        ended = await self._appender.end(StreamClosedError(f"stream {self.name} is closed"))
        return ended and self.unwritten is None and self.chain.doomed is None

    def leave(self, state: dict[str, bytes], *, unsaved: bool) -> Left:
        """What the next holder shall know, after `end`, with this state. Nothing may be changed from here on."""
        return Left(self.chain, self._chain.version, self._appender.ledger_end, state, unsaved)

    async def release(self) -> LedgerWriter | None:
        """Let go of it, where the next holder knows how it was left. The ledger's writer is to be closed, some
        time: whoever reads the ledger waits for that, or does so itself."""
        writer = await self._appender.release(StreamClosedError(f"stream {self.name} is closed"))
        await self._let_go()
        return writer

    async def close(self) -> None:
        """Acknowledge what is under way, close the ledger, let go. Closing twice is fine."""
        await self._appender.close(StreamClosedError(f"stream {self.name} is closed"))
        await self._let_go()

    async def _let_go(self) -> None:
        await self._ahead.close()
        await self._history.close()
        self._tail.clear()
        if self.unwritten is not None:
            self.unwritten.close()

    async def delete(self, also: tuple[LedgerId, ...] = ()) -> None:
        """Close, and forget the stream with everything in it, and with ledgers that only its state names.
        StreamFencedError, and nothing is deleted, if someone else holds it now."""
        await self.close()
        await self._chain.delete(also)
