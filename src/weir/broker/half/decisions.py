"""How half messages were decided, and how often the others were asked about: in the topic's state.

By the ledger that they waited in, as bitmaps. A record is kept while the ledger is there, and for a while after:
deciding again gets the same answer, and deciding otherwise a refusal, from whichever broker has the topic.
"""

from collections.abc import Collection

from pyroaring import BitMap64

from weir.model.batch import HeldId
from weir.model.check import check
from weir.model.half import Decision
from weir.stream.state import StateLog
from weir.wire.snapshots.half import HalfRecord, decode_half, encode_half

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
