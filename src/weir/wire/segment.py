"""A segment: the entries of a closed ledger as one object, as they were written, in blocks that are read alone.

    magic 8 | ledger id u64
    blocks, one after the other: each entry as length u32 | payload
    index: for each block position u64 | length u32 | entries u32 | base offset u64 | append ms i64 | crc32c u32
    end: ledger id u64 | first offset u64 | end offset u64 | blocks u32 | crc32c of index and end so far u32 |
    magic 8

`base offset` and `append ms` are those of the block's first batch.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from weir.model.batch import Batch
from weir.model.errors import WireError
from weir.model.ids import Buffer, LedgerId
from weir.wire.batch import decode_batch
from weir.wire.checksum import crc32c

_MAGIC = b"WEIRSEG1"
_END_MAGIC = b"1GESRIEW"
_HEAD = Struct("<8sQ")
_LENGTH = Struct("<I")
_BLOCK = Struct("<QIIQqI")
_END = Struct("<QQQI")
_CRC = Struct("<I")

END_BYTES = _END.size + _CRC.size + len(_END_MAGIC)
#: A block ends with the entry that reaches this. What is damaged costs a block; one that is wanted is read alone.
BLOCK_BYTES = 256 * 1024
#: Or with so many: whoever reads looks at each of them without a pause.
BLOCK_ENTRIES = 1024
#: A reader takes no more than this for an index: a million blocks are 256 GiB.
_MAX_BLOCKS = 1 << 20


class Block(NamedTuple):
    """Where a block lies in its object, and what it begins with."""

    position: int
    length: int
    entries: int
    base_offset: int
    append_ms: int
    crc: int


class SegmentIndex(NamedTuple):
    """What an object has, as its end says."""

    ledger_id: LedgerId
    first_offset: int
    end_offset: int
    blocks: tuple[Block, ...]

    def block_at(self, offset: int) -> int:
        """The block that has the offset, which must lie in the segment."""
        return max(0, bisect_right(self.blocks, offset, key=lambda block: block.base_offset) - 1)

    def block_before(self, moment_ms: int) -> int:
        """The last block whose first batch was appended before the moment; the first one if none was."""
        low, high = 0, len(self.blocks)
        while low < high:
            middle = (low + high) // 2
            if self.blocks[middle].append_ms < moment_ms:
                low = middle + 1
            else:
                high = middle
        return max(0, low - 1)


class SegmentEncoder:
    """Entries in, bytes out; no more than a block is in memory."""

    def __init__(self, ledger_id: LedgerId, first_offset: int) -> None:
        self._ledger_id = ledger_id
        self._first_offset = self._end_offset = first_offset
        self._blocks: list[Block] = []
        self._open: list[Buffer] = []
        self._open_bytes = 0
        self._open_first: Batch | None = None
        self.size_bytes = 0

    @property
    def end_offset(self) -> int:
        return self._end_offset

    def begin(self) -> list[Buffer]:
        return self._out([_HEAD.pack(_MAGIC, self._ledger_id)])

    def add(self, payload: Buffer) -> list[Buffer]:
        """One more entry; what there is to be written now. WireError if it does not follow the one before."""
        batch = decode_batch(payload)
        if batch.base_offset < self._end_offset:
            raise WireError(
                f"entry {batch.base_offset} of ledger {self._ledger_id} does not follow the one before"
            )
        if self._open_first is None:
            self._open_first = batch
        self._open += (_LENGTH.pack(len(payload)), payload)
        self._open_bytes += _LENGTH.size + len(payload)
        self._end_offset = batch.end_offset
        full = self._open_bytes >= BLOCK_BYTES or len(self._open) >= 2 * BLOCK_ENTRIES
        return self._close_block() if full else []

    def end(self) -> list[Buffer]:
        """The rest."""
        out = self._close_block()
        index = b"".join(_BLOCK.pack(*block) for block in self._blocks)
        end = _END.pack(self._ledger_id, self._first_offset, self._end_offset, len(self._blocks))
        return out + self._out([index, end, _CRC.pack(crc32c(index + end)), _END_MAGIC])

    def _close_block(self) -> list[Buffer]:
        first = self._open_first
        if first is None:
            return []
        data = b"".join(self._open)
        place = Block(
            self.size_bytes, len(data), len(self._open) // 2, first.base_offset, first.append_ms, crc32c(data)
        )
        self._blocks.append(place)
        self._open, self._open_bytes, self._open_first = [], 0, None
        return self._out([data])

    def _out(self, pieces: list[Buffer]) -> list[Buffer]:
        self.size_bytes += sum(map(len, pieces))
        return pieces


def index_bytes(end: Buffer) -> int:
    """How many bytes index and end have together, as the last `END_BYTES` of the object say; WireError."""
    if len(end) != END_BYTES or bytes(end[-len(_END_MAGIC) :]) != _END_MAGIC:
        raise WireError("it does not end as a segment does")
    blocks = _END.unpack_from(end)[3]
    if blocks > _MAX_BLOCKS:
        raise WireError(f"a segment of {blocks} blocks")
    return int(blocks) * _BLOCK.size + END_BYTES


def decode_index(data: Buffer, size_bytes: int) -> SegmentIndex:
    """The index and the end of an object of this size; WireError."""
    view = memoryview(data)
    if len(view) < END_BYTES or len(view) != index_bytes(view[-END_BYTES:]):
        raise WireError("a segment's index is cut short")
    sealed = len(view) - END_BYTES + _END.size
    if crc32c(view[:sealed]) != _CRC.unpack_from(view, sealed)[0]:
        raise WireError("a segment's index is damaged")
    ledger_id, first, end, count = _END.unpack_from(view, sealed - _END.size)
    blocks = tuple(Block(*fields) for fields in _BLOCK.iter_unpack(view[: count * _BLOCK.size]))
    position = _HEAD.size
    for block in blocks:
        if block.position != position:
            raise WireError("a segment's blocks do not follow each other")
        position += block.length
    if position + len(view) != size_bytes:
        raise WireError(f"a segment of {position + len(view)} bytes has {size_bytes}")
    return SegmentIndex(LedgerId(ledger_id), first, end, blocks)


def is_whole(block: Block, data: Buffer) -> bool:
    return len(data) == block.length and crc32c(data) == block.crc


def entries_of(data: Buffer) -> Iterator[memoryview]:
    """The payloads of a block that is whole; WireError."""
    view, at = memoryview(data), 0
    while at < len(view):
        if at + _LENGTH.size > len(view):
            raise WireError("a block ends within an entry's length")
        length = _LENGTH.unpack_from(view, at)[0]
        at += _LENGTH.size
        if at + length > len(view):
            raise WireError("a block ends within an entry")
        yield view[at : at + length]
        at += length


def decode_block(data: Buffer) -> Sequence[Batch]:
    """The batches of a block that is whole; they share its bytes."""
    return [decode_batch(payload) for payload in entries_of(data)]
