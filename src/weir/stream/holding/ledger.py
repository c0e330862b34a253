"""One ledger of a holding area: what it holds, what of it is done, and how much of its index is in memory.

Windows of due time, and the order in which held entries come free. Plain functions and values.

What the parts of one holding area share.

The near future of a holding area, in memory: places in the order of their release, bounded in number.
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

#: An entry's place in the order of release, as one number: due moment, then its ledger's serial (the order in
#: which ledgers were begun), then its entry. A heap of plain ints is small and fast.
DuePosition = int

_ENTRY_BITS = 40
_SERIAL_BITS = 24
_MOMENT_SHIFT = _ENTRY_BITS + _SERIAL_BITS
_ENTRY_MASK = (1 << _ENTRY_BITS) - 1
_SERIAL_MASK = (1 << _SERIAL_BITS) - 1


def place_of(due_ms: int, serial: int, entry: int) -> DuePosition:
    return due_ms << _MOMENT_SHIFT | serial << _ENTRY_BITS | entry


def moment(due_ms: int) -> DuePosition:
    """Before every entry that is due then or later, after every one that is due before."""
    return due_ms << _MOMENT_SHIFT


def due_of(place: DuePosition) -> int:
    return place >> _MOMENT_SHIFT


def serial_of(place: DuePosition) -> int:
    return place >> _ENTRY_BITS & _SERIAL_MASK


def entry_of(place: DuePosition) -> int:
    return place & _ENTRY_MASK


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """Moments from `first_ms` to before `end_ms`."""

    first_ms: int
    end_ms: int

    @property
    def dated(self) -> bool:
        """Whether its moments ever come."""
        return self.end_ms < FOREVER_MS


#: What is due at no moment.
UNDATED = Window(FOREVER_MS - 1, FOREVER_MS)


def window_of(due_ms: int, now_ms: int, width_ms: int, fine: int) -> Window:
    """The window of a message that comes now and is due then. What is due already counts as due now. Windows are
    as long as `width_ms` for what is near, and the longer the further ahead they lie: at most about `fine` of
    each length are in use at a time."""
    due_ms = max(due_ms, now_ms)
    while due_ms - now_ms >= fine * width_ms:
        width_ms *= 2
    first_ms = due_ms // width_ms * width_ms
    if first_ms + width_ms >= FOREVER_MS:
        return UNDATED
    return Window(first_ms, first_ms + width_ms)


@dataclass(frozen=True, slots=True)
class HoldingContext:
    """The stream that messages are held for, its state, and the scope of background work."""

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
        """Make the state durable, and be sure that it is still the one that counts. A flush alone does not tell:
        when another holder has begun a new state and deleted ours, the bookies no longer know that ours is fenced.
        """
        await self.state.flush()
        record = await read(self.streams.meta, keys.stream(self.stream.name), CHAIN)
        if record is None or record.value.epoch != self.stream.chain.epoch:
            raise StreamFencedError(f"stream {self.stream.name} was taken over by another broker")


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


class NearIndex:
    """A heap of places. It may hold a place twice, or one that is no longer held: whoever pops it looks."""

    def __init__(self, limit: int) -> None:
        self._limit = max(2, limit)
        self._heap: list[DuePosition] = []

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def is_low(self) -> bool:
        """Whether there is room for more to be read in without cutting soon."""
        return len(self._heap) * 4 <= self._limit

    @property
    def is_over(self) -> bool:
        return len(self._heap) > self._limit

    @property
    def first(self) -> DuePosition | None:
        return self._heap[0] if self._heap else None

    def push(self, place: DuePosition) -> bool:
        """Add a place; whether it is now the first."""
        heappush(self._heap, place)
        return self._heap[0] == place

    def pop(self) -> DuePosition:
        return heappop(self._heap)

    def cut(self) -> DuePosition | None:
        """Forget what is there twice and, if that is not enough, the later half; answers the first place that is
        forgotten."""
        self._heap = sorted(set(self._heap))  # a sorted list is a heap
        if not self.is_over:
            return None
        keep = self._limit // 2
        first_gone = self._heap[keep]
        del self._heap[keep:]
        return first_gone
