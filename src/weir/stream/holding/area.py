"""Holding area of a stream: delayed messages, and prepared messages that wait for a decision.

Separate ledgers store them by due time. The holding area releases a message by appending it to the stream as an
ordinary batch that contains its held id. docs/reference/delayed-messages.md explains why no message is lost or
released twice, whenever a broker dies. Listing by due time uses bounded memory.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from weir.model.batch import Batch, HeldId, Origin
from weir.model.errors import (
    InvariantError,
    LedgerNotFoundError,
    NotHeldError,
    StreamClosedError,
    StreamTerminatedError,
    WeirError,
)
from weir.model.messages import FOREVER_MS, HeldCount, HeldItem
from weir.runtime.tasks import TaskScope
from weir.stream.context import StreamContext
from weir.stream.holding.ledger import (
    LEDGER_KEYS,
    UNDATED,
    DuePosition,
    HeldLedger,
    HoldingContext,
    due_of,
    place_of,
    window_of,
)
from weir.stream.holding.loader import HeldReads, Loader
from weir.stream.holding.releaser import Releaser, released_since
from weir.stream.holding.writer import HoldingWriter
from weir.stream.log import Stream
from weir.stream.settings import HoldingSettings
from weir.stream.state_log import StateLog
from weir.wire.delayed_batches import decode_covered, decode_held, encode_covered, encode_held
from weir.wire.entry import Entry


def groups(ledgers: list[HeldLedger]) -> list[list[HeldLedger]]:
    """Group ledgers with overlapping windows, ordered by time: each group is due before the next one begins."""
    found: list[list[HeldLedger]] = []
    end_ms = 0
    for ledger in sorted(ledgers, key=lambda ledger: (ledger.window, ledger.serial)):
        if found and ledger.window.first_ms < end_ms:
            found[-1].append(ledger)
        else:
            found.append([ledger])
        end_ms = max(end_ms, ledger.window.end_ms)
    return found


async def list_held(
    ledgers: list[HeldLedger], reads: HeldReads, after: DuePosition, limit: int
) -> AsyncGenerator[HeldItem, None]:
    """List delayed messages after a position, by due time. The scan reads a group with more than `limit` entries
    again for each `limit` of them."""
    for group in groups(ledgers):
        while True:
            page = await _page(group, reads, after, limit)
            for place, item in page:
                yield item
                after = place
            if len(page) < limit:
                break


async def _page(
    group: list[HeldLedger], reads: HeldReads, after: DuePosition, limit: int
) -> list[tuple[DuePosition, HeldItem]]:
    """The first `limit` delayed messages of the group after the position."""
    found: list[tuple[DuePosition, HeldItem]] = []
    for ledger in group:
        try:
            async with aclosing(reads.scan(ledger, 0, ledger.entries)) as chunks:
                async for chunk in chunks:
                    found += [(place, item) for place, item in _items(ledger, chunk) if place > after]
                    if len(found) > 2 * limit:
                        found = sorted(found, key=_by_place)[:limit]
        except LedgerNotFoundError:
            continue  # drained and deleted during the listing
    return sorted(found, key=_by_place)[:limit]


def _items(ledger: HeldLedger, chunk: list[Entry]) -> Iterator[tuple[DuePosition, HeldItem]]:
    """The delayed messages of a chunk that are neither released nor canceled."""
    for entry in chunk:
        if entry.entry_id not in ledger.done:
            due_ms, batch = decode_held(entry.payload)
            item = HeldItem(HeldId(ledger.ledger_id, entry.entry_id), due_ms, batch.count, len(batch))
            yield ledger.place(due_ms, entry.entry_id), item


def _by_place(found: tuple[DuePosition, HeldItem]) -> DuePosition:
    return found[0]


__all__ = ["FOREVER_MS", "HeldCount", "HeldItem", "HoldingArea", "HoldingSettings"]

log = logging.getLogger(__name__)

_COVERED = "holding"


class HoldingArea:
    """Delayed messages of one stream. The holder of the stream and its state creates it with `HoldingArea.open`,
    and closes it before them."""

    def __init__(
        self, context: StreamContext, name: str, stream: Stream, state: StateLog, settings: HoldingSettings
    ) -> None:
        self._name = name
        self._stream = stream
        self._state = state
        self._settings = settings
        self._clock = context.runtime.clock
        self._failure: WeirError | None = None
        self._tasks = TaskScope(f"holding area of {name}", on_failure=self._die)
        self._context = HoldingContext(context, name, stream, state, settings, self._tasks)
        self._reads = HeldReads(context.ledgers, settings.readers)
        self._shelf = HoldingWriter(self._context, self._stored, self._beginning)
        self._loader = Loader(self._context, self._shelf, self._reads)
        self._releaser = Releaser(self._context, self._shelf, self._loader, self._reads, self._released)
        #: Callback for each released entry without a due time; entries before its registration are collected.
        self._tell: Callable[[HeldId], None] | None = None
        self._untold: list[HeldId] = []
        self._written_covered = 0

    @classmethod
    async def open(
        cls,
        context: StreamContext,
        name: str,
        stream: Stream,
        state: StateLog,
        settings: HoldingSettings | None = None,
    ) -> "HoldingArea":
        """Restore the former holder's delayed messages, and which of them the stream has already."""
        area = cls(context, name, stream, state, settings or HoldingSettings())
        await area._restore()
        for part, work in (("load", area._load_loop), ("tidy", area._tidy_loop), ("release", area._releaser.run)):
            area._tasks.spawn(area._until_lost(work), part)
        return area

    async def _restore(self) -> None:
        """Read the ledger records from the state, then the stream from the offset where they are incomplete."""
        records = {key: self._state.get(key) or b"" for key in self._state.keys(LEDGER_KEYS)}
        ledgers = [HeldLedger.from_bytes(key, record) for key, record in records.items()]
        for ledger in sorted(ledgers, key=lambda ledger: ledger.serial):
            self._shelf.add(ledger)
        self._written_covered = self._stream.end_offset
        if not len(self._shelf):
            return
        covered = self._state.get(_COVERED)
        start = 0 if covered is None or self._state.damaged else decode_covered(covered)
        async with aclosing(released_since(self._stream, start)) as released:
            async for held, batch in released:
                home = self._shelf.with_id(held.ledger)
                if home is not None and home.finish(held.entry, batch.count):
                    self._shelf.touch(home)
                    self._released(home, held.entry)
        self._written_covered = start

    @property
    def failure(self) -> WeirError | None:
        """Why the holding area is dead; None while it is alive."""
        return self._failure or self._stream.failure

    # --- holding ----------------------------------------------------------------------------------------

    def hold(self, batch: Batch, due_ms: int) -> "asyncio.Future[HeldId]":
        """Store a batch until its due time (FOREVER_MS: until `release`); the future completes with its id when it
        is stored. A batch that is due already is released at once. A refusal is immediate: an already failed
        future. If the future fails later, the ledger may still have the batch; deduplication handles retries."""
        refusal = self._refusal()
        if refusal is not None:
            refused: asyncio.Future[HeldId] = asyncio.get_running_loop().create_future()
            refused.set_exception(refusal)
            return refused
        due_ms = min(max(due_ms, 0), FOREVER_MS)
        width_ms = max(1, int(self._settings.window_s * 1000))
        window = UNDATED
        if due_ms < FOREVER_MS:
            window = window_of(due_ms, self._clock.wall_ms(), width_ms, self._settings.fine_windows)
        drafted = Batch(
            0, batch.count, batch.format, 0, batch.payload, batch.flags, batch.origin, stamp=batch.stamp
        )
        payload = encode_held(due_ms, drafted)
        return self._shelf.hold(window, payload, due_ms, batch.count)

    @property
    def has_capacity(self) -> bool:
        return self._shelf.has_capacity

    async def wait_capacity(self) -> None:
        """Wait until pending batches fit the window again; raises once the holding area refuses."""
        await self._shelf.wait_capacity()

    def _refusal(self) -> WeirError | None:
        if self.failure is not None:
            return self.failure
        if self._releaser.terminated or self._stream.chain.terminated_at is not None:
            return StreamTerminatedError(f"stream {self._name} is terminated")
        return None

    def _beginning(self) -> None:
        """Before the first ledger: record the covered offset, since no earlier release concerns it."""
        if not len(self._shelf):
            self._written_covered = self._releaser.covered
            self._state.put(_COVERED, encode_covered(self._written_covered))

    def _stored(self, ledger: HeldLedger, entry: int, due_ms: int) -> None:
        if self._loader.stored(ledger, entry, due_ms):
            self._releaser.wake()

    # --- listing and single messages --------------------------------------------------------------------

    @property
    def held_messages(self) -> int:
        """Approximate number of delayed messages: for a ledger in doubt, the number in its last record."""
        return sum(ledger.held_messages for ledger in self._shelf)

    async def count(self) -> HeldCount:
        """Exact number of delayed batches and messages, including releases in progress."""
        await self._settled()
        return HeldCount(
            batches=sum(ledger.held_entries for ledger in self._shelf),
            messages=sum(ledger.held_messages for ledger in self._shelf),
        )

    async def items(self, after: HeldItem | None = None) -> AsyncGenerator[HeldItem, None]:
        """Delayed messages by due time, after `after`. Close the iterator (`contextlib.aclosing`) when leaving it
        early. It may or may not include concurrent additions and removals."""
        await self._settled()
        start = -1
        if after is not None:
            ledger = self._shelf.with_id(after.id.ledger)
            start = place_of(after.due_ms, 0 if ledger is None else ledger.serial, after.id.entry)
        found = list_held(list(self._shelf), self._reads, start, self._settings.index_entries)
        async with aclosing(found):
            async for item in found:
                yield item

    async def next_due(self) -> int | None:
        """The next due time; None if no message has one."""
        first = self._loader.first()
        if first is not None:
            return due_of(first[1])
        async with aclosing(self.items()) as items:
            async for item in items:
                return item.due_ms if item.due_ms < FOREVER_MS else None
        return None

    async def get(self, held: HeldId) -> tuple[int, Batch]:
        """Due time and batch of a delayed batch; NotHeldError."""
        ledger = await self._find(held)
        payload = (await self._reads.fetch(ledger, [held.entry])).get(held.entry)
        if payload is None or held.entry in ledger.done:
            raise _not_held(held)
        due_ms, batch = decode_held(payload)
        return due_ms, batch

    async def cancel(self, held: HeldId, cancelled: Callable[[], None] | None = None) -> None:
        """Cancel a delayed batch, durably; NotHeldError if it is too late. `cancelled` is called when the cancel
        is decided: its changes of the state are written together with it."""
        _, batch = await self.get(held)
        ledger = self._free(held)
        ledger.finish(held.entry, batch.count)
        if cancelled is not None:
            cancelled()
        self._shelf.touch(ledger)
        self._write_down()
        await self._context.write_state()

    async def release(self, held: HeldId) -> int:
        """Append a delayed batch to the stream now, before its due time; return its offset. NotHeldError if it is
        released, canceled, or being released."""
        due_ms, batch = await self.get(held)
        ledger = self._free(held)
        return await self._releaser.release_now(ledger, ledger.place(due_ms, held.entry), batch)

    # --- prepared messages ------------------------------------------------------------------------------

    @property
    def undated_ledgers(self) -> list[int]:
        """Ledgers of messages without a due time, drained or not."""
        return [ledger.ledger_id for ledger in self._shelf if not ledger.window.dated]

    async def undated(self) -> AsyncGenerator[tuple[HeldId, Batch], None]:
        """Stored messages without a due time, including releases in progress. Reads only their ledgers."""
        await self._settled()
        for ledger in self._shelf:
            if ledger.window.dated:
                continue
            waiting = sorted(set(range(ledger.entries)).difference(ledger.done))
            for first in range(0, len(waiting), self._settings.group_entries):
                some = waiting[first : first + self._settings.group_entries]
                for entry, payload in sorted((await self._reads.fetch(ledger, some)).items()):
                    if entry not in ledger.done:
                        yield HeldId(ledger.ledger_id, entry), decode_held(payload)[1]

    def on_undated_release(self, told: Callable[[HeldId], None]) -> None:
        """Call a plain function for each released entry without a due time before the state records its release,
        and at once for entries whose release the former holder did not record."""
        self._tell = told
        untold, self._untold = self._untold, []
        for held in untold:
            told(held)

    def _released(self, ledger: HeldLedger, entry: int) -> None:
        if not ledger.window.dated:
            held = HeldId(ledger.ledger_id, entry)
            if self._tell is None:
                self._untold.append(held)
            else:
                self._tell(held)

    async def write_state(self) -> None:
        """Make cancels durable, and confirm that this broker still holds the stream."""
        await self._context.write_state()

    async def _settled(self) -> None:
        """Recover every ledger in doubt; raises if this area is dead."""
        await self._loader.settle_all()
        if self.failure is not None:
            raise self.failure

    async def _find(self, held: HeldId) -> HeldLedger:
        ledger = self._shelf.with_id(held.ledger)
        if ledger is None:
            raise _not_held(held)
        if ledger.in_doubt:
            await self._loader.settle(ledger)
        return self._free(held)

    def _free(self, held: HeldId) -> HeldLedger:
        """The ledger of an entry that is stored and not being released; NotHeldError."""
        ledger = self._shelf.with_id(held.ledger)
        if ledger is None or not ledger.is_free(held.entry):
            raise _not_held(held)
        if self.failure is not None:
            raise self.failure
        return ledger

    # --- for deduplication and retention ----------------------------------------------------------------

    def positions(self) -> dict[int, int]:
        """Number of acknowledged entries per ledger, for a deduplication snapshot."""
        return {ledger.ledger_id: ledger.entries for ledger in self._shelf}

    async def origins_since(self, positions: Mapping[int, int]) -> AsyncGenerator[Origin, None]:
        """Origins of batches that were stored after the snapshot with these positions. A released batch has its
        origin in the stream, too."""
        async with aclosing(self.held_since(positions)) as all_held:
            async for _, batch in all_held:
                if isinstance(batch.origin, Origin):
                    yield batch.origin

    async def held_since(self, positions: Mapping[int, int]) -> AsyncGenerator[tuple[HeldId, Batch], None]:
        """Batches that were stored after the snapshot with these positions. It includes released and canceled ones
        as long as their ledger exists."""
        await self._loader.settle_all()
        for ledger in self._shelf:
            try:
                async with aclosing(
                    self._reads.scan(ledger, positions.get(ledger.ledger_id, 0), ledger.entries)
                ) as chunks:
                    async for chunk in chunks:
                        for entry in chunk:
                            yield HeldId(ledger.ledger_id, entry.entry_id), decode_held(entry.payload)[1]
            except LedgerNotFoundError:
                continue  # drained and deleted meanwhile

    async def before_trim(self, offset: int) -> None:
        """Await this before the stream is trimmed to the offset: after a crash, a release that the bitmaps do not
        have yet must be in the stream, or the message would be released again."""
        if len(self._shelf):
            await self._releaser.cover(min(offset, self._stream.end_offset))
            self._write_down()
            await self._state.flush()

    # --- in the background ------------------------------------------------------------------------------

    async def _until_lost(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a background loop until another broker holds the stream."""
        try:
            await work()
        except WeirError as failed:
            if isinstance(failed, InvariantError) or self._stream.failure is None:
                raise
            self._die(self._stream.failure)

    async def _load_loop(self) -> None:
        wanted = self._loader.wanted
        while self._failure is None:
            await self._shelf.filled.wait()
            await self._loader.load()
            self._releaser.wake()
            wanted.clear()
            if self._loader.is_behind:
                await self._clock.sleep(self._settings.tick_s)
            elif not self._loader.is_due:
                await wanted.wait()  # the releaser sets it

    async def _tidy_loop(self) -> None:
        while self._failure is None:
            await self._shelf.filled.wait()
            await self._clock.sleep(self._settings.tick_s)
            if self._stream.failure is not None:
                raise self._stream.failure
            self._write_down()
            try:
                await self._tidy()
            except InvariantError:
                raise
            except WeirError as failed:
                log.warning("stream %s: closing or deleting delayed ledgers failed: %s", self._name, failed)

    async def _tidy(self) -> None:
        """Close ledgers of past windows, delete drained ones, and recover former holders' ledgers."""
        await self._shelf.close_past(self._clock.wall_ms())
        for ledger in self._shelf:
            if ledger.is_drained and not self._loader.is_still_fenced(ledger):
                await self._reads.forget(ledger)
                await self._shelf.drop(ledger)
        await self._loader.settle_all()

    def _write_down(self) -> None:
        """Mark progress in the state: the bitmaps, and the offset up to which they are complete. The offset is
        fixed now, and the bitmaps are at least as new at the time of the write; one entry has both."""
        lag = self._releaser.covered - self._written_covered
        if self._shelf.write_down() or (len(self._shelf) and lag >= self._settings.cover_messages):
            self._written_covered = self._releaser.covered
            covered = encode_covered(self._written_covered)
            self._state.mark(_COVERED, lambda: covered)

    # --- closing and deleting ---------------------------------------------------------------------------

    async def close(self) -> None:
        """Refuse new batches, complete pending ones, and record the progress. Idempotent."""
        if self._failure is None:
            self._failure = StreamClosedError(f"the holding area of {self._name} is closed")
        self._shelf.refuse(self._failure)
        await self._tasks.close()
        if self._stream.failure is None:
            await self._releaser.landed()
        self._releaser.give_up(self._failure)
        await self._shelf.close_writers()
        self._write_down()
        await self._reads.close()

    async def delete(self) -> None:
        """Close, and delete all delayed messages. The stream's holder then deletes the stream itself: records
        without ledgers count as drained."""
        await self.close()
        for ledger in self._shelf:
            await self._context.ledgers.delete(ledger.ledger_id)

    def _die(self, failure: BaseException) -> None:
        """Fail the area: another broker holds the stream, or a background task failed."""
        if self._failure is None:
            wrapped = InvariantError(f"the holding area of {self._name} failed: {failure!r}")
            self._failure = failure if isinstance(failure, WeirError) else wrapped
            self._shelf.refuse(self._failure)
            self._releaser.give_up(self._failure)


def _not_held(held: HeldId) -> NotHeldError:
    return NotHeldError(f"no delayed message {held.ledger}:{held.entry}; it may have been released or cancelled")
