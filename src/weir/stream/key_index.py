"""Key index of a stream: finds the offsets of a key's messages.

The index consists of runs: ledgers with buckets of key hashes, each run for one range of offsets. Closed ledgers
of the stream are indexed in the background. Eight adjacent runs of a level merge into one of the next level, so
each level has at most about eight runs, and a lookup makes one small read in each. Offsets that no run covers, in
the open ledger and perhaps the one before it, are scanned once and then kept in memory, up to a limit.

The state names all runs and all ledgers to delete in one value, so a crash leaves either the old or the new index
and no orphaned ledger. A damaged run is dropped and rebuilt from the log.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing

from weir.ledger.reader import LedgerReader
from weir.ledger.writer import LedgerWriter
from weir.model.batch import Batch, BatchFlags
from weir.model.errors import EntryLostError, LedgerNotFoundError, OffsetTrimmedError, WireError
from weir.model.ids import EntryId, LedgerId
from weir.model.subscriptions import KEYS_HEADER
from weir.stream.context import StreamContext
from weir.stream.log import Stream
from weir.stream.state_log import StateLog
from weir.wire.formats.headers import RawHead, reading_heads
from weir.wire.key_index import (
    RECORD_BYTES,
    Run,
    bucket_of,
    check_head,
    decode_state,
    encode_head,
    encode_record,
    encode_state,
    key_hash,
    offsets_in,
)

#: Approximate number of records in a bucket, so that a lookup reads a few KiB.
_BUCKET_RECORDS = 256
_MOST_BITS = 24
#: Records that are put into buckets before yielding to other tasks.
_STEP = 2048
#: Maximum number of open readers of run ledgers.
_MOST_READERS = 64


def bits_for(records: int) -> int:
    """Number of leading hash bits that select a bucket."""
    return min(_MOST_BITS, max(0, (records // _BUCKET_RECORDS).bit_length()))


class Runs:
    """Reads, writes and merges runs of one stream."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._readers: OrderedDict[int, LedgerReader] = OrderedDict()

    async def begin(self) -> LedgerWriter:
        return await self._context.ledgers.create(self._context.settings.quorum)

    async def find(self, run: Run, hashed: bytes) -> list[int]:
        """The offsets of a hash in a run, with one read. WireError or EntryLostError if the run is damaged."""
        return offsets_in(await self._bucket(run, bucket_of(hashed, run.bits)), hashed)

    async def _bucket(self, run: Run, bucket: int) -> bytes:
        reader = await self._reader(run)
        entry = EntryId(bucket + 1)
        (found,) = await reader.read(entry, entry)
        return bytes(found.payload)

    async def _reader(self, run: Run) -> LedgerReader:
        reader = self._readers.get(run.ledger)
        if reader is None:
            reader = await self._context.ledgers.open(LedgerId(run.ledger), recover=False)
            try:
                (head,) = await reader.read(EntryId(0), EntryId(0))
                check_head(head.payload, run)
            except BaseException:
                await reader.close()
                raise
            self._readers[run.ledger] = reader
            while len(self._readers) > _MOST_READERS:
                await self._readers.popitem(last=False)[1].close()
        else:
            self._readers.move_to_end(run.ledger)
        return reader

    async def write(self, writer: LedgerWriter, records: bytearray, first: int, end: int) -> Run:
        """Write a run with these records."""
        count = len(records) // RECORD_BYTES
        run = Run(writer.ledger_id, first, end, count, bits_for(count), 0)
        last = await self._put(writer, encode_head(run))
        for bucket in await self._parted(records, run.bits, 0):
            last = await self._put(writer, bucket)
        await self._finish(writer, last)
        return run

    async def merge(self, writer: LedgerWriter, runs: Sequence[Run], start: int) -> Run:
        """Merge adjacent runs into one, without the records of offsets before `start`."""
        records = sum(run.records for run in runs)
        bits, least = bits_for(records), min(run.bits for run in runs)
        bits = max(bits, least)
        merged = Run(
            writer.ledger_id, runs[0].first, runs[-1].end, records, bits, max(run.level for run in runs) + 1
        )
        last = await self._put(writer, encode_head(merged))
        for prefix in range(1 << least):
            some = bytearray()
            for run in runs:
                more = run.bits - least  # the buckets whose hashes begin with these bits
                for place in range(prefix << more, (prefix + 1) << more):
                    some += await self._bucket(run, place)
            for bucket in await self._parted(some, bits, least, start):
                last = await self._put(writer, bucket)
        await self._finish(writer, last)
        return merged

    async def _parted(self, records: bytearray, bits: int, known: int, start: int = 0) -> list[bytes]:
        """Partition records with the same first `known` hash bits into buckets."""
        buckets = [bytearray() for _ in range(1 << (bits - known))]
        within = (1 << (bits - known)) - 1
        for at in range(0, len(records), RECORD_BYTES):
            record = records[at : at + RECORD_BYTES]
            if not start or int.from_bytes(record[8:], "little") >= start:
                buckets[bucket_of(record, bits) & within] += record
            if not at % (_STEP * RECORD_BYTES):
                await self._context.runtime.clock.sleep(0)
        return [bytes(bucket) for bucket in buckets]

    @staticmethod
    async def _put(writer: LedgerWriter, payload: bytes) -> "asyncio.Future[EntryId]":
        await writer.wait_capacity()
        put = writer.append(payload)
        put.add_done_callback(lambda done: done.cancelled() or done.exception())
        return put

    @staticmethod
    async def _finish(writer: LedgerWriter, last: "asyncio.Future[EntryId]") -> None:
        await last  # close() reports no failed append: it closes the ledger after the last stored entry
        await writer.close()

    async def forget(self, ledger: int) -> None:
        """Delete the ledger of a run."""
        reader = self._readers.pop(ledger, None)
        if reader is not None:
            await reader.close()
        await self._context.ledgers.delete(LedgerId(ledger))

    async def close(self) -> None:
        while self._readers:
            await self._readers.popitem()[1].close()


