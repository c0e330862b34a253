"""How half messages were decided, and how often the others were asked about: in the topic's state.

By the ledger that they waited in, as bitmaps. A record is kept while the ledger is there, and for a while after:
deciding again gets the same answer, and deciding otherwise a refusal, from whichever broker has the topic.

Half messages that are not decided, by id, and by when they are asked about next. Plain state.
"""

import asyncio
from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush
from sys import intern

from pyroaring import BitMap64

from weir.model.batch import Batch, HeldId, Prepared
from weir.model.check import check
from weir.model.messages import Decided, Decision, HalfMessage
from weir.stream.state_log import StateLog
from weir.wire.snapshots.transactions import HalfRecord, decode_half, encode_half

#: Keys of the topic's state that are these records begin so.
KEYS = "half/"
#: Records of ledgers that are gone, at most.
_MOST_GONE = 1_000


class _Ledger:
    __slots__ = ("checks", "committed", "drained_ms", "ledger", "rolled_back")

    def __init__(self, ledger: int, record: HalfRecord) -> None:
        self.ledger = ledger
        self.committed = BitMap64(record.committed)
        self.rolled_back = BitMap64(record.rolled_back)
        self.checks = dict(record.checks)
        self.drained_ms = record.drained_ms

    @property
    def key(self) -> str:
        return f"{KEYS}{self.ledger}"

    def to_bytes(self) -> bytes:
        self.committed.run_optimize()
        self.rolled_back.run_optimize()
        return encode_half(HalfRecord(self.committed, self.rolled_back, self.checks, self.drained_ms))


class Decisions:
    """Of one topic. What is noted is durable with the state's next flush."""

    def __init__(self, state: StateLog) -> None:
        self._state = state
        self._ledgers: dict[int, _Ledger] = {}
        for key in state.keys(KEYS):
            ledger = int(key.removeprefix(KEYS))
            self._ledgers[ledger] = _Ledger(ledger, decode_half(state.get(key) or b""))

    def of(self, half: HeldId) -> Decision | None:
        """None if it is not decided, never was prepared, or was decided long ago."""
        ledger = self._ledgers.get(half.ledger)
        if ledger is None:
            return None
        if half.entry in ledger.committed:
            return Decision.COMMIT
        return Decision.ROLL_BACK if half.entry in ledger.rolled_back else None

    def note(self, half: HeldId, decision: Decision) -> None:
        """It is decided so, once and for all. Fine to say again."""
        check(self.of(half) in (None, decision), "a half message is decided once")
        ledger = self._ledger(half.ledger)
        (ledger.committed if decision is Decision.COMMIT else ledger.rolled_back).add(half.entry)
        ledger.checks.pop(half.entry, None)
        self._mark(ledger)

    def checks(self, half: HeldId) -> tuple[int, int] | None:
        """How often it was asked about, and when it is next; None if it never was."""
        ledger = self._ledgers.get(half.ledger)
        return None if ledger is None else ledger.checks.get(half.entry)

    def note_check(self, half: HeldId, times: int, next_ms: int) -> None:
        ledger = self._ledger(half.ledger)
        ledger.checks[half.entry] = (times, next_ms)
        self._mark(ledger)

    def forget(self, there: Collection[int], now_ms: int, remember_ms: int) -> None:
        """`there`: ledgers that are. What is known of others is remembered for so long."""
        for ledger in list(self._ledgers.values()):
            if ledger.ledger in there:
                continue
            if not ledger.drained_ms:
                ledger.drained_ms = max(1, now_ms)
                ledger.checks.clear()
                self._mark(ledger)
            elif now_ms - ledger.drained_ms > remember_ms:
                self._drop(ledger)
        gone = sorted((one for one in self._ledgers.values() if one.drained_ms), key=lambda one: one.drained_ms)
        for ledger in gone[: max(0, len(gone) - _MOST_GONE)]:
            self._drop(ledger)

    def _ledger(self, number: int) -> _Ledger:
        ledger = self._ledgers.get(number)
        if ledger is None:
            ledger = self._ledgers[number] = _Ledger(number, HalfRecord())
        return ledger

    def _mark(self, ledger: _Ledger) -> None:
        self._state.mark(ledger.key, ledger.to_bytes)

    def _drop(self, ledger: _Ledger) -> None:
        del self._ledgers[ledger.ledger]
        self._state.delete(ledger.key)


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
