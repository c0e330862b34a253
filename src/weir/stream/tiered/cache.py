"""What was read from segments, in memory, bounded in bytes over all streams of a broker."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from weir.model.batch import Batch
from weir.model.ids import Buffer
from weir.wire.segment import decode_block

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