log = logging.getLogger(__name__)

_KEY = "key-index"
#: Number of adjacent runs of one level that merge into one.
FAN = 8
#: Maximum records of a run of the lowest level, which are in memory while it is built, 16 bytes each.
_MOST_RECORDS = 500_000
#: Maximum number of keys in memory for offsets that no run covers; with more keys, each lookup scans the offsets.
_MOST_REMEMBERED = 100_000
_READ_BYTES = 256 * 1024
_DAMAGE = (EntryLostError, LedgerNotFoundError, WireError)


def ledgers_in(state: StateLog) -> list[LedgerId]:
    """All ledgers of the index that the state names."""
    data = state.get(_KEY)
    runs, left = ([], []) if data is None else decode_state(data)
    return [LedgerId(ledger) for ledger in (*(run.ledger for run in runs), *left)]


def keys_of(head: RawHead) -> Iterable[bytes]:
    """The keys of a message: its message key, and each word of the header for several keys."""
    key, headers = head
    found = {} if key is None else {key: None}
    for name, text in headers:
        if name == KEYS_HEADER and text:
            found.update(dict.fromkeys(text.split()))
    return found


class KeyIndex:
    """Key index of a stream; belongs to the stream's holder. `known_to`: the offset before which all transactions
    are decided, so that messages may be indexed."""

    def __init__(
        self, context: StreamContext, stream: Stream, state: StateLog, *, known_to: Callable[[], int]
    ) -> None:
        self._clock = context.runtime.clock
        self._stream = stream
        self._state = state
        self._known_to = known_to
        self._store = Runs(context)
        data = state.get(_KEY)
        self._runs, self._left = ([], []) if data is None else decode_state(data)
        #: Hash -> offsets in [`_from`, `_to`), which no run covers.
        self._remembered: dict[bytes, list[int]] = {}
        self._from = self._to = 0
        self._remembering = asyncio.Lock()

    @property
    def runs(self) -> list[Run]:
        return list(self._runs)

    @property
    def there(self) -> bool:
        """Whether the index has any ledger."""
        return bool(self._runs or self._left)

    @property
    def covered_to(self) -> int:
        return self._runs[-1].end if self._runs else self._stream.start_offset

    # --- lookup -----------------------------------------------------------------------------------------

    async def find(
        self, key: bytes, limit: int, visible: Callable[[Batch], int | None] = lambda batch: None
    ) -> list[tuple[Batch, int]]:
        """The latest visible messages of a key, newest first, each as its batch and its index in the batch."""
        hashed = key_hash(key)
        found: list[tuple[Batch, int]] = []
        near: tuple[Batch, list[RawHead]] | None = None
        async with aclosing(self._candidates(hashed)) as parts:
            async for offsets in parts:
                for offset in reversed(offsets):
                    if near is None or not near[0].base_offset <= offset < near[0].end_offset:
                        near = await self._batch(offset)
                    if near is None:
                        continue
                    batch, index = near[0], offset - near[0].base_offset
                    shown = visible(batch)
                    if (shown is None or shown >> index & 1) and key in keys_of(near[1][index]):
                        found.append((batch, index))
                    if len(found) >= limit:
                        return found
        return found

    async def _candidates(self, hashed: bytes) -> AsyncGenerator[list[int], None]:
        """Candidate offsets for a hash in parts, newest part first, ascending within each part."""
        end = self._stream.end_offset
        for run in [*reversed(self._runs), None]:
            first = self._stream.start_offset if run is None else max(run.end, self._stream.start_offset)
            if first < end:  # no run covers these offsets
                yield await self._scan(hashed, first, end)
            if run is None or run.end <= self._stream.start_offset:
                return
            try:
                yield await self._store.find(run, hashed)
            except _DAMAGE as damage:
                log.warning("stream %s: rebuilding a damaged part of the key index: %s", self._stream.name, damage)
                await self._drop([run])
                yield await self._scan(hashed, max(run.first, self._stream.start_offset), run.end)
            end = run.first

    async def _scan(self, hashed: bytes, first: int, end: int) -> list[int]:
        """The offsets of a hash in a range that no run covers. The keys of the last range stay in memory."""
        if end == self._stream.end_offset and len(self._remembered) <= _MOST_REMEMBERED:
            async with self._remembering:
                await self._remember(first, end)
                return [offset for offset in self._remembered.get(hashed, ()) if offset < end]
        async with aclosing(self._keys(first, end)) as keys:
            return [offset async for one, offset in keys if one == hashed]

    async def _remember(self, first: int, end: int) -> None:
        if self._from != first:
            self._remembered, self._from, self._to = {}, first, first
        async with aclosing(self._keys(self._to, end)) as keys:
            found = [key async for key in keys]
        for one, offset in found:
            self._remembered.setdefault(one, []).append(offset)
        self._to = max(self._to, end)

    async def _keys(self, first: int, end: int) -> AsyncGenerator[tuple[bytes, int], None]:
        """Hashes and offsets of the messages in [first, end)."""
        async with aclosing(self._heads(first, end)) as found:
            async for batch, heads in found:
                for index, head in enumerate(heads):
                    offset = batch.base_offset + index
                    if first <= offset < end:
                        for key in keys_of(head):
                            yield key_hash(key), offset

    async def _heads(self, first: int, end: int) -> AsyncGenerator[tuple[Batch, list[RawHead]], None]:
        offset = first
        while offset < end:
            try:
                batches = await self._stream.read(offset, _READ_BYTES)
            except OffsetTrimmedError:
                offset = max(offset + 1, self._stream.start_offset)
                continue
            if not batches:
                return
            for batch in batches:
                if batch.base_offset >= end:
                    return
                offset = batch.end_offset
                if batch.flags & BatchFlags.UNSEEN:
                    continue
                steps = reading_heads(batch)
                while True:
                    try:
                        next(steps)
                    except StopIteration as done:
                        if done.value is not None:
                            yield batch, done.value
                        break
                    await self._clock.sleep(0)
            await self._clock.sleep(0)

    async def _batch(self, offset: int) -> tuple[Batch, list[RawHead]] | None:
        """The batch that contains the offset; None if it is trimmed."""
        if not self._stream.start_offset <= offset < self._stream.end_offset:
            return None
        async with aclosing(self._heads(offset, offset + 1)) as found:
            async for batch, heads in found:
                if batch.base_offset <= offset < batch.end_offset:
                    return batch, heads
        return None

    # --- building and merging -----------------------------------------------------------------------------

    @property
    def behind(self) -> bool:
        """Whether `keep_up` has work: ledgers to index, runs to merge or drop, ledgers to delete."""
        return (
            bool(self._left)
            or self._next_piece() is not None
            or self._to_merge() is not None
            or any(run.end <= self._stream.start_offset for run in self._runs)
        )

    async def keep_up(self) -> None:
        """Index closed ledgers, merge adjacent runs, drop runs of trimmed offsets. Do not call it concurrently."""
        await self._delete_left()
        await self._drop([run for run in self._runs if run.end <= self._stream.start_offset])
        while (piece := self._next_piece()) is not None:
            await self._build(*piece)
        while (neighbours := self._to_merge()) is not None:
            try:
                await self._merge(neighbours)
            except _DAMAGE as damage:
                log.warning("stream %s: rebuilding a damaged part of the key index: %s", self._stream.name, damage)
                await self._drop(neighbours)
                while (piece := self._next_piece()) is not None:
                    await self._build(*piece)

    def _next_piece(self) -> tuple[int, int] | None:
        """The first range [first, end) of offsets in closed ledgers that no run covers."""
        closed = [span.end_offset for span in self._stream.chain.spans if span.end_offset is not None]
        sealed = min(max(closed, default=0), self._known_to())
        at = self._stream.start_offset
        for run in self._runs:
            if at < run.first:
                return at, min(run.first, sealed) if run.first <= sealed else sealed
            at = max(at, run.end)
        return (at, sealed) if at < sealed else None

    async def _build(self, first: int, end: int) -> None:
        """Build a run for [first, end), or several if it has many keys."""
        records = bytearray()
        begun = first
        async with aclosing(self._heads(first, end)) as found:
            async for batch, heads in found:
                if len(records) >= _MOST_RECORDS * RECORD_BYTES:
                    await self._write(records, begun, batch.base_offset)
                    records, begun = bytearray(), batch.base_offset
                for index, head in enumerate(heads):
                    offset = batch.base_offset + index
                    if first <= offset < end:
                        for key in keys_of(head):
                            records += encode_record(key_hash(key), offset)
        await self._write(records, begun, end)

    async def _write(self, records: bytearray, first: int, end: int) -> None:
        writer = await self._store.begin()
        await self._note_left(writer.ledger_id)
        run = await self._store.write(writer, records, first, end)
        await self._replace([], run)

    async def _merge(self, neighbours: list[Run]) -> None:
        writer = await self._store.begin()
        await self._note_left(writer.ledger_id)
        merged = await self._store.merge(writer, neighbours, self._stream.start_offset)
        await self._replace(neighbours, merged)

    def _to_merge(self) -> list[Run] | None:
        """The first `FAN` adjacent runs of one level; None if no level has so many."""
        neighbours: list[Run] = []
        for run in self._runs:
            if neighbours and (neighbours[-1].level != run.level or neighbours[-1].end != run.first):
                neighbours = []
            neighbours.append(run)
            if len(neighbours) == FAN:
                return neighbours
        return None

    async def _note_left(self, ledger: int) -> None:
        self._left.append(ledger)
        await self._save()

    async def _replace(self, old: list[Run], new: Run) -> None:
        gone = {run.ledger: None for run in old}
        kept = [run for run in self._runs if run.ledger not in gone]
        self._runs = sorted([*kept, new], key=lambda run: run.first)
        self._left = [ledger for ledger in self._left if ledger != new.ledger] + list(gone)
        await self._save()
        await self._delete_left()

    async def _drop(self, runs: list[Run]) -> None:
        there = {run.ledger: None for run in self._runs}
        gone = [run.ledger for run in runs if run.ledger in there]
        if gone:
            self._runs = [run for run in self._runs if run.ledger not in gone]
            self._left += gone
            await self._save()
            await self._delete_left()

    async def forget(self) -> None:
        """Delete the index."""
        if self._runs or self._left:
            await self._drop(self._runs)
            self._state.delete(_KEY)
        self._remembered, self._from, self._to = {}, 0, 0

    async def _save(self) -> None:
        self._state.put(_KEY, encode_state(self._runs, self._left))
        await self._state.flush()

    async def _delete_left(self) -> None:
        if not self._left:
            return
        left = list(self._left)
        for ledger in left:
            await self._store.forget(ledger)
        self._left = [ledger for ledger in self._left if ledger not in left]
        self._state.put(_KEY, encode_state(self._runs, self._left))

    async def close(self) -> None:
        await self._store.close()
