"""A reader of a ledger: entries by range or as a stream, and the tail of one that is still being written.

A reader sees entries up to the end of a closed ledger, or up to the last-add-confirmed of an open one. Confirmed
entries are acknowledged, and no recovery closes the ledger before them: a readable entry stays readable. Streams
read ahead of their consumer, with a limit in bytes.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from weir.ledger.context import LedgerContext
from weir.ledger.quorum import Stripes
from weir.ledger.records import Record
from weir.ledger.replicas import Reply
from weir.model.errors import (
    BookieError,
    EntryLostError,
    EntryUnreadableError,
    LedgerError,
    LedgerNotFoundError,
    MetaError,
    NoSuchLedgerError,
)
from weir.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from weir.model.ledger import LedgerMetadata, LedgerState
from weir.runtime.tasks import TaskScope
from weir.wire.entry import HEADER_BYTES, Entry

ReadChunk = Callable[[EntryId, EntryId], Awaitable[list[Entry]]]


async def read_ahead(
    read_chunk: ReadChunk, first: EntryId, last: EntryId, *, max_bytes: int
) -> AsyncGenerator[list[Entry], None]:
    """Chunks of [first, last] in order, the next ones being read while the consumer works on one, as long as less
    than `max_bytes` wait for it."""
    ahead = _Ahead(max_bytes)
    pump = asyncio.get_running_loop().create_task(_pump(read_chunk, first, last, ahead))
    try:
        while (chunk := await ahead.take()) is not None:
            yield chunk
        await pump  # raises what ended it early
    finally:
        pump.cancel()


async def _pump(read_chunk: ReadChunk, first: EntryId, last: EntryId, ahead: "_Ahead") -> None:
    try:
        while first <= last:
            await ahead.wait_capacity()
            chunk = await read_chunk(first, last)
            ahead.put(chunk)
            first = EntryId(chunk[-1].entry_id + 1)
    finally:
        ahead.end()


class _Ahead:
    """Chunks between the pump and the consumer; one of each, so one event is enough."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._chunks: deque[tuple[list[Entry], int]] = deque()
        self._bytes = 0
        self._ended = False
        self._moved = asyncio.Event()

    async def wait_capacity(self) -> None:
        while self._bytes >= self._max_bytes:
            await self._move()

    def put(self, chunk: list[Entry]) -> None:
        size = sum(HEADER_BYTES + len(entry.payload) for entry in chunk)
        self._chunks.append((chunk, size))
        self._bytes += size
        self._moved.set()

    def end(self) -> None:
        self._ended = True
        self._moved.set()

    async def take(self) -> list[Entry] | None:
        while not self._chunks:
            if self._ended:
                return None
            await self._move()
        chunk, size = self._chunks.popleft()
        self._bytes -= size
        self._moved.set()
        return chunk

    async def _move(self) -> None:
        self._moved.clear()
        await self._moved.wait()


log = logging.getLogger(__name__)


FIRST_ENTRY = EntryId(0)
#: Older than every version of a record.
NO_VERSION = -1


