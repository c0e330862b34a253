"""Half messages that are not decided, by id, and by when they are asked about next. Plain state."""

import asyncio
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from sys import intern

from weir.model.batch import Batch, HeldId, Prepared
from weir.model.half import Decided, HalfMessage

#: Places of the heap beyond twice as many as there are messages are cleared out.
_SLACK = 64


class Half:
    """One of them. `deciding`: set while it is."""

    __slots__ = ("checks", "count", "deciding", "group", "id", "next_check_ms", "prepared_ms", "size")

    def __init__(self, half: HeldId, batch: Batch, origin: Prepared) -> None:
        self.id = half
        self.group = intern(origin.group)
        self.prepared_ms = origin.prepared_ms
        self.next_check_ms = origin.prepared_ms + origin.recovery_ms
        self.checks = 0
        self.count = batch.count
        self.size = len(batch.payload)
        self.deciding: asyncio.Future[Decided] | None = None

    def value(self) -> HalfMessage:
        return HalfMessage(
            self.id, self.group, self.prepared_ms, self.next_check_ms, self.checks, self.count, self.size
        )


class Undecided:
    """Of one topic."""

    def __init__(self) -> None:
        self._by_id: dict[HeldId, Half] = {}
        self._due: list[tuple[int, int, int]] = []
        #: Of all of them together.
        self.messages = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, half: HeldId) -> bool:
        return half in self._by_id

    def __iter__(self) -> Iterator[Half]:
        return iter(self._by_id.values())

    def get(self, half: HeldId) -> Half | None:
        return self._by_id.get(half)

    def add(self, half: Half) -> None:
        self._by_id[half.id] = half
        self.messages += half.count
        self._push(half)

    def remove(self, half: HeldId) -> None:
        removed = self._by_id.pop(half, None)
        self.messages -= 0 if removed is None else removed.count
        if len(self._due) > 2 * len(self._by_id) + _SLACK:
            self._due = [_place(one) for one in self._by_id.values()]
            heapify(self._due)

    def later(self, half: Half, next_check_ms: int) -> None:
        """It is asked about then, and not before."""
        half.next_check_ms = next_check_ms
        self._push(half)

    def next_ms(self) -> int | None:
        """When the next one is to be asked about; None if there is none."""
        while self._due:
            moment, ledger, entry = self._due[0]
            half = self._by_id.get(HeldId(ledger, entry))
            if half is not None and half.next_check_ms == moment:
                return moment
            heappop(self._due)
        return None

    def due(self, now_ms: int) -> Half | None:
        """The next one that is to be asked about now. Say `later` or `remove` of it, or it is the next again."""
        moment = self.next_ms()
        if moment is None or moment > now_ms:
            return None
        _, ledger, entry = self._due[0]
        return self._by_id[HeldId(ledger, entry)]

    def _push(self, half: Half) -> None:
        heappush(self._due, _place(half))


def _place(half: Half) -> tuple[int, int, int]:
    return half.next_check_ms, half.id.ledger, half.id.entry
