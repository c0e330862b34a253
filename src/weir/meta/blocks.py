"""Keys in order, in blocks of neighbours: those in use as objects, all others packed (docs/adr/0027).

What is in use is bounded, so memory grows by some 20 bytes with each key that nobody uses, not by 700.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator
from typing import NamedTuple

from weir.meta.interfaces import Versioned
from weir.wire.metablock import pack_block, unpack_block

#: A block is cut in two when it has more keys, or more bytes in more than one key.
_MAX_KEYS = 64
_MAX_BYTES = 128 * 1024
#: Blocks that stay unpacked: some 45,000 keys.
_OPEN_BLOCKS = 1024


class BlockView(NamedTuple):
    """A block as it was at a moment: packed, or its items if it was in use."""

    first: str
    keys: int
    packed: bytes | None
    items: list[Versioned]


class _Block:
    __slots__ = ("bytes", "count", "items", "keys", "packed", "used")

    def __init__(self, count: int, packed: bytes | None = None) -> None:
        self.count = count
        #: What it was packed as, while that is still true.
        self.packed = packed
        #: Both empty unless it is open; in order, and of the same length.
        self.keys: list[str] = []
        self.items: list[Versioned] = []
        #: The values' bytes, while it is open.
        self.bytes = 0
        self.used = False

    def fill(self, items: list[Versioned]) -> None:
        self.items = items
        self.keys = [item.key for item in items]
        self.bytes = sum(len(item.value) for item in items)
        self.count = len(items)


class SortedBlocks:
    """A map from key to its value and version, in the order of keys. `leased`: keys whose block says so when it is
    packed; one that joins or leaves it must be set or removed here in the same step."""

    def __init__(
        self, leased: Container[str], *, open_blocks: int = _OPEN_BLOCKS, max_keys: int = _MAX_KEYS
    ) -> None:
        self._leased = leased
        self._limit = max(2, open_blocks)
        self._max_keys = max_keys
        #: A block with fewer keys joins the next, if that is small too.
        self._min_keys = max_keys // 8
        self._blocks: list[_Block] = []
        #: No key of a block is smaller than its first; the very first block has every smaller key, too.
        self._firsts: list[str] = []
        #: The open ones, in the order in which they were opened or given another chance.
        self._open: dict[_Block, None] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    # --- reading ------------------------------------------------------------------------------------------------

    def get(self, key: str) -> Versioned | None:
        if not self._blocks:
            return None
        block = self._opened(self._at(key))
        index = bisect_left(block.keys, key)
        return block.items[index] if index < len(block.keys) and block.keys[index] == key else None

    def under(self, prefix: str, *, after: str = "") -> Iterator[Versioned]:
        """Every key under the prefix that comes after another key, in order. Nothing may change meanwhile."""
        start = max(prefix, after)
        for at in range(self._at(start), len(self._blocks)):
            for item in self._items(self._blocks[at]):
                if item.key >= start and item.key != after:
                    if not item.key.startswith(prefix):
                        return
                    yield item

    def count(self, prefix: str) -> int:
        """How many keys are under the prefix; blocks that lie within it are not opened."""
        if not self._blocks:
            return 0
        found = 0
        for at in range(self._at(prefix), len(self._blocks)):
            block = self._blocks[at]
            following = self._firsts[at + 1] if at + 1 < len(self._firsts) else None
            if self._firsts[at] > prefix and not self._firsts[at].startswith(prefix):
                break
            inside = self._firsts[at].startswith(prefix) and following is not None and following.startswith(prefix)
            if inside:
                found += block.count
            else:
                found += sum(item.key.startswith(prefix) for item in self._items(block))
        return found

    def view(self) -> list[BlockView]:
        """Everything as it is now; what changes later does not show."""
        return [
            BlockView(first, block.count, block.packed, [] if block.packed is not None else list(block.items))
            for first, block in zip(self._firsts, self._blocks, strict=True)
        ]

    # --- changing -----------------------------------------------------------------------------------------------

    def set(self, item: Versioned) -> None:
        if not self._blocks:
            self._blocks, self._firsts = [_Block(0)], [item.key]
            self._open[self._blocks[0]] = None
        at = self._at(item.key)
        block = self._opened(at)
        index = bisect_left(block.keys, item.key)
        if index < len(block.keys) and block.keys[index] == item.key:
            block.bytes += len(item.value) - len(block.items[index].value)
            block.items[index] = item
        else:
            block.keys.insert(index, item.key)
            block.items.insert(index, item)
            block.bytes += len(item.value)
            block.count += 1
            self._count += 1
            self._firsts[at] = min(self._firsts[at], item.key)
        block.packed = None
        if block.count > self._max_keys or (block.bytes > _MAX_BYTES and block.count > 1):
            self._split(at)

    def remove(self, key: str) -> bool:
        """Whether it was there."""
        if not self._blocks:
            return False
        at = self._at(key)
        block = self._opened(at)
        index = bisect_left(block.keys, key)
        if index >= len(block.keys) or block.keys[index] != key:
            return False
        block.bytes -= len(block.items[index].value)
        del block.keys[index], block.items[index]
        block.count -= 1
        block.packed = None
        self._count -= 1
        if not block.count:
            self._drop(at)
        elif block.count < self._min_keys:
            self._join(at)
        return True

    def add_packed(self, first: str, packed: bytes, items: int) -> None:
        """Take over a block that follows all that is here."""
        self._blocks.append(_Block(items, packed))
        self._firsts.append(first)
        self._count += items

    def _at(self, key: str) -> int:
        """The block that has the key, if any has."""
        return max(0, bisect_right(self._firsts, key) - 1)

    def _split(self, at: int) -> None:
        block = self._blocks[at]
        # Keys that come in order leave full blocks behind, not half ones.
        in_order = at + 1 == len(self._blocks) and block.bytes <= _MAX_BYTES
        half = block.count - 1 if in_order else block.count // 2
        upper = _Block(0)
        upper.fill(block.items[half:])
        block.fill(block.items[:half])
        self._blocks.insert(at + 1, upper)
        self._firsts.insert(at + 1, upper.keys[0])
        self._hold(upper)

    def _join(self, at: int) -> None:
        """Take the next block in, if both are small."""
        if (
            at + 1 >= len(self._blocks)
            or self._blocks[at + 1].count + self._blocks[at].count > self._max_keys // 2
        ):
            return
        block, following = self._blocks[at], self._opened(at + 1)
        if block.bytes + following.bytes <= _MAX_BYTES:
            block.fill([*self._opened(at).items, *following.items])
            block.packed = None
            self._drop(at + 1)

    def _drop(self, at: int) -> None:
        self._open.pop(self._blocks[at], None)
        del self._blocks[at], self._firsts[at]

    # --- which are open -----------------------------------------------------------------------------------------

    def _items(self, block: _Block) -> list[Versioned]:
        """Its items, for a look that does not make it one in use."""
        return block.items if block in self._open else _unpacked(block)

    def _opened(self, at: int) -> _Block:
        block = self._blocks[at]
        if block not in self._open:
            block.fill(_unpacked(block))
            self._hold(block)
        block.used = True
        return block

    def _hold(self, block: _Block) -> None:
        self._open[block] = None
        block.used = True
        while len(self._open) > self._limit:
            oldest = next(iter(self._open))
            del self._open[oldest]
            if oldest is block or oldest.used:  # another chance, once
                oldest.used = oldest is block
                self._open[oldest] = None
                continue
            if oldest.packed is None:
                oldest.packed = pack_block(oldest.items, self._leased)
            oldest.keys, oldest.items = [], []


def _unpacked(block: _Block) -> list[Versioned]:
    if block.packed is None:
        return []
    return unpack_block(block.packed, Versioned)[0]
