"""Reading segments: by ranges of whole blocks, each of which is checked, ahead of whoever reads on.

What was read from segments, in memory, bounded in bytes over all streams of a broker.

Ledgers whose copy in the lake is read: copying them, reading the copies, letting the ledgers go.
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

#: What a batch costs besides its payload once it is decoded, roughly.
_OVERHEAD_BYTES = 300


def cost_bytes(length: int, entries: int) -> int:
    """What a block takes of the cache."""
    return length + entries * _OVERHEAD_BYTES


class BlockKey(NamedTuple):
    """A block of an object. Objects never change, and no name is used twice."""

    url: str
    name: str
    number: int


class CachedBlock:
    """The bytes of a block, and its batches once somebody wanted them."""

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
    """What was used longest ago goes first."""

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
        """One that is larger than all that there may be is not kept."""
        old = self._blocks.pop(key, None)
        if old is not None:
            self.size_bytes -= old.size_bytes
        self._blocks[key] = block
        self.size_bytes += block.size_bytes
        while self.size_bytes > self.limit_bytes:
            self.size_bytes -= self._blocks.popitem(last=False)[1].size_bytes

    def forget(self, url: str, name: str) -> None:
        """The object is gone."""
        for key in [key for key in self._blocks if key.name == name and key.url == url]:
            self.size_bytes -= self._blocks.pop(key).size_bytes


log = logging.getLogger(__name__)

#: The end of an object that is asked for first: the whole index, of all but the largest.
_END_READ_BYTES = 64 * 1024
#: What is asked for at once for a reader that goes on; a first read asks for one block.
_MOST_AHEAD_BYTES = 4 * 1024 * 1024
_MOST_AHEAD_BLOCKS = 64
#: Readers of one object whose places are remembered.
_READERS = 16
#: Who has read one of so many blocks last reads on, as far as one can tell.
_LATELY = 1024
#: What is read ahead must not push out what was read ahead for others before they had it; and what they have had
#: goes later. So each has room for this many times what is asked for at once.
_ROOM = 4
#: Requests under way, over all streams: so many ranges may be in memory besides what is cached.
_REQUESTS = 8
#: Objects whose index is kept: 40 KB each, if they are large.
_INDEXES = 256
#: Ledgers of which it is remembered that the log was told.
_MOST_TOLD = 100
#: Stores that are kept open.
_STORES = 64


#: The blocks of a range that are whole, or why the store did not give it.
_Landed = Mapping[int, CachedBlock] | ObjectStoreError
_Flight = asyncio.Task[_Landed]


class _Opened:
    """An object whose index is known, and who reads on in it."""

    __slots__ = ("_readers", "flights", "index", "name", "store", "url")

    def __init__(self, url: str, name: str, store: ObjectStore, index: SegmentIndex) -> None:
        self.url = url
        self.name = name
        self.store = store
        self.index = index
        #: By the block that a reader has had last, how many blocks it is given at once, and when that was.
        self._readers: OrderedDict[int, tuple[int, int]] = OrderedDict()
        #: Blocks that are being read.
        self.flights: dict[int, _Flight] = {}

    def key(self, number: int) -> BlockKey:
        return BlockKey(self.url, self.name, number)

    def window(self, number: int, turn: int) -> int:
        """How many blocks are to be read for whoever wants this one: the more, the longer it has gone on."""
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
    """Of all streams of a broker."""

    def __init__(self, stores: ObjectStores, cache_bytes: int) -> None:
        self._stores = stores
        self.cache = BlockCache(cache_bytes)
        #: Blocks that were asked for.
        self._turn = 0
        self._open_stores: OrderedDict[tuple[str, tuple[tuple[str, str], ...]], ObjectStore] = OrderedDict()
        self._opened: OrderedDict[tuple[str, str], _Opened] = OrderedDict()
        self._requests = asyncio.Semaphore(_REQUESTS)
        self._tasks = TaskScope("segments")
        #: Bytes that stores gave, and reads that failed.
        self.read_bytes = 0
        self.failures = 0
        #: What the log was told already.
        self._told: dict[LedgerId, None] = {}

    def store(self, place: SegmentStore) -> ObjectStore:
        key = (place.url, tuple(sorted(place.options.items())))
        found = self._open_stores.pop(key, None) or self._stores.open(place.url, place.options)
        self._open_stores[key] = found
        if len(self._open_stores) > _STORES:
            self._open_stores.popitem(last=False)
        return found

    async def read(self, place: SegmentStore, span: Span, offset: int, max_bytes: int) -> list[Batch]:
        """Batches of a segment from the one that holds `offset` on, at least one. ObjectStoreError."""
        try:
            found = await self._read(place, span, offset, max_bytes)
        except ObjectStoreError as failed:
            self.failures += 1
            self._tell(span, failed)
            raise
        self._told.pop(span.ledger_id, None)
        return found

    def _tell(self, span: Span, failed: ObjectStoreError) -> None:
        """In the log, once until it can be read again: clients' protocols have no room for it."""
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
                if found:  # whoever goes on there hears of it
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
        """The offset of the first batch of the segment that was appended at or after the moment."""
        opened = await self._open(place, span)
        for number in range(opened.index.block_before(moment_ms), len(opened.index.blocks)):
            for batch in (await self._block(opened, number)).batches:
                if batch.append_ms >= moment_ms:
                    return batch.base_offset
        return None

    async def check(self, place: SegmentStore, span: Span, segment: Segment) -> None:
        """Read all of an object, and nothing of it from memory; ObjectStoreError unless it is whole."""
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
        """The object is gone."""
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
        """As the object's end says, if that fits what the chain knows. Looked at twice: bits flip on the way."""
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
            raise WireError("it is the copy of another ledger")
        return index

    # --- blocks -----------------------------------------------------------------------------------------

    def _share_bytes(self) -> int:
        """What one of those who read now may have of the cache for what is asked for at once."""
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
            await asyncio.wait([flight])  # it goes on for others if this reader leaves
            if flight.cancelled():
                raise ObjectStoreError(f"{opened.url} is read no more: the broker ends")
            found = _given(flight.result()).get(number) or await self._again(opened, number)
        if window > 1:
            self._fetch_ahead(opened, number, window)
        return found

    def _fetch_ahead(self, opened: _Opened, number: int, window: int) -> None:
        """So that the next range is on its way while the reader is busy with this one."""
        index, share_bytes = opened.index, self._share_bytes()
        wanted = number + 1
        last = min(len(index.blocks), wanted + max(1, window // 2))
        while wanted < last and (opened.key(wanted) in self.cache or wanted in opened.flights):
            wanted += 1
        is_soon = _cost(index, number + 1, wanted) <= share_bytes // 2
        if wanted < last and is_soon and _cost(index, wanted, wanted + 1) <= share_bytes:
            self._fetch(opened, wanted, window)

    def _fetch(self, opened: _Opened, number: int, most: int) -> _Flight:
        """From this block on up to so many, as far as nobody has read them."""
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
                found[at] = CachedBlock(bytes(piece), block.entries)  # not a view that keeps the whole range
                self.cache.add(opened.key(at), found[at])
        return found

    async def _again(self, opened: _Opened, number: int) -> CachedBlock:
        """A second look at a block that came damaged."""
        found = _given(await self._fetched(opened, number, number + 1))
        if number not in found:
            raise _damaged(opened.url, opened.name, opened.index, number)
        return found[number]


def _given(landed: _Landed) -> Mapping[int, CachedBlock]:
    if isinstance(landed, ObjectStoreError):
        raise landed
    return landed


def _reach(index: SegmentIndex, number: int, end: int) -> int:
    """Bytes from the beginning of a block to the end of the one before `end`."""
    last = index.blocks[end - 1]
    return last.position + last.length - index.blocks[number].position


def _cost(index: SegmentIndex, number: int, end: int) -> int:
    """What these blocks take of the cache."""
    return sum(cost_bytes(block.length, block.entries) for block in index.blocks[number:end])


def _cut(index: SegmentIndex, first: int, number: int, data: Buffer) -> memoryview:
    """A block's part of a range that begins with the block `first`."""
    block = index.blocks[number]
    start = block.position - index.blocks[first].position
    return memoryview(data)[start : start + block.length]


def _damaged(url: str, name: str, index: SegmentIndex, number: int) -> SegmentDamagedError:
    block = index.blocks[number]
    end = index.blocks[number + 1].base_offset if number + 1 < len(index.blocks) else index.end_offset
    return SegmentDamagedError(
        f"{url}/{name} is damaged at byte {block.position} (offsets {block.base_offset} to {end - 1})"
    )
