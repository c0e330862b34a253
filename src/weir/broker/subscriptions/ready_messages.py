"""Sets of messages that are ready for delivery: returned messages, priority levels, and message groups.

Of each message group only the first message is ready, and no other while that message is out. A message is out
while a consumer has it, or while it waits for its redelivery: a failed message blocks its group and no other. A
message without a group is never blocked. A batch with one key for all of its messages, as in Pulsar, is not split:
Pulsar clients acknowledge whole batches.

In a turn (`begin_turn`) a consumer may get several messages of a group at once. Returned messages of a turn wait
until all messages of the turn are returned or settled: then the group is in order again.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from typing import Protocol

from pyroaring import BitMap64

from weir.model.batch import Run
from weir.wire.formats.format import Keys


class Ready(Protocol):
    """Ready messages in delivery order: `first`, and `within` for more of the same batch. Delivery removes
    them."""

    def __bool__(self) -> bool: ...

    def first(self) -> int: ...

    def within(self, end: int, most: int) -> Sequence[int]:
        """At most `most` offsets from `first` on, of the level of `first`, before `end`; ascending."""

    def add(self, offsets: BitMap64) -> None: ...

    def remove(self, offsets: Sequence[int]) -> None:
        """Remove offsets that `within` returned: they are delivered."""

    def drop(self, first: int, end: int) -> None:
        """Forget the offsets in [first, end), ready or not: they are settled."""

    def empty(self, kept: BitMap64) -> None:
        """Forget all ready messages; `kept` holds messages that are not ready and may be returned."""

    def clear(self) -> None: ...


class Returned:
    """Returned messages, the lowest offset first."""

    def __init__(self) -> None:
        self._offsets = BitMap64()

    def __bool__(self) -> bool:
        return bool(self._offsets)

    def first(self) -> int:
        return int(self._offsets.min())

    def within(self, end: int, most: int) -> Sequence[int]:
        return _some(self._offsets, end, most)

    def add(self, offsets: BitMap64) -> None:
        self._offsets |= offsets

    def remove(self, offsets: Sequence[int]) -> None:
        _remove(self._offsets, offsets)

    def drop(self, first: int, end: int) -> None:
        if self._offsets:
            self._offsets.remove_range(first, end)

    def empty(self, kept: BitMap64) -> None:
        self._offsets.clear()

    def clear(self) -> None:
        self._offsets.clear()


class ReadyByPriority:
    """Ready messages by priority level: the highest level first, and the lowest offset first within a level. To
    avoid starvation, a lower level delivers one message after `passed` messages of higher levels since its last
    one, or after `longest_ms`; 0: no such bound."""

    def __init__(self, levels: int, passed: int = 0, longest_ms: int = 0, now_ms: Callable[[], int] = int) -> None:
        self._ready = [BitMap64() for _ in range(levels + 1)]
        #: Messages with a level above 0, ready or not: a message keeps its level for redeliveries.
        self._marked = [BitMap64() for _ in range(levels + 1)]
        self._bound = passed
        self._longest_ms = longest_ms
        self._now_ms = now_ms
        #: Of each level: messages of higher levels delivered since it became non-empty, and since when it is.
        self._passed = [0] * (levels + 1)
        self._since_ms = [0] * (levels + 1)
        #: The level that is next.
        self._turn = 0
        #: How many messages of that level may be delivered before the next choice; None: all of them.
        self._room: int | None = None

    @property
    def levels(self) -> int:
        return len(self._ready) - 1

    def __bool__(self) -> bool:
        return any(self._ready)

    def first(self) -> int:
        self._choose()
        return int(self._ready[self._turn].min())

    def _choose(self) -> None:
        ready = self._ready
        top = next(level for level in range(len(ready) - 1, -1, -1) if ready[level])
        self._turn, self._room = top, None
        if not top or not (self._bound or self._longest_ms):
            return
        waiting = [level for level in range(top) if ready[level]]
        if not waiting:
            return
        late = self._now_ms() - self._longest_ms if self._longest_ms else None
        for level in waiting:
            if (self._bound and self._passed[level] >= self._bound) or (
                late is not None and self._since_ms[level] <= late
            ):
                self._turn, self._room = level, 1
                return
        if self._bound:
            self._room = min(self._bound - self._passed[level] for level in waiting)

    def within(self, end: int, most: int) -> Sequence[int]:
        most = most if self._room is None else min(most, self._room)
        return _some(self._ready[self._turn], end, most)

    def _now_waits(self, level: int) -> None:
        """Start the starvation bounds of a level that is about to become non-empty."""
        self._passed[level] = 0
        if self._longest_ms:
            self._since_ms[level] = self._now_ms()

    def note(self, base: int, indices: Sequence[int], levels: Sequence[int] | None) -> None:
        """Add messages of a batch that were never delivered."""
        if levels is None:
            if not self._ready[0]:
                self._now_waits(0)
            hold(self._ready[0], base, indices)
            return
        most = self.levels
        for index in indices:
            level = min(levels[index], most)
            if not self._ready[level]:
                self._now_waits(level)
            self._ready[level].add(base + index)
            if level:
                self._marked[level].add(base + index)

    def add(self, offsets: BitMap64) -> None:
        rest = offsets
        for level in range(1, len(self._ready)):
            mine = self._marked[level] & rest
            if mine:
                self._add(level, mine)
                rest = rest - mine
        self._add(0, rest)

    def _add(self, level: int, offsets: BitMap64) -> None:
        if offsets and not self._ready[level]:
            self._now_waits(level)
        self._ready[level] |= offsets

    def remove(self, offsets: Sequence[int]) -> None:
        _remove(self._ready[self._turn], offsets)
        if self._bound or self._longest_ms:
            for level in range(self._turn):
                self._passed[level] += len(offsets)
            self._now_waits(self._turn)

    def unmark(self, first: int, end: int) -> None:
        """Forget the levels of the settled offsets in [first, end), none of which is ready."""
        for offsets in self._marked:
            if offsets:
                offsets.remove_range(first, end)

    def drop(self, first: int, end: int) -> None:
        for offsets in (*self._ready, *self._marked):
            if offsets:
                offsets.remove_range(first, end)

    def empty(self, kept: BitMap64) -> None:
        for offsets in self._ready:
            offsets.clear()
        for offsets in self._marked:
            offsets.intersection_update(kept)

    def clear(self) -> None:
        for offsets in (*self._ready, *self._marked):
            offsets.clear()


def hold(offsets: BitMap64, base: int, indices: Sequence[int]) -> None:
    """Add ascending messages of a batch to a set."""
    first, last = indices[0], indices[-1]
    if last - first + 1 == len(indices):
        offsets.add_range(base + first, base + last + 1)
    else:
        offsets.update([base + index for index in indices])


def _some(offsets: BitMap64, end: int, most: int) -> Sequence[int]:
    first: int = offsets.min()
    stop = min(end, first + most)
    if stop <= first:
        return ()
    if offsets.contains_range(first, stop):
        return range(first, stop)
    return list(islice(takewhile(end.__gt__, offsets.iter_equal_or_larger(first)), most))


def _remove(offsets: BitMap64, these: Sequence[int]) -> None:
    first, last = these[0], these[-1]
    if last - first + 1 == len(these):
        offsets.remove_range(first, last + 1)
    else:
        offsets.difference_update(BitMap64(these))


class _Group:
    """`first`: messages that are ready or out: one message, or those of a batch or of a turn. `behind`: waiting
    messages; `batches`: which of them belong to one batch, in order. `in_turn`: whether `first` was delivered in a
    turn; `back`: messages of that turn that were returned."""

    __slots__ = ("back", "batches", "behind", "first", "in_turn", "key")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.first: set[int] = set()
        self.behind = BitMap64()
        self.batches: deque[Run] = deque()
        self.in_turn = False
        self.back: set[int] = set()

    def next(self) -> list[int]:
        """Remove and return the next waiting message, or messages of one batch."""
        head = int(self.behind.min())
        while self.batches and self.batches[0][1] <= head:  # all messages of this batch are settled
            self.batches.popleft()
        if self.batches and self.batches[0][0] <= head:
            first, end = self.batches.popleft()
            taken = [offset for offset in range(first, end) if offset in self.behind]
        else:
            taken = [head]
        self.behind.difference_update(BitMap64(taken))
        return taken


class MessageGroups(Returned):
    """`note` adds each message once, in log order; a message waits while an earlier one of its group is ready or
    out. `most_groups`, `most_waiting`: limits beyond which `is_full` is true and the scan pauses, since waiting
    messages must fit into memory."""

    def __init__(self, most_groups: int, most_waiting: int) -> None:
        super().__init__()
        self._most_groups = most_groups
        self._most_waiting = most_waiting
        self._groups: dict[bytes, _Group] = {}
        #: Groups by the offsets that are ready or out.
        self._by_first: dict[int, _Group] = {}
        self._behind = BitMap64()
        #: Waiting messages that are aside, and become ready only after `add`.
        self._absent = BitMap64()
        self._turn = False
        #: By key: groups of which the present turn delivered a message.
        self._dealt: dict[bytes, _Group] = {}

    def is_full(self) -> bool:
        return len(self._groups) >= self._most_groups or len(self._behind) >= self._most_waiting

    @property
    def waiting(self) -> int:
        """How many messages wait behind another one of their group."""
        return len(self._behind)

    def count_ready(self) -> int:
        return len(self._offsets)

    def note(self, base: int, indices: Sequence[int], keys: Keys, out: BitMap64) -> None:
        """Add messages of a batch for the first time. `out`: messages that are aside, and will be returned or
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
        else:
            group.behind.update(offsets)
            self._behind.update(offsets)
            if len(ready) < len(offsets):
                self._absent.update([offset for offset in offsets if offset in out])
            if len(offsets) > 1:
                group.batches.append((offsets[0], offsets[-1] + 1))

    def settled(self, first: int, end: int) -> bool:
        """Forget the settled offsets in [first, end), in any state; return whether that made others ready."""
        self._offsets.remove_range(first, end)
        if self._behind and self._behind.max() >= first and self._behind.next_set_bit(first) < end:
            self._remove_behind(first, end)
        if end - first > len(self._by_first):
            done = [offset for offset in self._by_first if first <= offset < end]
        else:
            done = [offset for offset in range(first, end) if offset in self._by_first]
        went_on = False
        turns: list[_Group] = []
        for offset in done:
            group = self._by_first.pop(offset)
            group.first.discard(offset)
            group.back.discard(offset)
            if not group.first:
                went_on |= self._go_on(group)
            elif group.in_turn:
                turns.append(group)
        for group in turns:
            went_on |= self._end_if_back(group)
        return went_on

    # --- turns ------------------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """Start a turn: until `end_turn` one consumer gets all removed messages, and the next message of a group
        is ready as soon as the one before it is removed."""
        self._turn = True

    def end_turn(self) -> None:
        """End the turn: the undelivered messages of its groups wait behind the delivered ones."""
        self._turn = False
        for group in self._dealt.values():
            left = [offset for offset in group.first if offset in self._offsets]
            if len(left) < len(group.first):
                self._wait(group, left)
            else:  # the delivered ones are settled
                group.in_turn = False
        self._dealt.clear()

    def _deal(self, group: _Group) -> None:
        """Make the next message of the group ready, since the consumer has those before it."""
        group.in_turn = True
        self._dealt[group.key] = group
        if not group.behind or any(offset in self._offsets for offset in group.first):
            return
        following = int(group.behind.min())
        if following not in self._absent:
            group.behind.discard(following)
            self._behind.discard(following)
            self._begin(group, [following], [following])

    def _end_if_back(self, group: _Group) -> bool:
        """End the group's turn if all its unsettled messages were returned: the first is ready, the others wait
        behind it."""
        if not group.in_turn or len(group.back) < len(group.first):
            return False
        first, *others = sorted(group.first)
        group.in_turn = False
        group.back.clear()
        self._wait(group, others)
        self._offsets.add(first)
        return True

    def _wait(self, group: _Group, offsets: Sequence[int]) -> None:
        """Move these offsets from `first` to `behind`."""
        group.first.difference_update(offsets)
        group.behind.update(offsets)
        self._behind.update(offsets)
        for offset in offsets:
            del self._by_first[offset]
            self._offsets.discard(offset)

    # --- `Ready`; a returned message is still the first of its group -------------------------------------------

    def add(self, offsets: BitMap64) -> None:
        absent = offsets & self._absent
        if absent:
            self._absent -= absent
            offsets = offsets - absent
        if len(offsets) > len(self._by_first):
            mine = [offset for offset in self._by_first if offset in offsets]
        else:
            mine = [offset for offset in offsets if offset in self._by_first]
        held = [offset for offset in mine if self._by_first[offset].in_turn]
        super().add(offsets - BitMap64(held) if held else offsets)
        for offset in held:
            self._by_first[offset].back.add(offset)
        for group in {self._by_first[offset].key: self._by_first[offset] for offset in held}.values():
            self._end_if_back(group)

    def remove(self, offsets: Sequence[int]) -> None:
        super().remove(offsets)
        if self._turn:
            for offset in offsets:
                group = self._by_first.get(offset)
                if group is not None:
                    self._deal(group)

    def drop(self, first: int, end: int) -> None:
        self.settled(first, end)

    def empty(self, kept: BitMap64) -> None:
        """Forget all ready messages and those that wait behind them; `kept` holds messages that are out."""
        self._offsets.clear()
        self._behind.clear()
        self._absent.clear()
        for group in list(self._groups.values()):
            group.behind.clear()
            group.batches.clear()
            group.back.clear()
            for offset in sorted(group.first):
                if offset not in kept:
                    group.first.discard(offset)
                    del self._by_first[offset]
            if not group.first:
                del self._groups[group.key]

    def clear(self) -> None:
        self._offsets.clear()
        self._behind.clear()
        self._absent.clear()
        self._groups.clear()
        self._dealt.clear()
        self._by_first.clear()

    # --- groups -----------------------------------------------------------------------------------------

    def _begin(self, group: _Group, first: Sequence[int], ready: Sequence[int]) -> None:
        group.first.update(first)
        for offset in first:
            self._by_first[offset] = group
        self._offsets.update(ready)

    def _go_on(self, group: _Group) -> bool:
        """Advance the group after its first messages are settled; return whether a message became ready."""
        group.in_turn = False
        if not group.behind:
            del self._groups[group.key]
            return False
        taken = group.next()
        ready = [offset for offset in taken if offset not in self._absent] if self._absent else taken
        self._behind.difference_update(BitMap64(taken))
        self._absent.difference_update(BitMap64(taken))
        self._begin(group, taken, ready)
        return bool(ready)

    def _remove_behind(self, first: int, end: int) -> None:
        gone = BitMap64(self._behind)
        gone.remove_range(0, first)
        gone.remove_range(end, max(end, gone.max() + 1) if gone else end)
        self._behind -= gone
        self._absent -= gone
        for group in self._groups.values():
            if group.behind and not group.behind.isdisjoint(gone):
                group.behind -= gone
