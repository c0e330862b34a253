"""Reads of entries: from the write cache, then from the entry logs, with read-ahead."""

from collections.abc import Sequence

from weir.bookie.damage import DamagedEntry
from weir.bookie.entry_logs import LogFiles, find, next_id
from weir.bookie.folder import READ_ATTEMPTS
from weir.bookie.store import Store
from weir.model.errors import DiskError, EntryCorruptError, FileMissingError, NoSuchEntryError, WireError
from weir.model.ids import Buffer, EntryId, LedgerId
from weir.wire.entry import HEADER_BYTES, MAX_PAYLOAD_BYTES, entry_key, entry_size, lost_entry, verify_entry

#: Attempts of a read when garbage collection moves its entries.
_ATTEMPTS = 5
#: Ledgers with a remembered last single read, to detect sequential reads.
_REMEMBERED = 4096
#: A walk through a log skips this many unwanted entries before it consults the index.
_STEPS = 16
_LARGEST = HEADER_BYTES + MAX_PAYLOAD_BYTES

Entries = list[tuple[EntryId, Buffer]]
#: An entry with its bytes, or without them if they exceed the room.
Found = tuple[EntryId, Buffer | None]


class Reader:
    """Reads from the store. Verifies everything from the disk."""

    def __init__(self, store: Store, files: LogFiles) -> None:
        self._store = store
        self._files = files
        self._expected: dict[LedgerId, EntryId] = {}

    async def read(self, ledger_id: LedgerId, first: EntryId, last: EntryId, max_bytes: int) -> Entries:
        """The entries in [first, last], at least one, at most `max_bytes` beyond the first."""
        data = await self._one(ledger_id, first, ahead=last > first or self._expected.get(ledger_id) == first)
        if data is None:
            raise NoSuchEntryError(f"entry {first} of ledger {ledger_id} is not here")
        found: Entries = [(first, data)]
        if last > first and len(data) < max_bytes:
            await self._more(ledger_id, found, last, max_bytes - len(data))
        self._expect(ledger_id, EntryId(found[-1][0] + 1))
        return found

    async def get(self, ledger_id: LedgerId, entry_id: EntryId) -> Buffer | None:
        """One entry, or None if it is not here."""
        return await self._one(ledger_id, entry_id, ahead=False)

    def _expect(self, ledger_id: LedgerId, entry_id: EntryId) -> None:
        self._expected.pop(ledger_id, None)
        self._expected[ledger_id] = entry_id
        if len(self._expected) > _REMEMBERED:
            del self._expected[next(iter(self._expected))]

    async def _one(self, ledger_id: LedgerId, entry_id: EntryId, *, ahead: bool) -> Buffer | None:
        cached = self._store.cache.get(ledger_id, entry_id)
        if cached is not None:
            return cached
        walk = Walk(self._store, self._files, ledger_id, ahead=ahead)
        return await walk.exactly(entry_id)

    async def _more(self, ledger_id: LedgerId, found: Entries, last: EntryId, room: int) -> None:
        """Append the following entries up to `last`, while they fit, and stop at the first damage."""
        last = min(last, self._store.last_entry(ledger_id))
        walk = Walk(self._store, self._files, ledger_id, ahead=True)
        wanted = EntryId(found[-1][0] + 1)
        while wanted <= last:
            data = self._store.cache.get(ledger_id, wanted)
            if data is None:
                try:
                    step = await self._next(walk, ledger_id, wanted, last, room)
                except EntryCorruptError:
                    return
                if step is None:
                    return
                wanted, data = step
            if data is None or len(data) > room:
                return
            found.append((wanted, data))
            room -= len(data)
            wanted = EntryId(wanted + 1)

    async def _next(
        self, walk: "Walk", ledger_id: LedgerId, wanted: EntryId, last: EntryId, room: int
    ) -> Found | None:
        """The first entry in [wanted, last] from the cache and the logs: either may fill a gap of the other.
        Without its bytes if they exceed `room`."""
        cache = self._store.cache
        while True:
            version = cache.version
            stored = await walk.at_or_after(wanted, last, room)
            if version != cache.version:
                continue  # entries moved from the cache to a log: the lookup may be stale
            cached = cache.at_or_after(ledger_id, wanted, last if stored is None else stored[0])
            if cached is None:
                return stored
            data = cache.get(ledger_id, cached)
            return None if data is None else (cached, data)


