"""The one writer of a ledger: appends, acknowledges in order, replaces failed bookies, closes.

Everything is decided in plain functions; the only things awaited are compare-and-sets of the metadata. What one
turn of the loop appends becomes one add per bookie. docs/internals/ledger.md has the safety argument.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from weir.ledger.context import LedgerContext
from weir.ledger.ensemble import Batch, OpenEnsemble, Slot, Window
from weir.ledger.marks import mark_if_suspect
from weir.ledger.quorum import Stripes
from weir.ledger.records import Record
from weir.ledger.transitions import close_at
from weir.model.check import check
from weir.model.errors import (
    BookieBusyError,
    BookieError,
    BookieUnavailableError,
    EntryTooLargeError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    LedgerNotFoundError,
    MetaError,
    WeirError,
    WindowFullError,
    WriterFencedError,
)
from weir.model.ids import Buffer, EntryId, LedgerId
from weir.model.ledger import LedgerMetadata
from weir.runtime.tasks import TaskScope
from weir.runtime.waiters import PromptFuture, Waiters
from weir.wire.entry import HEADER_BYTES, MAX_PAYLOAD_BYTES, encode_entry

log = logging.getLogger(__name__)

#: `append` refuses above this many times the window that `wait_capacity()` keeps.
_HARD_FACTOR = 2
#: A view of a smaller payload costs as much as it saves.
_SHARED_FROM_BYTES = 2048
#: A payload that does not lie together: a small head, and the rest.
Pieces = tuple[bytes, Buffer]


class LedgerWriter:
    """Made by `LedgerClient.create`. Once it has failed it stays failed: recover the ledger, create a new one."""

    def __init__(self, context: LedgerContext, record: Record) -> None:
        self._context = context
        self._settings = context.settings.writer
        self._clock = context.runtime.clock
        self._loop = asyncio.get_running_loop()
        metadata = record.ledger
        self.ledger_id: LedgerId = metadata.ledger_id
        self._stripes = Stripes(metadata.quorum)
        self._window = Window(self._stripes)
        self._tasks = TaskScope(f"writer-{metadata.ledger_id}", on_failure=self._task_failed)
        self._ensemble = OpenEnsemble(context, record, self._window, self, self._tasks)
        self._slots = self._ensemble.slots
        self._filling: Batch | None = None
        #: Batches of the window that wait for the end of a hold.
        self._held: list[Batch] = []
        self._next_entry = 0
        self._length = 0
        self._unacknowledged_bytes = 0
        #: What the slowest bookie has not answered yet, acknowledged or not: it is held in memory all the same.
        self._lag_bytes = 0
        #: The last-add-confirmed that the bookies were told of.
        self._confirmed_to_bookies = self._window.last_confirmed
        self._refusal: WeirError | None = None
        self._failure: WeirError | None = None
        self._closing: asyncio.Task[LedgerMetadata] | None = None
        self._flush_due = False
        self._confirm_due = False
        self._watched = False  # for overdue answers
        #: Tasks that wait until the window has capacity, or something is acknowledged.
        self._waiters = Waiters()
        context.hold.join(self)

    # --- what callers see -------------------------------------------------------------------------------

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger as this writer last wrote it down."""
        return self._ensemble.record.ledger

    @property
    def last_confirmed(self) -> EntryId:
        """The last acknowledged entry."""
        return self._window.last_confirmed

    @property
    def length(self) -> int:
        """Payload bytes up to the last acknowledged entry."""
        return self._window.length

    @property
    def failure(self) -> WeirError | None:
        """Why this writer is dead, if it is."""
        return self._failure

    @property
    def ended(self) -> bool:
        """Whether nothing more is acknowledged."""
        return self._failure is not None

    @property
    def degraded(self) -> bool:
        """Whether some bookie of the ensemble has failed and no other could take its place yet."""
        return self._ensemble.degraded

    def append(self, payload: Buffer) -> "asyncio.Future[EntryId]":
        """Append one entry; done, with its id, when it is acknowledged. The payload is copied before this returns.

        Decides at once: a refusal (closed, failed, window full) is an already failed future.
        """
        future: asyncio.Future[EntryId] = self._loop.create_future()
        size = len(payload)
        if self._refusal is not None or size > MAX_PAYLOAD_BYTES or self._over(_HARD_FACTOR):
            return self._refused(future, size)
        entry_id = self._put(payload, size)
        self._filling.waiters.append((future, entry_id))  # type: ignore[union-attr]
        return future

    def append_many(self, payloads: Sequence[Buffer]) -> "asyncio.Future[EntryId]":
        """Append entries with consecutive ids; done, with the first id, when all of them are acknowledged. If it
        fails, any number of them from the first on may still be found by a recovery."""
        future: asyncio.Future[EntryId] = self._loop.create_future()
        largest = max(map(len, payloads), default=0)
        if not payloads:
            future.set_exception(LedgerError("append_many needs at least one payload"))
            return future
        if self._refusal is not None or largest > MAX_PAYLOAD_BYTES or self._over(_HARD_FACTOR):
            return self._refused(future, largest)
        first = EntryId(self._next_entry)
        for payload in payloads:
            self._put(payload, len(payload))
        self._filling.waiters.append((future, first))  # type: ignore[union-attr]
        return future

    def append_pieces(self, pieces: Sequence[Pieces]) -> "tuple[asyncio.Future[EntryId], list[Buffer]]":
        """`append_many` for payloads in two pieces each, sent at once: whoever calls has gathered what a turn
        brought. Also answers the second pieces, as they are kept until they are stored: whoever keeps them, too,
        needs no copy then. Small ones are given back as they came."""
        future: asyncio.Future[EntryId] = PromptFuture(loop=self._loop)
        largest = max([len(head) + len(body) for head, body in pieces], default=0)
        if not pieces or self._refusal is not None or largest > MAX_PAYLOAD_BYTES or self._over(_HARD_FACTOR):
            if not pieces:
                _fail(future, LedgerError("append_pieces needs at least one payload"))
                return future, []
            return self._refused(future, largest), [body for _, body in pieces]
        first = EntryId(self._next_entry)
        due, self._flush_due = self._flush_due, True  # no turn is waited for
        try:
            kept = self._put_pieces(pieces)
            self._filling.waiters.append((future, first))  # type: ignore[union-attr]
        finally:
            self._flush_due = due
            self._dispatch()
        return future, kept

    async def wait_capacity(self) -> None:
        """Wait until the window has room. Raises what made the writer fail."""
        while self._refusal is None and self._over(1):
            await self._waiters.wait()
        if self._refusal is not None:
            raise self._refusal

    async def close(self) -> LedgerMetadata:
        """Acknowledge what is pending, or fail it, and write down the end. Closing twice gives the same answer:
        the closed metadata, or WriterFencedError if someone else recovered the ledger. If the metadata store does
        not answer (MetaError), closing may be tried again."""
        if self._closing is None or (self._closing.done() and isinstance(self._closing.exception(), MetaError)):
            self._refusal = self._refusal or LedgerClosedError(f"ledger {self.ledger_id} is closed")
            self._closing = self._loop.create_task(self._close(), name=f"close-ledger-{self.ledger_id}")
        closing = self._closing
        try:
            return await asyncio.shield(closing)
        except asyncio.CancelledError:
            closing.add_done_callback(_look_at)
            raise

    async def abandon(self) -> None:
        """Stop without closing: the ledger stays open in the metadata until someone recovers it."""
        self.die(LedgerClosedError(f"the writer of ledger {self.ledger_id} was abandoned"))
        await self._tasks.close()

    # --- appending --------------------------------------------------------------------------------------

    def _put(self, payload: Buffer, size: int) -> EntryId:
        """Give the payload an id and a place in the batch of this turn."""
        entry_id = EntryId(self._next_entry)
        length = self._length + size
        # First what may raise, so that a payload of the wrong type uses no id up.
        data = encode_entry(self.ledger_id, entry_id, self._window.last_confirmed, length, payload)
        batch = self._filling
        if batch is None or batch.size + size > self._settings.batch_bytes:
            batch = self._next_batch(entry_id)
        self._next_entry += 1
        self._length = batch.length = length
        batch.entries.append((entry_id, data))
        batch.size += len(data)
        self._unacknowledged_bytes += len(data)
        return entry_id

    def _put_pieces(self, pieces: Sequence[Pieces]) -> list[Buffer]:
        """The same for many in two pieces each; answers the second ones as they are kept."""
        kept: list[Buffer] = []
        ledger_id, confirmed = self.ledger_id, self._window.last_confirmed
        most_bytes = self._settings.batch_bytes
        for head, body in pieces:
            size = len(head) + len(body)
            length, entry_id = self._length + size, EntryId(self._next_entry)
            data = encode_entry(ledger_id, entry_id, confirmed, length, body, head)
            batch = self._filling
            if batch is None or batch.size + size > most_bytes:
                batch = self._next_batch(entry_id)
            self._next_entry += 1
            self._length = batch.length = length
            batch.entries.append((entry_id, data))
            batch.size += len(data)
            self._unacknowledged_bytes += len(data)
            if len(body) < _SHARED_FROM_BYTES and type(body) is bytes:
                kept.append(body)
            else:
                kept.append(memoryview(data)[HEADER_BYTES + len(head) :])
        return kept

    def _next_batch(self, first: EntryId) -> Batch:
        """Start a batch; one that is full goes out first."""
        if self._filling is not None:
            self._dispatch()
        self._filling = batch = Batch(first)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        return batch

    def _flush(self) -> None:
        self._flush_due = False
        if self._filling is not None:
            self._dispatch()

    def _dispatch(self) -> None:
        """Send the filled batch to every bookie of its write sets."""
        batch, self._filling = self._filling, None
        if batch is None:
            return
        self._window.push(batch)
        if self._context.hold.on:
            if not self._held:
                self._context.hold.when_over(self._send_held)
            self._held.append(batch)
        else:
            self._send_all(batch)

    def _send_all(self, batch: Batch) -> None:
        self._confirmed_to_bookies = self._window.last_confirmed
        for slot in self._slots:
            if slot.failure is None:
                self._send(slot, batch)

    def _send_held(self) -> None:
        """Writes go on."""
        held, self._held = self._held, []
        if self._failure is None:
            for batch in held:
                self._send_all(batch)

    def _send(self, slot: Slot, batch: Batch) -> None:
        entries = self._stripes.share(slot.index, batch.entries)
        if not entries:
            return
        slot.sent(batch, self._clock.monotonic(), batch.size)
        self._lag_bytes = max(self._lag_bytes, slot.outstanding_bytes)
        self._add(slot, batch, entries)
        if not self._watched:
            self._watched = True
            self._context.watching.ask(self._check_overdue)

    def _add(self, slot: Slot, batch: Batch, entries: Sequence[tuple[EntryId, Buffer]]) -> None:
        try:
            answer = slot.bookie.add(self.ledger_id, entries)
        except Exception as broken:  # it should have been a failed future; nobody may be left waiting all the same
            log.exception("ledger %s: an add to %s raised", self.ledger_id, slot.bookie_id)
            answer = self._loop.create_future()
            answer.set_exception(BookieUnavailableError(f"the add raised {broken!r}"))
        answer.add_done_callback(partial(self._answered, slot, batch))

    def _refused(self, future: "asyncio.Future[EntryId]", size: int) -> "asyncio.Future[EntryId]":
        if self._refusal is not None:
            _fail(future, self._refusal)
        elif size > MAX_PAYLOAD_BYTES:
            _fail(future, EntryTooLargeError(f"an entry of {size} bytes; the limit is {MAX_PAYLOAD_BYTES}"))
        else:
            pending = self._next_entry - self._window.last_confirmed - 1
            _fail(
                future,
                WindowFullError(
                    f"{pending} entries and {self._unacknowledged_bytes} bytes of ledger {self.ledger_id} "
                    "wait to be acknowledged"
                ),
            )
        return future

    def _over(self, factor: int) -> bool:
        """Whether more is in flight than `factor` windows."""
        most_bytes = factor * self._settings.window_bytes
        return (
            self._unacknowledged_bytes >= most_bytes
            or self._lag_bytes >= most_bytes
            or self._next_entry - self._window.last_confirmed > factor * self._settings.window_entries
        )

    def _lag(self) -> int:
        """What the slowest bookie has not answered."""
        slots = self._slots
        if len(slots) == 1:
            return slots[0].outstanding_bytes
        return max([slot.outstanding_bytes for slot in slots])

    # --- answers ----------------------------------------------------------------------------------------

    def _answered(self, slot: Slot, batch: Batch, answer: "asyncio.Future[None]") -> None:
        """A bookie answered an add."""
        failure = _failure_of(answer)
        if isinstance(failure, LedgerFencedError):
            # Even from a bookie that was replaced: somebody is recovering the ledger.
            self.die(WriterFencedError(f"ledger {self.ledger_id} was fenced: {failure.what}"))
        elif self._failure is not None or batch.first not in slot.outstanding:
            return  # the slot's bookie failed or was replaced
        elif failure is None:
            slot.answered(batch)
            batch.held_by |= slot.bit
            self._lag_bytes = self._lag()
            self.acknowledge()
        elif isinstance(failure, BookieBusyError):
            # The batch stays outstanding: the bookie has the usual time to take it, then it has failed.
            self._clock.call_later(self._settings.busy_pause_s, partial(self._send_again, slot, batch))
        else:
            self._slot_failed(slot, failure)

    def acknowledge(self) -> None:
        """Tell callers, in entry order, of everything that an ack quorum holds."""
        for batch in self._window.pop_acknowledged():
            self._unacknowledged_bytes -= batch.size
            for future, entry_id in batch.waiters:
                if not future.done():
                    future.set_result(entry_id)
        check(self._unacknowledged_bytes >= 0, "no more is acknowledged than was sent")
        check(
            self._confirmed_to_bookies <= self._window.last_confirmed < self._next_entry,
            "the last-add-confirmed never goes back, nor beyond what was appended",
        )
        if len(self._waiters) and not (self._window and self._over(1)):
            self._waiters.wake()
        if not self._confirm_due and self._confirmed_to_bookies < self._window.last_confirmed:
            self._confirm_due = True
            self._context.confirming.ask(self._confirm_if_idle)

    def _confirm_if_idle(self) -> None:
        """Entries carry the last-add-confirmed with them; when none follow, say it explicitly."""
        self._confirm_due = False
        if self._confirmed_to_bookies >= self._window.last_confirmed or self._failure is not None:
            return
        self._confirmed_to_bookies = self._window.last_confirmed
        for slot in self._slots:
            if slot.failure is None:
                slot.bookie.confirm(self.ledger_id, self._window.last_confirmed)

    def _send_again(self, slot: Slot, batch: Batch) -> None:
        if self._failure is None and batch.first in slot.outstanding:
            self._add(slot, batch, self._stripes.share(slot.index, batch.entries))

    def _check_overdue(self) -> None:
        self._watched = False
        timeout_s = self._settings.add_timeout_s
        overdue = self._clock.monotonic() - timeout_s
        waiting = False
        for slot in self._slots:
            since = slot.waiting_since()
            if since is not None and since <= overdue:
                self._slot_failed(
                    slot, BookieUnavailableError(f"{slot.bookie_id} did not answer for {timeout_s} s")
                )
            waiting = waiting or since is not None
        if waiting and self._failure is None:
            self._watched = True
            self._context.watching.ask(self._check_overdue)

    # --- its ensemble -----------------------------------------------------------------------------------

    def _slot_failed(self, slot: Slot, failure: BookieError) -> None:
        if self._failure is None and slot.failure is None:
            self._ensemble.failed(slot, failure)
            self._lag_bytes = self._lag()

    def send_window(self, slot: Slot) -> None:
        """What is unacknowledged goes to the bookie that the slot has now."""
        for batch in self._window:
            if not any(batch is held for held in self._held):
                self._send(slot, batch)

    # --- the end ----------------------------------------------------------------------------------------

    async def _close(self) -> LedgerMetadata:
        if self._failure is None:
            self._flush()
            while len(self._window) and self._failure is None:
                await self._progress()
        # From here on nothing more is acknowledged, so the last confirmed entry is the end.
        failure = self._failure
        self.die(LedgerClosedError(f"ledger {self.ledger_id} is closed"))
        await self._tasks.close()
        if isinstance(failure, WriterFencedError | LedgerNotFoundError):
            raise failure
        end = partial(close_at, last_entry=self._window.last_confirmed, length=self._window.length)
        records, ensemble = self._context.records, self._ensemble
        ensemble.record = await records.change(self.ledger_id, end, ensemble.record)
        # Whoever failed may lack entries that others acknowledged.
        await mark_if_suspect(self._context, self.metadata, ensemble.suspects)
        return self.metadata

    async def _progress(self) -> None:
        """Wait until something is acknowledged or the writer failed."""
        await self._waiters.wait()

    def die(self, failure: WeirError) -> None:
        """Nothing is acknowledged from here on; everyone who waits is told."""
        if self._failure is not None:
            return
        self._failure = self._refusal = failure
        if self._filling is not None:
            self._window.push(self._filling)
            self._filling = None
        unacknowledged = self._window.clear()
        if unacknowledged:
            log.warning("ledger %s: writer failed with entries unacknowledged: %s", self.ledger_id, failure)
        for batch in unacknowledged:
            for future, _ in batch.waiters:
                _fail(future, failure)
        self._ensemble.close()
        self._waiters.wake()

    def _task_failed(self, failure: BaseException) -> None:
        self.die(LedgerError(f"the writer of ledger {self.ledger_id} failed: {failure!r}"))


def _fail(future: "asyncio.Future[EntryId]", failure: WeirError) -> None:
    if not future.done():
        future.set_exception(failure)
        future.exception()  # a caller that stopped waiting need not make the loop complain


def _look_at(closing: "asyncio.Task[LedgerMetadata]") -> None:
    """Whoever wanted to know of a failure has stopped waiting; the loop need not complain of it."""
    if not closing.cancelled():
        closing.exception()


def _failure_of(answer: "asyncio.Future[None]") -> BookieError | None:
    """What went wrong with an add, as a bookie's error."""
    if answer.cancelled():
        return BookieUnavailableError("the add was cancelled")
    failure = answer.exception()
    if failure is None or isinstance(failure, BookieError):
        return failure
    return BookieUnavailableError(f"the add failed: {failure!r}")
