"""Reads of segments, the copies of ledgers in the lake.

A read fetches a range of whole blocks, verifies each block, and fetches ahead for sequential readers. One block
cache per broker, with a limit in bytes, has the blocks of all streams.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from weir.model.batch import Batch
from weir.model.errors import ObjectStoreError, SegmentDamagedError, WireError
from weir.model.ids import Buffer, LedgerId
from weir.model.stream import Segment, SegmentStore, Span
from weir.runtime.object_store import ObjectStore, ObjectStores
from weir.runtime.tasks import TaskScope
from weir.stream.tail import MOST_BATCHES
from weir.wire.segment import END_BYTES, SegmentIndex, decode_block, decode_index, index_bytes, is_whole

#: Approximate memory of a decoded batch besides its payload.
_OVERHEAD_BYTES = 300


def cost_bytes(length: int, entries: int) -> int:
    """Size of a block in the cache."""
    return length + entries * _OVERHEAD_BYTES


class BlockKey(NamedTuple):
    """A block of an object. Objects never change, and names are never reused."""

    url: str
    name: str
    number: int


class CachedBlock:
    """The bytes of a block, and its batches after the first access."""

    __slots__ = ("_batches", "_data", "size_bytes")

    def __init__(self, data: Buffer, entries: int) -> None:
        self._data = data
        self._batches: Sequence[Batch] | None = None
        self.size_bytes = cost_bytes(len(data), entries)

    @property
    def batches(self) -> Sequence[Batch]:
        if self._batches is None:
            self._batches = decode_block(self._data)
        return self._batches


class BlockCache:
    """LRU cache of blocks."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._blocks: OrderedDict[BlockKey, CachedBlock] = OrderedDict()
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: BlockKey) -> CachedBlock | None:
        found = self._blocks.get(key)
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        self._blocks.move_to_end(key)
        return found

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._blocks

    def add(self, key: BlockKey, block: CachedBlock) -> None:
        """Add a block. A block that exceeds the whole limit is evicted at once."""
        old = self._blocks.pop(key, None)
        if old is not None:
            self.size_bytes -= old.size_bytes
        self._blocks[key] = block
        self.size_bytes += block.size_bytes
        while self.size_bytes > self.limit_bytes:
            self.size_bytes -= self._blocks.popitem(last=False)[1].size_bytes

    def forget(self, url: str, name: str) -> None:
        """Drop the blocks of a deleted object."""
        for key in [key for key in self._blocks if key.name == name and key.url == url]:
            self.size_bytes -= self._blocks.pop(key).size_bytes


log = logging.getLogger(__name__)

#: Size of the first read at the end of an object: it has the whole index of all but the largest objects.
_END_READ_BYTES = 64 * 1024
#: Maximum range of one request for a sequential reader; a first read requests one block.
_MOST_AHEAD_BYTES = 4 * 1024 * 1024
_MOST_AHEAD_BLOCKS = 64
#: Maximum number of tracked readers of one object.
_READERS = 16
#: A reader counts as active if one of this many latest block reads was its own.
_LATELY = 1024
#: Read-ahead for one reader must not evict blocks that other readers have not read yet, and blocks that they have
#: read are evicted later. So each reader has cache space for this many requests.
_ROOM = 4
#: Maximum concurrent requests over all streams, and thereby of ranges in memory besides the cache.
_REQUESTS = 8
#: Maximum number of cached object indexes; the index of a large object has 40 KB.
_INDEXES = 256
#: Maximum number of ledgers with a remembered warning in the log.
_MOST_TOLD = 100
#: Maximum number of open stores.
_STORES = 64


#: The intact blocks of a range, or the store's error.
_Landed = Mapping[int, CachedBlock] | ObjectStoreError
_Flight = asyncio.Task[_Landed]