class Walk:
    """A walk through a ledger's entries in the logs. They are adjacent, so only the first one needs an index
    lookup."""

    def __init__(self, store: Store, files: LogFiles, ledger_id: LedgerId, *, ahead: bool) -> None:
        self._store = store
        self._files = files
        self._ledger_id = ledger_id
        self._ahead = ahead
        self._log = 0
        self._at = 0  # of the next entry in the log
        self._end = 0  # of the ledger's entries in the log
        self._large = False  # whether the last entry was more than a block
        #: The last entry found, which the caller may not have used, because the cache had a nearer one.
        self._found: Found | None = None

    async def exactly(self, entry_id: EntryId) -> Buffer | None:
        """The entry, or None if certainly no log has it."""
        found = await self._insist(entry_id, entry_id)
        return None if found is None else found[1]

    async def at_or_after(self, wanted: EntryId, last: EntryId, room: int) -> Found | None:
        """The lowest entry in [wanted, last] in any log, with its id. `room` must not grow from call to call."""
        found = await self._onward(wanted, room)
        if found is None:
            found = await self._insist(wanted, last, room)
        self._found = found
        return found if found is not None and found[0] <= last else None

    async def _insist(self, wanted: EntryId, last: EntryId, room: int = _LARGEST) -> Found | None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._look_up(wanted, last, room)
            except FileMissingError as gone:
                if attempt == _ATTEMPTS:
                    raise self._corrupt(wanted, gone.what) from gone
            except DiskError as failed:
                if attempt >= READ_ATTEMPTS:
                    raise self._corrupt(wanted, failed.what) from failed
            except WireError as bad:  # a concurrent rebuild may have replaced the index
                if attempt >= READ_ATTEMPTS:
                    raise self._corrupt(wanted, f"its index is damaged: {bad.what}") from bad
        return None  # pragma: no cover - the last attempt returns or raises

    async def _look_up(self, wanted: EntryId, last: EntryId, room: int) -> Found | None:
        entry_id: EntryId | None = wanted
        if wanted < last:
            runs = self._store.index.get(self._ledger_id)
            entry_id = None if runs is None else await next_id(self._files, runs, wanted)
        # Get the runs again: during the wait, garbage collection may have replaced them.
        runs = self._store.index.get(self._ledger_id)
        if runs is None or entry_id is None or entry_id > last:
            return None
        place = await find(self._files, runs, entry_id)
        if place is None:
            return None
        run, row = place
        self._large = row.size > self._files.block_bytes
        if row.size > room:
            return entry_id, None
        data = await self._verified(run.log, row.offset, row.size, entry_id)
        self._log, self._at, self._end = run.log, row.offset + row.size, run.offset + run.size
        return entry_id, data

    async def _onward(self, wanted: EntryId, room: int) -> Found | None:
        """The next entry in the log at or above `wanted`, if it is near and sound; None to consult the index.
        Where runs overlap, a newer copy may be elsewhere: the index knows. For large entries the index also gives
        the size without a read of a block."""
        runs = self._store.index.get(self._ledger_id)
        if runs is None or runs.overlapping or self._large:
            return None
        if self._found is not None and self._found[0] >= wanted:
            return self._found
        for _ in range(_STEPS):
            here = await self._here(room) if self._at < self._end else None
            if here is None:
                return None
            self._at += len(here[1])
            if here[0] >= wanted:
                # Runs do not overlap, so no other run has an id between `wanted` and this one.
                return here
        return None

    async def _here(self, room: int) -> tuple[EntryId, Buffer] | None:
        """The verified entry of the ledger at the position of the walk; None without one, or if it exceeds
        `room`."""
        try:
            size = entry_size(await self._bytes(self._log, self._at, min(HEADER_BYTES, self._end - self._at)))
            if size > room:
                return None
            data = await self._bytes(self._log, self._at, size)
            verify_entry(data)
        except (WireError, DiskError):
            return None
        ledger_id, entry_id = entry_key(data)
        return (entry_id, data) if ledger_id == self._ledger_id and lost_entry(data) is None else None

    async def _verified(self, log: int, offset: int, size: int, entry_id: EntryId) -> Buffer:
        """The entry's verified bytes, with retries, since the transfer may have damaged them."""
        problem = ""
        for attempt in range(READ_ATTEMPTS):
            data = await (self._files.read(log, offset, size) if attempt else self._bytes(log, offset, size))
            try:
                verify_entry(data)
                if entry_key(data) == (self._ledger_id, entry_id):
                    return self._not_lost(data, entry_id)
                problem = f"entry {entry_key(data)} lies in its place"
            except WireError as bad:
                problem = bad.what
            self._files.drop_blocks(log, offset, size)
        raise self._corrupt(entry_id, problem, self._files.log_path(log), offset)

    def _not_lost(self, data: Buffer, entry_id: EntryId) -> Buffer:
        """The bytes; EntryCorruptError for a placeholder of a lost entry (`weir salvage`)."""
        why = lost_entry(data)
        if why is not None:
            raise EntryCorruptError(f"entry {entry_id} of ledger {self._ledger_id}: {why}")
        return data

    async def _bytes(self, log: int, offset: int, size: int) -> Buffer:
        """Read through the block cache if the caller reads ahead; else exactly these bytes."""
        block_bytes = self._files.block_bytes
        if not self._ahead or size > block_bytes:
            return await self._files.read(log, offset, size)
        number, inside = divmod(offset, block_bytes)
        block = await self._files.block(log, number)
        if inside + size <= block_bytes:
            return memoryview(block)[inside : inside + size]
        rest: Sequence[Buffer] = (
            memoryview(block)[inside:],
            memoryview(await self._files.block(log, number + 1))[: inside + size - block_bytes],
        )
        return b"".join(rest)

    def _corrupt(self, entry_id: EntryId, why: str, path: str = "", offset: int = 0) -> EntryCorruptError:
        """Record the damage, log it the first time, and return the error."""
        if not path:
            runs = self._store.index.get(self._ledger_id)
            covering = [] if runs is None else runs.covering(entry_id)
            path = self._files.log_path(covering[0].log) if covering else f"ledger {self._ledger_id}"
        self._store.damages.found(DamagedEntry(self._ledger_id, entry_id, path, offset, why))
        return EntryCorruptError(f"entry {entry_id} of ledger {self._ledger_id}: {path} at offset {offset}: {why}")
