"""Data model of a holding area: due-time windows, ledgers of delayed messages, and the index of due times.

A ledger stores the messages of one window. Its record has the bitmap of done (released or canceled) entries. The
index is a bounded heap of due positions, the order of release. Plain functions and values.
"""

from dataclasses import dataclass
from heapq import heappop, heappush

from pyroaring import BitMap64

from weir.ledger.client import LedgerClient
from weir.ledger.writer import LedgerWriter
from weir.meta import keys
from weir.meta.update import read
from weir.model.errors import StreamFencedError, WireError
from weir.model.ids import LedgerId
from weir.model.ledger import Quorum
from weir.model.messages import FOREVER_MS
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.stream.chain import CHAIN
from weir.stream.context import StreamContext
from weir.stream.log import Stream
from weir.stream.settings import HoldingSettings
from weir.stream.state_log import StateLog
from weir.wire.delayed_batches import HoldingRecord, decode_record, encode_record

#: An entry's position in the order of release, as one number: due time, then its ledger's serial (the order of
#: creation), then its entry id. A heap of plain ints is small and fast.
DuePosition = int

_ENTRY_BITS = 40
_SERIAL_BITS = 24
_MOMENT_SHIFT = _ENTRY_BITS + _SERIAL_BITS
_ENTRY_MASK = (1 << _ENTRY_BITS) - 1
_SERIAL_MASK = (1 << _SERIAL_BITS) - 1


def place_of(due_ms: int, serial: int, entry: int) -> DuePosition:
    return due_ms << _MOMENT_SHIFT | serial << _ENTRY_BITS | entry


def moment(due_ms: int) -> DuePosition:
    """The position before all entries that are due at or after this time."""
    return due_ms << _MOMENT_SHIFT


def due_of(place: DuePosition) -> int:
    return place >> _MOMENT_SHIFT


def serial_of(place: DuePosition) -> int:
    return place >> _ENTRY_BITS & _SERIAL_MASK


def entry_of(place: DuePosition) -> int:
    return place & _ENTRY_MASK


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """Due times in [`first_ms`, `end_ms`)."""

    first_ms: int
    end_ms: int

    @property
    def dated(self) -> bool:
        """Whether messages in this window have a due time."""
        return self.end_ms < FOREVER_MS


#: The window of messages without a due time.
UNDATED = Window(FOREVER_MS - 1, FOREVER_MS)


def window_of(due_ms: int, now_ms: int, width_ms: int, fine: int) -> Window:
    """The window of a message that arrives at `now_ms` and is due at `due_ms`. Past due times count as now. Near
    windows have the length `width_ms`; their length doubles with the distance, so that at most about `fine`
    windows of each length are in use at a time."""
    due_ms = max(due_ms, now_ms)
    while due_ms - now_ms >= fine * width_ms:
        width_ms *= 2
    first_ms = due_ms // width_ms * width_ms
    if first_ms + width_ms >= FOREVER_MS:
        return UNDATED
    return Window(first_ms, first_ms + width_ms)


@dataclass(frozen=True, slots=True)
class HoldingContext:
    """The stream of a holding area, its state, the settings, and the scope of background tasks."""

    streams: StreamContext
    name: str
    stream: Stream
    state: StateLog
    settings: HoldingSettings
    tasks: TaskScope

    @property
    def clock(self) -> Clock:
        return self.streams.runtime.clock

    @property
    def ledgers(self) -> LedgerClient:
        return self.streams.ledgers

    @property
    def quorum(self) -> Quorum:
        return self.streams.settings.quorum

    async def write_state(self) -> None:
        """Make the state durable, and confirm that this broker still holds the stream. A flush alone is not
        enough: after another holder has written a new state ledger and deleted ours, bookies do not know that
        ours is fenced.
        """
        await self.state.flush()
        record = await read(self.streams.meta, keys.stream(self.stream.name), CHAIN)
        if record is None or record.value.epoch != self.stream.chain.epoch:
            raise StreamFencedError(f"stream {self.stream.name} was taken over by another broker")