class _Opened:
    """An object with its index and its sequential readers."""

    __slots__ = ("_readers", "flights", "index", "name", "store", "url")

    def __init__(self, url: str, name: str, store: ObjectStore, index: SegmentIndex) -> None:
        self.url = url
        self.name = name
        self.store = store
        self.index = index
        #: Last block of a reader -> its window in blocks, and the turn of that read.
        self._readers: OrderedDict[int, tuple[int, int]] = OrderedDict()
        #: Running fetches by block.
        self.flights: dict[int, _Flight] = {}

    def key(self, number: int) -> BlockKey:
        return BlockKey(self.url, self.name, number)

    def window(self, number: int, turn: int) -> int:
        """Number of blocks to fetch for the reader of this block; it doubles with each sequential read."""
        window, _ = self._readers.pop(number, (0, 0))
        if not window:
            before, _ = self._readers.pop(number - 1, (0, 0))
            window = min(2 * before, _MOST_AHEAD_BLOCKS) or 1
        self._readers[number] = window, turn
        if len(self._readers) > _READERS:
            self._readers.popitem(last=False)
        return window

    def readers_since(self, turn: int) -> int:
        return sum(last >= turn for _, last in self._readers.values())


class SegmentReads:
    """Reads segments for all streams of a broker."""

    def __init__(self, stores: ObjectStores, cache_bytes: int) -> None:
        self._stores = stores
        self.cache = BlockCache(cache_bytes)
        #: Number of block reads so far.
        self._turn = 0
        self._open_stores: OrderedDict[tuple[str, tuple[tuple[str, str], ...]], ObjectStore] = OrderedDict()
        self._opened: OrderedDict[tuple[str, str], _Opened] = OrderedDict()
        self._requests = asyncio.Semaphore(_REQUESTS)
        self._tasks = TaskScope("segments")
        #: Bytes read from stores, and number of failed reads.
        self.read_bytes = 0
        self.failures = 0
        #: Ledgers with a warning in the log since their last successful read.
        self._told: dict[LedgerId, None] = {}

    def store(self, place: SegmentStore) -> ObjectStore:
        key = (place.url, tuple(sorted(place.options.items())))
        found = self._open_stores.pop(key, None) or self._stores.open(place.url, place.options)
        self._open_stores[key] = found
        if len(self._open_stores) > _STORES:
            self._open_stores.popitem(last=False)
        return found

    async def read(self, place: SegmentStore, span: Span, offset: int, max_bytes: int) -> list[Batch]:
        """Read at least one batch of a segment, starting with the one that contains `offset`. ObjectStoreError."""
        try:
            found = await self._read(place, span, offset, max_bytes)
        except ObjectStoreError as failed:
            self.failures += 1
            self._tell(span, failed)
            raise
        self._told.pop(span.ledger_id, None)
        return found

    def _tell(self, span: Span, failed: ObjectStoreError) -> None:
        """Log the failure once until the next successful read: client protocols have no field for it."""
        if span.ledger_id not in self._told:
            log.warning("ledger %s cannot be read from the lake: %s", span.ledger_id, failed)
            self._told[span.ledger_id] = None
            if len(self._told) > _MOST_TOLD:
                self._told.pop(next(iter(self._told)))

    async def _read(self, place: SegmentStore, span: Span, offset: int, max_bytes: int) -> list[Batch]:
        opened = await self._open(place, span)
        number = opened.index.block_at(offset)
        found: list[Batch] = []
        size = 0
        while number < len(opened.index.blocks):
            try:
                batches = (await self._block(opened, number)).batches
            except ObjectStoreError:
                if found:  # the next read raises the error
                    return found
                raise
            first = 0
            if not found:
                first = max(0, sum(batch.base_offset <= offset for batch in batches) - 1)
            for batch in batches[first:]:
                if found and (size + len(batch) > max_bytes or len(found) == MOST_BATCHES):
                    return found
                found.append(batch)
                size += len(batch)
            number += 1
        return found

    async def offset_at(self, place: SegmentStore, span: Span, moment_ms: int) -> int | None:
        """The offset of the segment's first batch with an append time at or after the moment."""
        opened = await self._open(place, span)
        for number in range(opened.index.block_before(moment_ms), len(opened.index.blocks)):
            for batch in (await self._block(opened, number)).batches:
                if batch.append_ms >= moment_ms:
                    return batch.base_offset
        return None

    async def check(self, place: SegmentStore, span: Span, segment: Segment) -> None:
        """Read a whole object without the cache; ObjectStoreError unless it is intact."""
        store = self._stores.open(place.url, place.options)
        index = await self._index(store, place.url, span, segment)
        blocks, number = index.blocks, 0
        while number < len(blocks):
            end = number + 1
            while end < len(blocks) and _reach(index, number, end + 1) <= _MOST_AHEAD_BYTES:
                end += 1
            data = await store.read(segment.name, blocks[number].position, _reach(index, number, end))
            for at in range(number, end):
                if not is_whole(blocks[at], _cut(index, number, at, data)):
                    raise _damaged(place.url, segment.name, index, at)
            number = end

    def forget(self, place: SegmentStore, segment: Segment) -> None:
        """Drop the index and the blocks of a deleted object."""
        self._opened.pop((place.url, segment.name), None)
        self.cache.forget(place.url, segment.name)

    async def close(self) -> None:
        await self._tasks.close()

    # --- objects ----------------------------------------------------------------------------------------

    async def _open(self, place: SegmentStore, span: Span) -> _Opened:
        segment = span.segment
        if segment is None:
            raise ObjectStoreError(f"ledger {span.ledger_id} has no copy in the lake")
        key = (place.url, segment.name)
        found = self._opened.get(key)
        if found is None:
            store = self.store(place)
            async with self._requests:
                index = await self._index(store, place.url, span, segment)
            found = self._opened.setdefault(key, _Opened(place.url, segment.name, store, index))
            if len(self._opened) > _INDEXES:
                self._opened.popitem(last=False)
        self._opened.move_to_end(key)
        return found

    async def _index(self, store: ObjectStore, url: str, span: Span, segment: Segment) -> SegmentIndex:
        """Read the index at the end of the object and compare it with the chain. After a mismatch, read it once
        more, since bits may flip in transit."""
        for last_look in (False, True):
            try:
                return await self._index_once(store, span, segment)
            except WireError as bad:
                if last_look:
                    offsets = f"offsets {span.first_offset} to {(span.end_offset or 0) - 1}"
                    raise SegmentDamagedError(f"{url}/{segment.name} ({offsets}): {bad.what}") from bad
        raise AssertionError

    async def _index_once(self, store: ObjectStore, span: Span, segment: Segment) -> SegmentIndex:
        size = segment.size_bytes
        first = min(size, _END_READ_BYTES)
        data: Buffer = await store.read(segment.name, size - first, first)
        self.read_bytes += len(data)
        wanted = index_bytes(data[-END_BYTES:])
        if wanted > len(data):
            data = await store.read(segment.name, size - wanted, wanted)
            self.read_bytes += len(data)
        index = decode_index(memoryview(data)[-wanted:], size)
        if (index.ledger_id, index.first_offset, index.end_offset) != (
            span.ledger_id,
            span.first_offset,
            span.end_offset,
        ):
            raise WireError("the object is a copy of another ledger")
        return index

    # --- blocks -----------------------------------------------------------------------------------------

    def _share_bytes(self) -> int:
        """Share of the cache that one request of an active reader may use."""
        since, readers = self._turn - _LATELY, 0
        for one in reversed(self._opened.values()):
            if not (lately := one.readers_since(since)):
                break
            readers += lately
        return self.cache.limit_bytes // (_ROOM * max(1, readers))

    async def _block(self, opened: _Opened, number: int) -> CachedBlock:
        self._turn += 1
        window = opened.window(number, self._turn)
        found = self.cache.get(opened.key(number))
        if found is None:
            flight = opened.flights.get(number) or self._fetch(opened, number, window)
            await asyncio.wait([flight])  # it continues for other readers if this one is cancelled
            if flight.cancelled():
                raise ObjectStoreError(f"read of {opened.url} canceled: the broker is stopping")
            found = _given(flight.result()).get(number) or await self._again(opened, number)
        if window > 1:
            self._fetch_ahead(opened, number, window)
        return found

    def _fetch_ahead(self, opened: _Opened, number: int, window: int) -> None:
        """Fetch the next range while the reader processes this one."""
        index, share_bytes = opened.index, self._share_bytes()
        wanted = number + 1
        last = min(len(index.blocks), wanted + max(1, window // 2))
        while wanted < last and (opened.key(wanted) in self.cache or wanted in opened.flights):
            wanted += 1
        is_soon = _cost(index, number + 1, wanted) <= share_bytes // 2
        if wanted < last and is_soon and _cost(index, wanted, wanted + 1) <= share_bytes:
            self._fetch(opened, wanted, window)

    def _fetch(self, opened: _Opened, number: int, most: int) -> _Flight:
        """Fetch up to `most` blocks from this one on, up to the first that is cached or being fetched."""
        index, share_bytes = opened.index, self._share_bytes() if most > 1 else 0
        end = number + 1
        while (
            end < min(len(index.blocks), number + most)
            and end not in opened.flights
            and opened.key(end) not in self.cache
            and _reach(index, number, end + 1) <= _MOST_AHEAD_BYTES
            and _cost(index, number, end + 1) <= share_bytes
        ):
            end += 1
        flight: _Flight = self._tasks.spawn(self._fetched(opened, number, end), "fetch")
        for at in range(number, end):
            opened.flights[at] = flight
        flight.add_done_callback(lambda done: self._landed(opened, number, end, done))
        return flight

    @staticmethod
    def _landed(opened: _Opened, number: int, end: int, flight: _Flight) -> None:
        for at in range(number, end):
            if opened.flights.get(at) is flight:
                del opened.flights[at]

    async def _fetched(self, opened: _Opened, number: int, end: int) -> _Landed:
        index = opened.index
        try:
            async with self._requests:
                data = await opened.store.read(
                    opened.name, index.blocks[number].position, _reach(index, number, end)
                )
        except ObjectStoreError as failed:
            return failed
        self.read_bytes += len(data)
        found = {}
        for at in range(number, end):
            block = index.blocks[at]
            piece = _cut(index, number, at, data)
            if is_whole(block, piece):
                found[at] = CachedBlock(bytes(piece), block.entries)  # a copy: a view would pin the whole range
                self.cache.add(opened.key(at), found[at])
        return found

    async def _again(self, opened: _Opened, number: int) -> CachedBlock:
        """Read a block a second time after a failed checksum."""
        found = _given(await self._fetched(opened, number, number + 1))
        if number not in found:
            raise _damaged(opened.url, opened.name, opened.index, number)
        return found[number]


def _given(landed: _Landed) -> Mapping[int, CachedBlock]:
    if isinstance(landed, ObjectStoreError):
        raise landed
    return landed


def _reach(index: SegmentIndex, number: int, end: int) -> int:
    """Bytes from the start of block `number` to the end of the block before `end`."""
    last = index.blocks[end - 1]
    return last.position + last.length - index.blocks[number].position


def _cost(index: SegmentIndex, number: int, end: int) -> int:
    """Size of these blocks in the cache."""
    return sum(cost_bytes(block.length, block.entries) for block in index.blocks[number:end])


def _cut(index: SegmentIndex, first: int, number: int, data: Buffer) -> memoryview:
    """The part of block `number` in a range that begins with block `first`."""
    block = index.blocks[number]
    start = block.position - index.blocks[first].position
    return memoryview(data)[start : start + block.length]


def _damaged(url: str, name: str, index: SegmentIndex, number: int) -> SegmentDamagedError:
    block = index.blocks[number]
    end = index.blocks[number + 1].base_offset if number + 1 < len(index.blocks) else index.end_offset
    return SegmentDamagedError(
        f"{url}/{name} is damaged at byte {block.position} (offsets {block.base_offset} to {end - 1})"
    )
