"""Reading on for message groups: what comes next in the log is put to its group, until enough of it is ready."""

from collections.abc import Callable, Sequence
from itertools import takewhile

from pyroaring import BitMap64

from weir.broker.dispatch.feed import Feed
from weir.broker.dispatch.key_ranges import KeysOf
from weir.broker.dispatch.message_groups import MessageGroups
from weir.model.batch import Batch

#: Messages that are looked at without a pause, at the most.
_LOOK_MESSAGES = 4096


class Gathering:
    """`fresh`: the messages of a batch that nobody has looked at, without those that are aside."""

    def __init__(
        self, groups: MessageGroups, feed: Feed, groups_of: KeysOf, fresh: Callable[[Batch], Sequence[int]]
    ) -> None:
        self._groups = groups
        self._feed = feed
        self._groups_of = groups_of
        self._fresh = fresh

    def look(self, read_at: int, wanted: int, aside: BitMap64) -> tuple[int, bool]:
        """Look on from `read_at`, until so many are ready, no more may wait, or the log ends; answers up to where,
        and whether what is next must be read first."""
        groups, left = self._groups, _LOOK_MESSAGES
        while left > 0 and groups.count_ready() < wanted and not groups.is_full():
            batches = self._feed.get(read_at, wanted)
            if not batches:
                return read_at, batches is None
            for batch in batches:
                indices = self._with_aside(batch, read_at, self._fresh(batch), aside)
                if indices:
                    groups.note(batch.base_offset, indices, self._groups_of(batch), aside)
                read_at = max(read_at, batch.end_offset)
                left -= batch.count
                if left <= 0 or groups.is_full() or groups.count_ready() >= wanted:
                    break
        return read_at, False

    @staticmethod
    def _with_aside(batch: Batch, read_at: int, fresh: Sequence[int], aside: BitMap64) -> Sequence[int]:
        """With those that are aside, which hold up their groups."""
        first = max(read_at, batch.base_offset)
        if not aside or aside.max() < first:
            return fresh
        base, end = batch.base_offset, batch.end_offset
        held = [offset - base for offset in takewhile(end.__gt__, aside.iter_equal_or_larger(first))]
        return sorted({*fresh, *held}) if held else fresh
