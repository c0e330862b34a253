"""One ledger of a holding area: what it holds, what of it is done, and how much of its index is in memory."""

from pyroaring import BitMap64

from weir.ledger.writer import LedgerWriter
from weir.model.errors import WireError
from weir.model.ids import LedgerId
from weir.stream.holding.windows import DuePosition, Window, moment, place_of
from weir.stream.state import StateLog
from weir.wire.held import HoldingRecord, decode_record, encode_record

_PREFIX = "holding/"


class HeldLedger:
    """Plain state, changed between awaits. An entry is held until it is done; while it is being released it is
    taken, and nobody else may have it."""

    __slots__ = (
        "_gone_messages",
        "closed",
        "done",
        "entries",
        "ledger_id",
        "loaded",
        "messages",
        "serial",
        "size_bytes",
        "taken",
        "window",
        "writer",
    )

    def __init__(self, ledger_id: LedgerId, record: HoldingRecord, writer: LedgerWriter | None = None) -> None:
        self.ledger_id = ledger_id
        self.serial = record.serial
        self.window = Window(record.first_ms, record.end_ms)
        #: While this holder writes to it.
        self.writer = writer
        #: Whether its end is known for good.
        self.closed = record.closed
        self.entries = record.entries
        self.messages = record.messages
        self.size_bytes = record.size_bytes
        self._gone_messages = record.gone_messages
        self.done = _bitmap(record.done)
        self.taken: set[int] = set()
        #: Everything that is held here before this place is in the index.
        self.loaded: DuePosition = 0

    @property
    def in_doubt(self) -> bool:
        """Whether it must be recovered before its end is known: its writer is gone and did not close it."""
        return not self.closed and self.writer is None

    @property
    def is_drained(self) -> bool:
        return self.closed and len(self.done) >= self.entries

    @property
    def held_entries(self) -> int:
        return self.entries - len(self.done)

    @property
    def held_messages(self) -> int:
        return self.messages - self._gone_messages

    @property
    def mean_bytes(self) -> int:
        """What an entry takes, about."""
        return max(1, self.size_bytes // max(1, self.entries))

    @property
    def has_beyond_loaded(self) -> bool:
        """Whether there may be entries that are not in the index because they are due too late."""
        return self.entries > 0 and moment(self.window.end_ms) > self.loaded

    def place(self, due_ms: int, entry: int) -> DuePosition:
        return place_of(due_ms, self.serial, entry)

    def is_free(self, entry: int) -> bool:
        """Whether the entry is held and may be taken."""
        return 0 <= entry < self.entries and entry not in self.done and entry not in self.taken

    def grow(self, messages: int, size_bytes: int) -> int:
        """One more entry is stored; answers which."""
        entry = self.entries
        self.entries += 1
        self.messages += messages
        self.size_bytes += size_bytes
        return entry

    def finish(self, entry: int, messages: int) -> bool:
        """The entry is released or cancelled; whether that is news."""
        self.taken.discard(entry)
        if entry in self.done:
            return False
        self.done.add(entry)
        self._gone_messages += messages
        return True

    def vanish(self) -> None:
        """The ledger was deleted, which happens only when nothing in it is held any more."""
        self.closed = True
        self.writer = None
        self.entries, self.messages = len(self.done), self._gone_messages

    # --- in the stream's state --------------------------------------------------------------------------

    @property
    def key(self) -> str:
        return f"{_PREFIX}{self.ledger_id}"

    def to_bytes(self) -> bytes:
        self.done.run_optimize()
        return encode_record(
            HoldingRecord(
                serial=self.serial,
                first_ms=self.window.first_ms,
                end_ms=self.window.end_ms,
                closed=self.closed,
                entries=self.entries,
                messages=self.messages,
                size_bytes=self.size_bytes,
                gone_messages=self._gone_messages,
                done=self.done.serialize() if self.done else b"",
            )
        )

    @classmethod
    def from_bytes(cls, key: str, data: bytes) -> "HeldLedger":
        """As a former holder wrote it down; WireError if it is none."""
        try:
            ledger_id = LedgerId(int(key.removeprefix(_PREFIX)))
        except ValueError as bad:
            raise WireError(f"stream state has a holding ledger {key!r}") from bad
        return cls(ledger_id, decode_record(data))


#: Keys of the stream's state that are holding ledgers begin so.
LEDGER_KEYS = _PREFIX


def ledgers_in(state: StateLog) -> list[LedgerId]:
    """Every holding ledger that the state names."""
    return [LedgerId(int(key.removeprefix(_PREFIX))) for key in state.keys(_PREFIX)]


def _bitmap(data: bytes) -> BitMap64:
    if not data:
        return BitMap64()
    try:
        return BitMap64.deserialize(data)
    except (ValueError, MemoryError, OverflowError) as bad:
        raise WireError(f"a holding ledger's bitmap is malformed: {bad}") from bad
