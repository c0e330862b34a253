"""Messages that are ready by their groups: of each group the first one, and no other while that is out.

A message is out while a consumer has it, or while it waits to be tried again: what fails holds up its group and
nothing else. One that has no group waits for nobody.
"""

from collections.abc import Sequence

from pyroaring import BitMap64

from weir.broker.dispatch.ready import Returned, hold
from weir.wire.formats import Keys


class _Group:
    """`first`: the one that is ready or out. `behind`: those that wait for it."""

    __slots__ = ("behind", "first", "key")

    def __init__(self, key: bytes, first: int) -> None:
        self.key = key
        self.first = first
        self.behind = BitMap64()


class MessageGroups(Returned):
    """Messages are noted in the order of the log, each once; those of a group that are noted while
    one before them is ready or out wait. `most_groups`, `most_waiting`: beyond either it is full, and no more is
    looked at: what waits must fit into memory."""

    def __init__(self, most_groups: int, most_waiting: int) -> None:
        self._most_groups = most_groups
        self._most_waiting = most_waiting
        super().__init__()
        self._groups: dict[bytes, _Group] = {}
        #: By the offset of the first.
        self._by_first: dict[int, _Group] = {}
        self._behind = BitMap64()

    def is_full(self) -> bool:
        return len(self._groups) >= self._most_groups or len(self._behind) >= self._most_waiting

    @property
    def waiting(self) -> int:
        """How many wait for one before them."""
        return len(self._behind)

    def count_ready(self) -> int:
        return len(self._offsets)

    def note(self, base: int, indices: Sequence[int], keys: Keys, out: BitMap64) -> None:
        """Messages of a batch that were never noted. `out`: what is not ready, and yet to come back or be
        settled."""
        if keys is None:
            fresh = [index for index in indices if base + index not in out] if out else indices
            if fresh:
                hold(self._offsets, base, fresh)
            return
        all_keys: Sequence[bytes | None] | None = None if isinstance(keys, bytes) else keys
        one = keys if isinstance(keys, bytes) else None
        for index in indices:
            offset = base + index
            key = one if all_keys is None else all_keys[index]
            group = None if key is None else self._groups.get(key)
            if group is not None:
                if offset not in out:
                    group.behind.add(offset)
                    self._behind.add(offset)
                continue
            if key is not None:
                self._begin(_Group(key, offset))
            if offset not in out:
                self._offsets.add(offset)

    def settled(self, first: int, end: int) -> bool:
        """Those in [first, end) are done with, wherever they were; whether others are ready because of that."""
        self._offsets.remove_range(first, end)
        if self._behind and self._behind.max() >= first and self._behind.next_set_bit(first) < end:
            self._remove_behind(first, end)
        if end - first > len(self._by_first):
            done = [offset for offset in self._by_first if first <= offset < end]
        else:
            done = [offset for offset in range(first, end) if offset in self._by_first]
        return bool([offset for offset in done if self._go_on(self._by_first[offset])])

    # --- as `Ready`; what comes back is the first of its group still ---------------------------------------

    def drop(self, first: int, end: int) -> None:
        self.settled(first, end)

    def empty(self, kept: BitMap64) -> None:
        """All that is ready is done with, and what waits behind; `kept` is out."""
        self._offsets.clear()
        self._behind.clear()
        for group in list(self._groups.values()):
            group.behind.clear()
            if group.first not in kept:
                self._end(group)

    def clear(self) -> None:
        self._offsets.clear()
        self._behind.clear()
        self._groups.clear()
        self._by_first.clear()

    # --- groups -----------------------------------------------------------------------------------------

    def _begin(self, group: _Group) -> None:
        self._groups[group.key] = self._by_first[group.first] = group

    def _end(self, group: _Group) -> None:
        del self._groups[group.key]
        del self._by_first[group.first]

    def _go_on(self, group: _Group) -> bool:
        """Its first is done with: whether there is another."""
        if not group.behind:
            self._end(group)
            return False
        del self._by_first[group.first]
        group.first = int(group.behind.min())
        group.behind.remove(group.first)
        self._behind.remove(group.first)
        self._by_first[group.first] = group
        self._offsets.add(group.first)
        return True

    def _remove_behind(self, first: int, end: int) -> None:
        gone = BitMap64(self._behind)
        gone.remove_range(0, first)
        gone.remove_range(end, max(end, gone.max() + 1) if gone else end)
        self._behind -= gone
        for group in self._groups.values():
            if group.behind and not group.behind.isdisjoint(gone):
                group.behind -= gone
