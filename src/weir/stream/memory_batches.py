"""Batches that are in memory and nowhere else, by their offsets: forgotten as soon as they are acknowledged."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

from weir.model.batch import Batch
from weir.runtime.byte_budget import ByteShare
from weir.stream.cursor import Cursor
from weir.stream.tail import MOST_BATCHES

#: What a batch costs besides its payload, roughly.
OVERHEAD_BYTES = 300
#: Forgotten places at the front of the list before the list is cut.
_CUT_AT = 256
#: Batches behind one that is not acknowledged are looked through when so many more are there than last time.
_LOOK_AT = 256


class MemoryBatches:
    """In the order of their offsets, perhaps with others between them. `share`: what they take of memory;
    `forgotten` is called with each that goes."""

    def __init__(self, share: ByteShare, forgotten: Callable[[Batch], None] | None = None) -> None:
        self._share = share
        self._forgotten = forgotten
        self._bases: list[int] = []
        self._batches: list[Batch | None] = []
        self._head = 0
        self._live = 0
        self._look_from = _LOOK_AT

    def __len__(self) -> int:
        """Batches that are kept."""
        return self._live

    def __iter__(self) -> Iterator[Batch]:
        return (batch for batch in self._batches[self._head :] if batch is not None)

    @property
    def first(self) -> int | None:
        """The offset of the oldest."""
        return self._bases[self._head] if self._head < len(self._bases) else None

    def append(self, batch: Batch) -> None:
        """One behind all that are here."""
        self._bases.append(batch.base_offset)
        self._batches.append(batch)
        self._live += 1
        self._share.acquire(len(batch.payload) + OVERHEAD_BYTES)

    def read(self, offset: int, max_bytes: int) -> list[Batch]:
        """From the one that holds the offset, or the first behind it, on."""
        at = max(self._head, bisect_right(self._bases, offset, lo=self._head) - 1)
        found: list[Batch] = []
        size = 0
        for place in range(at, len(self._batches)):
            batch = self._batches[place]
            if batch is None or batch.end_offset <= offset:
                continue
            if (found and size + len(batch) > max_bytes) or len(found) == MOST_BATCHES:
                break
            found.append(batch)
            size += len(batch)
        return found

    def older_than(self, moment_ms: int, offset: int) -> int:
        """The offset behind those, from this one on, that were appended before the moment; times ascend."""
        at = bisect_left(self._bases, offset, lo=self._head)
        while at < len(self._batches):
            batch = self._batches[at]
            if batch is not None:
                if batch.append_ms >= moment_ms:
                    break
                offset = batch.end_offset
            at += 1
        return offset

    def forget(self, cursor: Cursor) -> None:
        """What is acknowledged goes: at the front at once, behind one that stays once there is much of it."""
        acknowledged = cursor.mark_delete + 1
        batches = self._batches
        while self._head < len(batches):
            batch = batches[self._head]
            if batch is not None:
                if batch.end_offset > acknowledged and not cursor.all_acked(batch.base_offset, batch.end_offset):
                    break
                self._drop(self._head, batch)
            self._head += 1
        if self._head >= _CUT_AT and self._head * 2 >= len(batches):
            del self._bases[: self._head], batches[: self._head]
            self._head = 0
        if cursor.holes and self._live >= self._look_from:
            self._look_through(cursor)

    def _look_through(self, cursor: Cursor) -> None:
        for place in range(self._head, len(self._batches)):
            batch = self._batches[place]
            if batch is not None and cursor.all_acked(batch.base_offset, batch.end_offset):
                self._drop(place, batch)
        kept = [(base, batch) for base, batch in zip(self._bases, self._batches, strict=True) if batch is not None]
        self._bases = [base for base, _ in kept]
        self._batches = [batch for _, batch in kept]
        self._head = 0
        self._look_from = max(_LOOK_AT, 2 * self._live)

    def _drop(self, place: int, batch: Batch) -> None:
        self._batches[place] = None
        self._live -= 1
        self._share.release(len(batch.payload) + OVERHEAD_BYTES)
        if self._forgotten is not None:
            self._forgotten(batch)

    def close(self) -> None:
        """All of them are gone."""
        self._bases, self._batches, self._head, self._live = [], [], 0, 0
        self._share.close()
