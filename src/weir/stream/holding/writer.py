"""Write path of a holding area: one ledger per window of due times, created with the window's first message.

The stream's durable state names a ledger before its first write, so the next holder finds every acknowledged
message. Messages wait in the queue of their window until its ledger is open.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from weir.ledger.writer import LedgerWriter
from weir.model.batch import HeldId
from weir.model.check import check
from weir.model.errors import InvariantError, StreamBusyError, StreamFencedError, WeirError
from weir.model.ids import EntryId
from weir.runtime.waiters import Waiters
from weir.stream.holding.ledger import DuePosition, HeldLedger, HoldingContext, Window
from weir.wire.delayed_batches import HoldingRecord

log = logging.getLogger(__name__)

#: `hold` refuses above this many times the window that `wait_capacity()` keeps.
_HARD_FACTOR = 2

#: Callback for each stored message: its ledger, its entry, its due time in ms.
Stored = Callable[[HeldLedger, int, int], None]


@dataclass(slots=True)
class _Hold:
    """A message with a pending write."""

    payload: bytes
    due_ms: int
    count: int
    done: "asyncio.Future[HeldId]"


@dataclass(slots=True)
class _Bucket:
    """The open ledger of one window, and the queue of its messages."""

    window: Window
    ledger: HeldLedger | None = None
    queue: list[_Hold] = field(default_factory=list)
    opening: bool = False


class HoldingWriter:
    """Writes to the ledgers of a holding area; has all ledgers by serial, and the open one of each window."""

    def __init__(self, context: HoldingContext, stored: Stored, beginning: Callable[[], None]) -> None:
        self._context = context
        self._name = context.name
        self._state = context.state
        self._settings = context.settings
        self._tasks = context.tasks
        self._stored = stored
        self._beginning = beginning
        self._loop = asyncio.get_running_loop()
        #: Messages that are due before this position belong into the index.
        self.ceiling: DuePosition = 0
        #: Set while the area has any ledger: without one, background loops have no work.
        self.filled = asyncio.Event()
        self._ledgers: dict[int, HeldLedger] = {}
        self._by_id: dict[int, HeldLedger] = {}
        self._buckets: dict[Window, _Bucket] = {}
        self._next_serial = 0
        self._dirty: dict[int, HeldLedger] = {}
        self._waiting_bytes = 0
        self._waiting = 0
        self._capacity = Waiters()
        self._refusal: WeirError | None = None

    # --- its ledgers ------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[HeldLedger]:
        """Ledgers in order of creation. Iterates over a copy, so ledgers may change meanwhile."""
        return iter(list(self._ledgers.values()))

    def __len__(self) -> int:
        return len(self._ledgers)

    def with_serial(self, serial: int) -> HeldLedger | None:
        return self._ledgers.get(serial)

    def with_id(self, ledger_id: int) -> HeldLedger | None:
        return self._by_id.get(ledger_id)

    def add(self, ledger: HeldLedger) -> None:
        """Add a ledger that the state names."""
        self._ledgers[ledger.serial] = self._by_id[ledger.ledger_id] = ledger
        self._next_serial = max(self._next_serial, ledger.serial + 1)
        self.filled.set()

    def touch(self, ledger: HeldLedger) -> None:
        """Include the changed record of the ledger in the next write of progress."""
        self._dirty[ledger.serial] = ledger

    def write_down(self) -> bool:
        """Mark all changed records in the state; return whether any had changed."""
        dirty, self._dirty = self._dirty, {}
        for ledger in dirty.values():
            if ledger.serial in self._ledgers:
                self._state.mark(ledger.key, ledger.to_bytes)
        return bool(dirty)

    async def drop(self, ledger: HeldLedger) -> None:
        """Delete a drained ledger, then its record: a holder that finds a record without a ledger knows that it
        was drained."""
        check(ledger.is_drained, "only a drained ledger is deleted")
        await self._context.ledgers.delete(ledger.ledger_id)
        self._ledgers.pop(ledger.serial, None)
        self._by_id.pop(ledger.ledger_id, None)
        self._state.delete(ledger.key)
        if not self._ledgers:
            self.filled.clear()

    # --- holding ----------------------------------------------------------------------------------------

    def hold(self, window: Window, payload: bytes, due_ms: int, count: int) -> "asyncio.Future[HeldId]":
        """Store a message in the ledger of its window. A refusal is immediate: an already failed future."""
        done: asyncio.Future[HeldId] = self._loop.create_future()
        refusal = self._refusal or self._too_much()
        if refusal is not None:
            _fail(done, refusal)
            return done
        bucket = self._buckets.get(window)
        if bucket is None:
            bucket = self._buckets[window] = _Bucket(window)
        hold = _Hold(payload, due_ms, count, done)
        self._waiting += 1
        self._waiting_bytes += len(payload)
        ledger = self._usable(bucket)
        if ledger is None:
            bucket.queue.append(hold)
            self._begin(bucket)
        else:
            self._send(bucket, ledger, hold)
        return done

    @property
    def has_capacity(self) -> bool:
        """Whether `wait_capacity` neither waits nor raises."""
        return self._refusal is None and not self._over(1)

    async def wait_capacity(self) -> None:
        """Wait until pending messages fit the window again; raises once the area refuses."""
        while self._refusal is None and self._over(1):
            await self._capacity.wait()
        if self._refusal is not None:
            raise self._refusal

    def refuse(self, reason: WeirError) -> None:
        """Refuse all further messages, and fail the queued ones."""
        if self._refusal is None:
            self._refusal = reason
        for bucket in self._buckets.values():
            self._strand(bucket, reason)
        self._capacity.wake()

    def _too_much(self) -> WeirError | None:
        if self._over(_HARD_FACTOR):
            return StreamBusyError(f"stream {self._name} has too many delayed messages waiting to be stored")
        return None

    def _over(self, factor: int) -> bool:
        settings = self._settings
        return (
            self._waiting > factor * settings.window_entries
            or self._waiting_bytes > factor * settings.window_bytes
        )

    def _usable(self, bucket: _Bucket) -> HeldLedger | None:
        """The bucket's ledger. A full or failed one leaves the bucket."""
        ledger = bucket.ledger
        if ledger is None or ledger.writer is None:
            bucket.ledger = None
        elif ledger.writer.failure is not None:
            self._writer_failed(bucket, ledger, ledger.writer)
        elif self._is_full(ledger):
            bucket.ledger = None
            self._tasks.spawn(self.close_writer(ledger), "roll")
        return bucket.ledger

    def _is_full(self, ledger: HeldLedger) -> bool:
        settings = self._context.streams.settings
        return ledger.entries >= settings.roll_entries or ledger.size_bytes >= settings.roll_bytes

    def _send(self, bucket: _Bucket, ledger: HeldLedger, hold: _Hold) -> None:
        check(ledger.writer is not None, "a bucket's ledger has a writer")
        answer = ledger.writer.append(hold.payload)  # type: ignore[union-attr]
        answer.add_done_callback(partial(self._answered, bucket, ledger, hold))

    def _answered(
        self, bucket: _Bucket, ledger: HeldLedger, hold: _Hold, answer: "asyncio.Future[EntryId]"
    ) -> None:
        """Handle the result of a write. The ledger acknowledges in order, so results arrive in sending order."""
        self._waiting -= 1
        self._waiting_bytes -= len(hold.payload)
        check(self._waiting >= 0 and self._waiting_bytes >= 0, "a hold is answered once")
        failure = answer.exception()
        if failure is None:
            entry = ledger.grow(hold.count, len(hold.payload))
            check(entry == answer.result(), "entries of a ledger are acknowledged in order")
            self.touch(ledger)
            self._stored(ledger, entry, hold.due_ms)
            if not hold.done.done():
                hold.done.set_result(HeldId(ledger.ledger_id, entry))
        else:
            _fail(hold.done, failure)
            if ledger.writer is not None and ledger.writer.failure is not None:
                # Recovery determines the entries of the failed ledger; the next message gets a new ledger.
                self._writer_failed(bucket, ledger, ledger.writer)
        if len(self._capacity) and not self._over(1):
            self._capacity.wake()

    def _writer_failed(self, bucket: _Bucket, ledger: HeldLedger, writer: LedgerWriter) -> None:
        if not ledger.closed:
            ledger.writer = None
            if bucket.ledger is ledger:
                bucket.ledger = None
            self._tasks.spawn(writer.abandon(), "abandon")

    def _strand(self, bucket: _Bucket, failure: BaseException) -> None:
        """Fail the queued messages."""
        stranded, bucket.queue = bucket.queue, []
        self._waiting -= len(stranded)
        self._waiting_bytes -= sum(len(hold.payload) for hold in stranded)
        for hold in stranded:
            _fail(hold.done, failure)

    # --- opening and closing ledgers --------------------------------------------------------------------

    def _begin(self, bucket: _Bucket) -> None:
        if not bucket.opening:
            bucket.opening = True
            self._tasks.spawn(self._open(bucket), "open")

    async def _open(self, bucket: _Bucket) -> None:
        """Create a ledger and write the queued messages to it."""
        try:
            ledger = await self._register(bucket.window)
        except InvariantError:
            raise
        except StreamFencedError as fenced:
            self._strand(bucket, fenced)
            raise
        except WeirError as failed:
            log.warning("stream %s: creating a ledger for delayed messages failed: %s", self._name, failed)
            self._strand(bucket, failed)
            await self._context.clock.sleep(self._settings.retry_pause_s)
        else:
            bucket.ledger = ledger
            queue, bucket.queue = bucket.queue, []
            for hold in queue:
                self._send(bucket, ledger, hold)
        bucket.opening = False
        if bucket.queue:
            self._begin(bucket)
        elif bucket.ledger is None:
            self._buckets.pop(bucket.window, None)

    async def _register(self, window: Window) -> HeldLedger:
        """Create a ledger for the window and record it in the state before its first write."""
        writer = await self._context.ledgers.create(self._context.quorum)
        serial, self._next_serial = self._next_serial, self._next_serial + 1
        record = HoldingRecord(serial, window.first_ms, window.end_ms)
        ledger = HeldLedger(writer.ledger_id, record, writer)
        try:
            self._beginning()
            self._state.put(ledger.key, ledger.to_bytes())
            await self._context.write_state()
        except WeirError:  # another broker holds the stream, or the holder is unknown
            self._state.delete(ledger.key)
            await writer.abandon()
            await self._context.ledgers.delete(writer.ledger_id)
            raise
        ledger.loaded = self.ceiling
        self.add(ledger)
        return ledger

    async def close_past(self, now_ms: int) -> None:
        """Close the writers of past windows, which get no more messages."""
        for bucket in list(self._buckets.values()):
            if bucket.window.end_ms <= now_ms and not bucket.opening and not bucket.queue:
                self._buckets.pop(bucket.window, None)
                if bucket.ledger is not None:
                    await self.close_writer(bucket.ledger)

    async def close_writers(self) -> None:
        """Acknowledge or fail pending writes, and close all ledgers."""
        await asyncio.gather(*(self.close_writer(ledger) for ledger in self))
        self._buckets.clear()

    async def close_writer(self, ledger: HeldLedger) -> None:
        """Close the ledger and record its end; after a failure it will be recovered."""
        writer = ledger.writer
        if writer is None:
            return
        try:
            end = await writer.close()
        except WeirError as failed:
            log.warning("stream %s: delayed ledger %s was not closed: %s", self._name, ledger.ledger_id, failed)
            ledger.writer = None
        else:
            check(end.last_entry + 1 == ledger.entries, "a closed ledger has acknowledged every entry")
            ledger.writer = None
            ledger.closed = True
            self.touch(ledger)


def _fail(done: "asyncio.Future[HeldId]", failure: BaseException) -> None:
    if not done.done():
        done.set_exception(failure)
        done.exception()  # avoids the loop's warning if the caller no longer waits
