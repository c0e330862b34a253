"""The metadata store as a state machine: keys, versions, history and lease membership; no clock, no I/O.

The in-memory and the embedded driver both run it. Every change gets the next revision, so the history is an array
indexed by revision, and recovery can check a log for gaps.

Keys are in order, in blocks of neighbors: blocks in use as objects, all others packed (docs/adr/0027). The number
of unpacked blocks is bounded, so each unused key costs some 20 bytes of memory, not 700.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator
from itertools import islice
from typing import NamedTuple

from weir.meta.interfaces import ABSENT, MAX_KEY_BYTES, MAX_VALUE_BYTES, Change, Versioned
from weir.model.check import check
from weir.model.errors import LeaseExpiredError, MetaConflictError, MetaError
from weir.wire.metadata_log import pack_block, unpack_block

#: A block above this number of keys, or above this size with more than one key, splits in two.
_MAX_KEYS = 64
_MAX_BYTES = 128 * 1024
#: Blocks that stay unpacked: some 45,000 keys.
_OPEN_BLOCKS = 1024


class BlockView(NamedTuple):
    """A block at some moment: packed, or its items if it was in use."""

    first: str
    keys: int
    packed: bytes | None
    items: list[Versioned]


class _Block:
    __slots__ = ("bytes", "count", "items", "keys", "packed", "used")

    def __init__(self, count: int, packed: bytes | None = None) -> None:
        self.count = count
        #: The packed form, while it is current.
        self.packed = packed
        #: Empty in a packed block; sorted by key, and of the same length.
        self.keys: list[str] = []
        self.items: list[Versioned] = []
        #: The size of the values, in an unpacked block.
        self.bytes = 0
        self.used = False

    def fill(self, items: list[Versioned]) -> None:
        self.items = items
        self.keys = [item.key for item in items]
        self.bytes = sum(len(item.value) for item in items)
        self.count = len(items)


class SortedBlocks:
    """A sorted map from key to value and version. `leased`: the leased keys, for the packed form of a block; when
    a key becomes leased or stops being leased, the caller must set or remove it here in the same step."""

    def __init__(
        self, leased: Container[str], *, open_blocks: int = _OPEN_BLOCKS, max_keys: int = _MAX_KEYS
    ) -> None:
        self._leased = leased
        self._limit = max(2, open_blocks)
        self._max_keys = max_keys
        #: A block with fewer keys merges with the next one, if that is small too.
        self._min_keys = max_keys // 8
        self._blocks: list[_Block] = []
        #: The first key of each block; the very first block also covers every smaller key.
        self._firsts: list[str] = []
        #: The unpacked blocks, for a second-chance eviction.
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
        """Every key under the prefix after another key, in order. The map must not change during the iteration."""
        start = max(prefix, after)
        for at in range(self._at(start), len(self._blocks)):
            for item in self._items(self._blocks[at]):
                if item.key >= start and item.key != after:
                    if not item.key.startswith(prefix):
                        return
                    yield item

    def count(self, prefix: str) -> int:
        """The number of keys under the prefix; does not unpack blocks that lie within it."""
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
        """The current content; later changes do not affect it."""
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
        """Remove a key; returns whether it existed."""
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
        """Append a packed block; its keys must follow all others."""
        self._blocks.append(_Block(items, packed))
        self._firsts.append(first)
        self._count += items

    def _at(self, key: str) -> int:
        """The block that covers the key."""
        return max(0, bisect_right(self._firsts, key) - 1)

    def _split(self, at: int) -> None:
        block = self._blocks[at]
        # Keys inserted in order leave full blocks, not half-full ones.
        in_order = at + 1 == len(self._blocks) and block.bytes <= _MAX_BYTES
        half = block.count - 1 if in_order else block.count // 2
        upper = _Block(0)
        upper.fill(block.items[half:])
        block.fill(block.items[:half])
        self._blocks.insert(at + 1, upper)
        self._firsts.insert(at + 1, upper.keys[0])
        self._hold(upper)

    def _join(self, at: int) -> None:
        """Merge with the next block, if both are small."""
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
        """The items of a block, for a read that does not count as use."""
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
            if oldest is block or oldest.used:  # second chance, once
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


#: `lease_id` of a key without a lease.
NO_LEASE = 0


def check_entry(key: str, value: bytes) -> None:
    """Check a key and a value before a driver stores them; MetaError if they are invalid."""
    try:
        key_bytes = len(key.encode())
    except UnicodeEncodeError as bad:
        raise MetaError(f"the key {key!r} is not text that can be stored") from bad
    if not 0 < key_bytes <= MAX_KEY_BYTES:
        raise MetaError(f"a key has 1 to {MAX_KEY_BYTES} bytes, not {key_bytes}")
    if len(value) > MAX_VALUE_BYTES:
        raise MetaError(f"the value of {key} has {len(value)} bytes, the limit is {MAX_VALUE_BYTES}")


class KeySpace:
    """Every key, the recent changes, and the keys of each lease."""

    def __init__(self, *, revision: int = 0, history: int = 16_384, history_bytes: int = 64 * 1024 * 1024) -> None:
        """Keeps at least `history` changes, unless they exceed half of `history_bytes`."""
        self._revision = revision
        self._lease_of: dict[str, int] = {}
        self._items = SortedBlocks(self._lease_of)
        self._limit = history
        self._byte_limit = history_bytes
        self._history_bytes = 0
        # _history[i] is the change that made revision _floor + 1 + i.
        self._history: list[Change] = []
        self._floor = revision
        self._leases: dict[int, dict[str, None]] = {}

    @property
    def revision(self) -> int:
        """The revision of the last change."""
        return self._revision

    def __len__(self) -> int:
        return len(self._items)

    # --- reading ----------------------------------------------------------------------------------------------

    def get(self, key: str) -> Versioned | None:
        return self._items.get(key)

    def under(self, prefix: str) -> list[Versioned]:
        """Every key under the prefix, sorted."""
        return list(self._items.under(prefix))

    def page(self, prefix: str, *, after: str, limit: int) -> list[Versioned]:
        """The first `limit` keys under the prefix after another key."""
        return list(islice(self._items.under(prefix, after=after), limit))

    def count(self, prefix: str) -> int:
        return self._items.count(prefix)

    def view(self) -> tuple[list[BlockView], dict[str, None]]:
        """The current content, and the leased keys."""
        return self._items.view(), dict.fromkeys(self._lease_of)

    def lease_of(self, key: str) -> int:
        """The lease of the key, or NO_LEASE."""
        return self._lease_of.get(key, NO_LEASE)

    def keys_at(self, prefix: str, revision: int) -> list[str] | None:
        """The keys at a revision, and maybe some created later; None if the history does not reach back that
        far."""
        changes = self.changes(prefix, after=revision, upto=self._revision)
        if changes is None:
            return None
        keys = {item.key: None for item in self.under(prefix) if item.version <= revision}
        keys.update(dict.fromkeys(change.key for change in changes))
        return list(keys)

    def changes(self, prefix: str, *, after: int, upto: int) -> list[Change] | None:
        """The changes under the prefix with revisions in (after, upto]; None if the history lacks some."""
        if after < self._floor:
            return None
        recent = self._history[after - self._floor : max(0, upto - self._floor)]
        return [change for change in recent if change.key.startswith(prefix)]

    # --- changing ---------------------------------------------------------------------------------------------

    def put(self, key: str, value: bytes, *, expect: int | None = None, lease_id: int = NO_LEASE) -> Change:
        """Set the key; on an error of `MetaStore.put`, change nothing."""
        check_entry(key, value)
        self._require(key, expect)
        if lease_id != NO_LEASE and lease_id not in self._leases:
            raise LeaseExpiredError(f"lease {lease_id} has expired; {key} was not put")
        change = Change(key, value, self._revision + 1)
        self.apply(change, lease_id)
        return change

    def delete(self, key: str, *, expect: int | None = None) -> Change | None:
        """Delete the key, with the errors of `MetaStore.delete`; None if the key did not exist."""
        self._require(key, expect)
        if self._items.get(key) is None:
            return None
        change = Change(key, None, self._revision + 1)
        self.apply(change)
        return change

    def apply(self, change: Change, lease_id: int = NO_LEASE) -> None:
        """Apply a decided change; replay of a log uses this too."""
        check(change.version == self._revision + 1, f"change {change.version} follows {self._revision}")
        self._revision = change.version
        self._set(change.key, change.value, change.version, lease_id)
        self._history.append(change)
        self._history_bytes += _size(change)
        if len(self._history) >= 2 * self._limit or self._history_bytes > self._byte_limit:
            self._forget()

    def _forget(self) -> None:
        """Drop the older half of the history: in halves, which costs little per change."""
        dropped = max(0, len(self._history) - self._limit)
        self._history_bytes = sum(map(_size, self._history[dropped:]))
        while self._history_bytes > self._byte_limit // 2 and dropped < len(self._history):
            self._history_bytes -= _size(self._history[dropped])
            dropped += 1
        del self._history[:dropped]
        self._floor += dropped

    def load(self, item: Versioned, lease_id: int = NO_LEASE) -> None:
        """Add a key from a snapshot; its version must not exceed the initial revision."""
        check(item.version <= self._floor, "a snapshot has no versions above its revision")
        self._set(item.key, item.value, item.version, lease_id)

    def load_block(self, first: str, packed: bytes, *, items: int, leased: list[str], holder: int) -> None:
        """Add a packed block of keys from a snapshot, in order; `holder` becomes the lease of the leased ones."""
        self._items.add_packed(first, packed, items)
        for key in leased:
            self._lease_of[key] = holder
            self._leases.setdefault(holder, {})[key] = None

    def _set(self, key: str, value: bytes | None, version: int, lease_id: int) -> None:
        held_by = self._lease_of.pop(key, NO_LEASE)
        if held_by != NO_LEASE:
            self._leases[held_by].pop(key, None)
        if value is None:
            self._items.remove(key)
            return
        if lease_id != NO_LEASE:  # before the block that has the key may be packed
            self._lease_of[key] = lease_id
            self._leases.setdefault(lease_id, {})[key] = None
        self._items.set(Versioned(key, value, version))

    def _require(self, key: str, expect: int | None) -> None:
        if expect is None:
            return
        item = self._items.get(key)
        version = ABSENT if item is None else item.version
        if version != expect:
            raise MetaConflictError(f"{key} is at version {version}, not {expect}")

    # --- leases -----------------------------------------------------------------------------------------------

    def grant(self, lease_id: int) -> None:
        """Add a lease, so that keys may be put under it."""
        check(lease_id not in self._leases and lease_id != NO_LEASE, f"lease {lease_id} is new")
        self._leases[lease_id] = {}

    def drop_lease(self, lease_id: int) -> list[Change]:
        """Remove the lease and delete its keys; each deletion is a separate change."""
        keys = list(self._leases.get(lease_id, {}))
        changes = [change for key in keys if (change := self.delete(key)) is not None]
        self._leases.pop(lease_id, None)
        return changes

    def lease_ids(self) -> list[int]:
        """Every lease that may have keys."""
        return list(self._leases)


def _size(change: Change) -> int:
    return len(change.key) + len(change.value or b"")