_PREFIX = "holding/"


class HeldLedger:
    """One ledger of delayed messages. Plain state, changed only between awaits. An entry stays until it is done;
    during its release it is taken, and no other release or cancel may use it."""

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
        #: Its writer, while this holder writes to it.
        self.writer = writer
        #: Whether its end is final.
        self.closed = record.closed
        self.entries = record.entries
        self.messages = record.messages
        self.size_bytes = record.size_bytes
        self._gone_messages = record.gone_messages
        self.done = _bitmap(record.done)
        self.taken: set[int] = set()
        #: The index has all its delayed messages before this position.
        self.loaded: DuePosition = 0

    @property
    def in_doubt(self) -> bool:
        """Whether it must be recovered to determine its end, since its writer died without closing it."""
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
        """Approximate size of an entry."""
        return max(1, self.size_bytes // max(1, self.entries))

    @property
    def has_beyond_loaded(self) -> bool:
        """Whether it may have entries that are due too late for the index."""
        return self.entries > 0 and moment(self.window.end_ms) > self.loaded

    def place(self, due_ms: int, entry: int) -> DuePosition:
        return place_of(due_ms, self.serial, entry)

    def is_free(self, entry: int) -> bool:
        """Whether the entry is stored, not done and not taken."""
        return 0 <= entry < self.entries and entry not in self.done and entry not in self.taken

    def grow(self, messages: int, size_bytes: int) -> int:
        """Count one more stored entry; return its id."""
        entry = self.entries
        self.entries += 1
        self.messages += messages
        self.size_bytes += size_bytes
        return entry

    def finish(self, entry: int, messages: int) -> bool:
        """Mark the entry as done (released or canceled); return whether it was not done before."""
        self.taken.discard(entry)
        if entry in self.done:
            return False
        self.done.add(entry)
        self._gone_messages += messages
        return True

    def vanish(self) -> None:
        """Record that the ledger was deleted, which happens only after all entries are done."""
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
        """Decode a former holder's record; WireError if it is malformed."""
        try:
            ledger_id = LedgerId(int(key.removeprefix(_PREFIX)))
        except ValueError as bad:
            raise WireError(f"stream state has a malformed key of a holding ledger: {key!r}") from bad
        return cls(ledger_id, decode_record(data))


#: Prefix of the state keys of holding ledgers.
LEDGER_KEYS = _PREFIX


def ledgers_in(state: StateLog) -> list[LedgerId]:
    """All holding ledgers that the state names."""
    return [LedgerId(int(key.removeprefix(_PREFIX))) for key in state.keys(_PREFIX)]


def _bitmap(data: bytes) -> BitMap64:
    if not data:
        return BitMap64()
    try:
        return BitMap64.deserialize(data)
    except (ValueError, MemoryError, OverflowError) as bad:
        raise WireError(f"a holding ledger's bitmap is malformed: {bad}") from bad


class NearIndex:
    """A heap of positions. It may have duplicates and positions of done entries: the caller of `pop` checks."""

    def __init__(self, limit: int) -> None:
        self._limit = max(2, limit)
        self._heap: list[DuePosition] = []

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def is_low(self) -> bool:
        """Whether loading more positions will not cut the heap soon."""
        return len(self._heap) * 4 <= self._limit

    @property
    def is_over(self) -> bool:
        return len(self._heap) > self._limit

    @property
    def first(self) -> DuePosition | None:
        return self._heap[0] if self._heap else None

    def push(self, place: DuePosition) -> bool:
        """Add a position; return whether it is now the first."""
        heappush(self._heap, place)
        return self._heap[0] == place

    def pop(self) -> DuePosition:
        return heappop(self._heap)

    def cut(self) -> DuePosition | None:
        """Drop duplicates and, if the heap is still over its limit, the later half; return the first dropped
        position, None if the later half stays."""
        self._heap = sorted(set(self._heap))  # a sorted list is a heap
        if not self.is_over:
            return None
        keep = self._limit // 2
        first_gone = self._heap[keep]
        del self._heap[keep:]
        return first_gone
