"""Messages that are ready by their groups: of each group the first one, and no other while that is out.

A message is out while a consumer has it, or while it waits to be tried again: what fails holds up its group and
nothing else. One that has no group waits for nobody. A batch that has one key for all of its messages, as Pulsar's
have, is not taken apart: its clients acknowledge whole batches.
"""

from collections import deque
from collections.abc import Sequence

from pyroaring import BitMap64

from weir.broker.dispatch.ready import Returned, hold
from weir.model.bits import Run
from weir.wire.formats import Keys


class _Group:
    """`first`: what is ready or out, one message or those of a batch. `behind`: those that wait for it; `batches`:
    which of them come together, in order."""

    __slots__ = ("batches", "behind", "first", "key")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.first: set[int] = set()
        self.behind = BitMap64()
        self.batches: deque[Run] = deque()

    def next(self) -> list[int]:
        """Take what comes next of those that wait."""
        head = int(self.behind.min())
        while self.batches and self.batches[0][1] <= head:  # all of it is done with
            self.batches.popleft()
        if self.batches and self.batches[0][0] <= head:
            first, end = self.batches.popleft()
            taken = [offset for offset in range(first, end) if offset in self.behind]
        else:
            taken = [head]
        self.behind.difference_update(BitMap64(taken))
        return taken


class MessageGroups(Returned):
    """Messages are noted in the order of the log, each once; those of a group that are noted while one before them
    is ready or out wait. `most_groups`, `most_waiting`: beyond either it is full, and no more is looked at: what
    waits must fit into memory."""

    def __init__(self, most_groups: int, most_waiting: int) -> None:
        super().__init__()
        self._most_groups = most_groups
        self._most_waiting = most_waiting
        self._groups: dict[bytes, _Group] = {}
        #: By what is ready or out.
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
        elif isinstance(keys, bytes):
            self._note(keys, [base + index for index in indices], out)
        else:
            for index in indices:
                offset, key = base + index, keys[index]
                if key is not None:
                    self._note(key, [offset], out)
                elif offset not in out:
                    self._offsets.add(offset)

    def _note(self, key: bytes, offsets: list[int], out: BitMap64) -> None:
        group = self._groups.get(key)
        ready = [offset for offset in offsets if offset not in out] if out else offsets
        if group is None:
            group = self._groups[key] = _Group(key)
            self._begin(group, offsets, ready)
        elif ready:
            group.behind.update(ready)
            self._behind.update(ready)
            if len(offsets) > 1:
                group.batches.append((offsets[0], offsets[-1] + 1))

    def settled(self, first: int, end: int) -> bool:
        """Those in [first, end) are done with, wherever they were; whether others are ready because of that."""
        self._offsets.remove_range(first, end)
        if self._behind and self._behind.max() >= first and self._behind.next_set_bit(first) < end:
            self._remove_behind(first, end)
        if end - first > len(self._by_first):
            done = [offset for offset in self._by_first if first <= offset < end]
        else:
            done = [offset for offset in range(first, end) if offset in self._by_first]
        went_on = False
        for offset in done:
            group = self._by_first.pop(offset)
            group.first.discard(offset)
            if not group.first:
                went_on |= self._go_on(group)
        return went_on

    # --- as `Ready`; what comes back is the first of its group still ---------------------------------------

    def drop(self, first: int, end: int) -> None:
        self.settled(first, end)

    def empty(self, kept: BitMap64) -> None:
        """All that is ready is done with, and what waits behind; `kept` is out."""
        self._offsets.clear()
        self._behind.clear()
        for group in list(self._groups.values()):
            group.behind.clear()
            group.batches.clear()
            for offset in sorted(group.first):
                if offset not in kept:
                    group.first.discard(offset)
                    del self._by_first[offset]
            if not group.first:
                del self._groups[group.key]

    def clear(self) -> None:
        self._offsets.clear()
        self._behind.clear()
        self._groups.clear()
        self._by_first.clear()

    # --- groups -----------------------------------------------------------------------------------------

    def _begin(self, group: _Group, first: Sequence[int], ready: Sequence[int]) -> None:
        group.first.update(first)
        for offset in first:
            self._by_first[offset] = group
        self._offsets.update(ready)

    def _go_on(self, group: _Group) -> bool:
        """What was first is done with: whether there is more."""
        if not group.behind:
            del self._groups[group.key]
            return False
        taken = group.next()
        self._behind.difference_update(BitMap64(taken))
        self._begin(group, taken, taken)
        return True

    def _remove_behind(self, first: int, end: int) -> None:
        gone = BitMap64(self._behind)
        gone.remove_range(0, first)
        gone.remove_range(end, max(end, gone.max() + 1) if gone else end)
        self._behind -= gone
        for group in self._groups.values():
            if group.behind and not group.behind.isdisjoint(gone):
                group.behind -= gone