class LedgerReader:
    """Made by `LedgerClient.open`. Follows the metadata of a ledger that is not closed yet until `close()`."""

    def __init__(self, context: LedgerContext, record: Record) -> None:
        self._context = context
        self._settings = context.settings.reader
        self._clock = context.runtime.clock
        self._metadata = record.ledger
        self.ledger_id: LedgerId = record.ledger.ledger_id
        self._stripes = Stripes(record.ledger.quorum)
        self._confirmed = NO_ENTRY
        self._deleted = False
        self._turn = 0
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks = TaskScope(f"reader-{self.ledger_id}")
        self._version = NO_VERSION
        self._adopt(record)
        if not self.closed:
            self._tasks.spawn(self._follow(), "follow")

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger as last seen."""
        return self._metadata

    @property
    def closed(self) -> bool:
        """Whether the end is known for good."""
        return self._metadata.state is LedgerState.CLOSED

    @property
    def known_confirmed(self) -> EntryId:
        """The last readable entry as far as this reader has heard."""
        return self._confirmed

    def confirm(self, confirmed: EntryId) -> None:
        """Told by someone who knows (the ledger's writer in the same process): readable up to and with this."""
        self._confirm(confirmed)

    async def close(self) -> None:
        await self._tasks.close()

    # --- reading ----------------------------------------------------------------------------------------

    async def read(self, first: EntryId, last: EntryId) -> list[Entry]:
        """Every entry in [first, last]; the caller keeps the range small enough to hold in memory."""
        await self._need_confirmed(last)
        entries: list[Entry] = []
        while first <= last:
            chunk = await self._read_chunk(first, last)
            entries += chunk
            first = EntryId(chunk[-1].entry_id + 1)
        return entries

    async def read_some(self, first: EntryId, last: EntryId, max_bytes: int) -> list[Entry]:
        """At least entry `first`, and what follows it up to `last` within `max_bytes` and about one chunk."""
        await self._need_confirmed(first)
        return await self._read_chunk(first, min(last, self._confirmed), max_bytes)

    async def stream(
        self, first: EntryId = FIRST_ENTRY, last: EntryId | None = None
    ) -> AsyncGenerator[list[Entry], None]:
        """Batches of entries from `first` to `last` (by default the end as it is now), read ahead by bytes. Close
        the iterator (`contextlib.aclosing`) when leaving it early."""
        if last is None:
            last = await self.last_confirmed()
        await self._need_confirmed(last)
        if first <= last:
            chunks = read_ahead(self._read_chunk, first, last, max_bytes=self._settings.read_ahead_bytes)
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk

    async def stream_around(
        self, first: EntryId = FIRST_ENTRY, last: EntryId | None = None
    ) -> AsyncGenerator[list[Entry], None]:
        """The same, behind entries that are damaged everywhere: they are left out, and that is written down."""
        if last is None:
            last = await self.last_confirmed()
        while first <= last:
            try:
                async with aclosing(self.stream(first, last)) as chunks:
                    async for chunk in chunks:
                        first = EntryId(chunk[-1].entry_id + 1)
                        yield chunk
                return
            except EntryLostError as lost:
                if await self.leave_out(lost):
                    first = EntryId(lost.entry_id + 1)

    async def leave_out(self, lost: EntryLostError) -> bool:
        """Whether the entry is lost: known to be, or at the second look too, and then written down. A reader goes
        on behind it only after this."""
        losses, entry_id = self._context.losses, EntryId(lost.entry_id)
        if losses.is_known(self.ledger_id, entry_id):
            return True
        again = await losses.second_look(lambda: self.read(entry_id, entry_id))
        if again is None:
            return False
        await losses.record(self.ledger_id, entry_id, entry_id, again.what)
        return True

    async def _need_confirmed(self, last: EntryId) -> None:
        if last > self._confirmed and last > await self.last_confirmed():
            raise EntryUnreadableError(
                f"entry {last} of ledger {self.ledger_id} is beyond the last confirmed one, {self._confirmed}"
            )

    async def _read_chunk(self, first: EntryId, last: EntryId, max_bytes: int | None = None) -> list[Entry]:
        """Entries from `first` on without a gap, about a chunk of bytes. One replica sets how far the chunk goes;
        what it does not hold (its stripes are not all, or it missed some) comes from others."""
        got: dict[EntryId, Entry] = {}
        wanted = first
        while wanted <= last:
            try:
                reply = await self._read_replicas(wanted, last, max_bytes)
            except EntryLostError:
                if wanted == first:
                    raise
                last = EntryId(wanted - 1)  # whoever goes on there hears of it
                break
            if wanted == first:
                last = reply.entries[-1].entry_id
                if len(reply.entries) == last - first + 1:
                    return reply.entries
            for entry in reply.entries:
                got[entry.entry_id] = entry
            while wanted in got:
                wanted = EntryId(wanted + 1)
        return [got[EntryId(entry_id)] for entry_id in range(first, last + 1)]

    async def _read_replicas(self, first: EntryId, last: EntryId, max_bytes: int | None) -> Reply:
        """From any replica of `first`; if none has it, perhaps they are others by now."""
        while True:
            replicas = self._metadata.write_set(first)
            reads = self._context.reads
            order = reads.ranking.order(replicas, near=self._near())
            try:
                reply = await reads.read(self.ledger_id, first, last, order, max_bytes)
            except EntryUnreadableError:
                self._adopt(await self._context.records.get(self.ledger_id))
                if self._metadata.write_set(first) == replicas:
                    raise
                continue
            self._confirm(reply.last_confirmed)
            return reply

    def _near(self) -> list[BookieId]:
        rack = self._settings.rack
        return [b for b, label in self._context.directory.racks().items() if label == rack] if rack else []

    # --- the tail ---------------------------------------------------------------------------------------

    async def last_confirmed(self) -> EntryId:
        """The last readable entry: the end of a closed ledger; else the highest that the bookies of the last
        ensemble say, once so many answered that no write set is missed. LedgerError if not even one answers."""
        if self.closed:
            return self._metadata.last_entry
        ensemble = self._metadata.fragments[-1].bookies
        loop = asyncio.get_running_loop()
        asked = {loop.create_task(self._ask_confirmed(b)): 1 << slot for slot, b in enumerate(ensemble)}
        answered = 0
        try:
            while asked and not self._stripes.covered(answered):
                await asyncio.wait(list(asked), return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in asked if task.done()]:
                    slot, confirmed = asked.pop(task), task.result()
                    if confirmed is not None:
                        answered |= slot
                        self._confirm(confirmed)
        finally:
            for task in asked:
                task.cancel()
        if not answered and not self.closed:
            raise LedgerError(f"no bookie of ledger {self.ledger_id} says how far it is: {ensemble}")
        return self._confirmed

    async def wait_for(self, after: EntryId, *, timeout_s: float) -> EntryId:
        """Wait until an entry past `after` is readable, the ledger is closed, or the time is over; answers the
        last readable entry. LedgerNotFoundError if the ledger is deleted meanwhile."""
        deadline = self._clock.monotonic() + timeout_s
        while self._confirmed <= after and not self.closed:
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                break
            if not await self._poll(after, min(left_s, self._settings.poll_s)):
                pause_s = min(self._settings.poll_pause_s, max(0.0, deadline - self._clock.monotonic()))
                await self._wait_changed(pause_s)
            if self._deleted:
                raise LedgerNotFoundError(f"ledger {self.ledger_id} was deleted")
        return self._confirmed

    async def _poll(self, after: EntryId, seconds: float) -> bool:
        """One long poll of one bookie, cut short by a change of the metadata. False if it ended before its time
        and brought nothing: the bookie failed, or the ledger is fenced and its end not yet written down."""
        begun, changed = self._clock.monotonic(), self._changed
        ensemble = self._context.reads.ranking.order(self._metadata.fragments[-1].bookies, near=self._near())
        bookie_id = ensemble[self._turn % len(ensemble)]
        bookie = self._context.pool.get(bookie_id)
        poll = asyncio.get_running_loop().create_task(bookie.poll(self.ledger_id, after, timeout_s=seconds))
        try:
            patience_s = seconds + self._settings.read_timeout_s
            either: list[asyncio.Future[Any]] = [poll, changed]
            await asyncio.wait(either, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if poll.done():
                self._confirm(poll.result().last_confirmed)
        except BookieError as failure:
            log.debug("poll of ledger %s on %s failed: %s", self.ledger_id, bookie_id, failure)
        finally:
            poll.cancel()
        if self._confirmed > after or changed.done():
            return True
        self._turn += 1  # whatever ails this one, the next poll goes elsewhere
        return self._clock.monotonic() - begun >= seconds

    async def _ask_confirmed(self, bookie_id: BookieId) -> EntryId | None:
        """What one bookie knows; None if it does not answer."""
        try:
            async with asyncio.timeout(self._settings.read_timeout_s):
                return await self._context.pool.get(bookie_id).last_confirmed(self.ledger_id)
        except NoSuchLedgerError:
            return NO_ENTRY
        except (BookieError, TimeoutError):
            return None

    # --- the metadata -----------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Keep the metadata up to date until the ledger is closed or deleted."""
        while not await self._followed():
            await self._clock.sleep(self._settings.poll_s)

    async def _followed(self) -> bool:
        """Read the record, and watch it from there; False if the store failed and it must be begun again."""
        try:
            if self._adopt(await self._context.records.get(self.ledger_id)):
                return True
            async for record in self._context.records.watch(self.ledger_id, since=self._version):
                if record is None:
                    self._gone()
                    return True
                if self._adopt(record):
                    return True
        except LedgerNotFoundError:
            self._gone()
        except MetaError as failure:
            log.warning("watch of ledger %s broke, it is read again: %s", self.ledger_id, failure)
            return False
        return True  # the store was closed

    def _adopt(self, record: Record) -> bool:
        """Take over newer metadata (a watch may tell late what a read has told already); whether it is closed."""
        ledger = record.ledger
        if record.version <= self._version:
            return self.closed
        self._metadata, self._version = record
        if ledger.state is LedgerState.CLOSED:
            self._confirmed = ledger.last_entry
        else:
            # A fragment starts right after what was acknowledged when it was written down.
            self._confirm(EntryId(ledger.fragments[-1].first_entry - 1))
        self._wake()
        return self.closed

    def _confirm(self, confirmed: EntryId) -> None:
        if not self.closed:
            self._confirmed = max(self._confirmed, confirmed)

    def _gone(self) -> None:
        self._deleted = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        if not changed.done():
            changed.set_result(None)

    async def _wait_changed(self, seconds: float) -> None:
        await asyncio.wait([self._changed], timeout=seconds)
