"""What was found of each ledger, as runs of entries and the offsets in them: the holes between are what is
lost.

Which ledger is whose: the chains of all streams, and what only their state names.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from weir.meta import keys
from weir.meta.interfaces import Versioned
from weir.model.errors import InvalidNameError, WireError
from weir.model.ids import EntryId, LedgerId
from weir.model.ledger import LedgerMetadata
from weir.model.stream import Chain, Span
from weir.model.topics import NamespaceName, TopicName
from weir.stream.carried import MEMORY_END_KEY
from weir.stream.compaction_record import Compacted
from weir.wire.batch import decode_batch
from weir.wire.entry import HEADER_BYTES, lost_entry
from weir.wire.key_index import decode_state
from weir.wire.metadata import decode_ledger
from weir.wire.snapshots.subscriptions import CURSOR_PREFIX, decode_cursor
from weir.wire.stream import decode_chain, decode_changes

_HELD = "holding/"
_COMPACTED = "compacted"
_KEY_INDEX = "key-index"


class Role(Enum):
    """What a ledger is for."""

    MESSAGES = "messages"
    STATE = "subscriptions and their positions"
    HELD = "delayed messages"
    COMPACTED = "the compacted view"
    KEYS = "an index of keys"
    UNUSED = "nothing"


@dataclass(frozen=True, slots=True)
class LedgerUse:
    """A ledger of a stream."""

    ledger_id: LedgerId
    stream: str
    role: Role
    #: Where the chain has it, if it holds messages.
    span: Span | None = None
    #: Offsets before this are trimmed: nobody misses them.
    start_offset: int = 0


@dataclass(slots=True)
class Chart:
    """Every ledger that the metadata knows, and every use of one."""

    chains: dict[str, Chain] = field(default_factory=dict)
    ledgers: dict[LedgerId, LedgerMetadata] = field(default_factory=dict)
    uses: dict[LedgerId, LedgerUse] = field(default_factory=dict)
    #: Where subscriptions of streams are, by stream and name: the offset up to which they acknowledged.
    positions: dict[str, dict[str, int]] = field(default_factory=dict)
    #: How far offsets of streams were given out that have some in memory only.
    memory_ends: dict[str, int] = field(default_factory=dict)
    #: Values that are whole and yet cannot be understood, by key.
    malformed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, items: Iterable[Versioned]) -> "Chart":
        chart = cls()
        for item in items:
            try:
                chart._add(item)
            except WireError as bad:
                chart.malformed[item.key] = bad.what
        return chart

    def _add(self, item: Versioned) -> None:
        if item.key.startswith(keys.LEDGERS):
            ledger = decode_ledger(item.value)
            self.ledgers[ledger.ledger_id] = ledger
        elif item.key.startswith(keys.STREAMS):
            name, chain = item.key.removeprefix(keys.STREAMS), decode_chain(item.value)
            self.chains[name] = chain
            for span in chain.spans:
                if span.in_lake:  # what is left of it, if anything, nobody wants
                    continue
                self._use(LedgerUse(span.ledger_id, name, Role.MESSAGES, span, chain.start_offset))
            if chain.state_ledger is not None:
                self._use(LedgerUse(chain.state_ledger, name, Role.STATE))

    def _use(self, use: LedgerUse) -> None:
        self.uses[use.ledger_id] = use

    def role(self, ledger_id: LedgerId) -> Role:
        use = self.uses.get(ledger_id)
        return Role.UNUSED if use is None else use.role

    def learn_state(self, stream: str, entries: Mapping[int, bytes]) -> None:
        """What a stream's state says of further ledgers."""
        values: dict[str, bytes | None] = {}
        for entry in sorted(entries):
            try:
                values |= decode_changes(entries[entry])
            except WireError:
                continue
        for key, value in values.items():
            if value is None:
                continue
            if key.startswith(_HELD) and key[len(_HELD) :].isdecimal():
                self._use(LedgerUse(LedgerId(int(key[len(_HELD) :])), stream, Role.HELD))
            elif key == _COMPACTED:
                self._learn_compacted(stream, value)
            elif key == _KEY_INDEX:
                self._learn_index(stream, value)
            elif key == MEMORY_END_KEY:
                self.memory_ends[stream] = int.from_bytes(value, "little")
            elif key.startswith(CURSOR_PREFIX):
                with suppress(WireError):
                    at = decode_cursor(value)[0] + 1
                    self.positions.setdefault(stream, {})[key.removeprefix(CURSOR_PREFIX)] = at

    def _learn_compacted(self, stream: str, value: bytes) -> None:
        try:
            ledger_id = Compacted.from_bytes(value).ledger_id
        except WireError:
            return
        if ledger_id is not None:
            self._use(LedgerUse(ledger_id, stream, Role.COMPACTED))

    def _learn_index(self, stream: str, value: bytes) -> None:
        try:
            runs, _ = decode_state(value)
        except WireError:
            return
        for run in runs:
            self._use(LedgerUse(LedgerId(run.ledger), stream, Role.KEYS))


def topic_of_stream(stream: str) -> TopicName | None:
    """The topic, with its partition, whose messages a stream has; None if it is not a topic's."""
    tenant, _, rest = stream.partition("/")
    namespace, _, local = rest.partition("/")
    try:
        return TopicName.parse(f"persistent://{NamespaceName(tenant, namespace)}/{local}")
    except InvalidNameError:
        return None


#: Nobody knows which.
UNKNOWN = -1


class FoundRun(NamedTuple):
    """Entries [first, last] of a ledger, and the offsets [base, end) of what is in them; UNKNOWN where they have
    none."""

    first: int
    last: int
    base: int
    end: int


class Hole(NamedTuple):
    """Entries [first, last] are nowhere; the offsets around them say which they had, or UNKNOWN."""

    first: int
    last: int
    base: int
    end: int


@dataclass(slots=True)
class FoundLedger:
    """What was found of one ledger."""

    runs: list[FoundRun] = field(default_factory=list)
    #: Entries that were lost before, and only keep their place: why.
    marked: dict[int, str] = field(default_factory=dict)
    #: Payloads by entry, of a ledger with state.
    payloads: dict[int, bytes] = field(default_factory=dict)
    bytes: int = 0
    first_ms: int = 0
    last_ms: int = 0

    def add(self, entry: int, base: int, end: int) -> None:
        """In any order, and more than once if it must be."""
        if self.runs:
            last = self.runs[-1]
            if entry == last.last + 1 and base in (last.end, UNKNOWN):
                self.runs[-1] = last._replace(last=entry, end=end)
                return
            if last.first <= entry <= last.last:
                return
        self.runs.append(FoundRun(entry, entry, base, end))

    def settle(self) -> None:
        """Bring the runs in order and join what touches."""
        joined: list[FoundRun] = []
        for run in sorted(self.runs):
            before = joined[-1] if joined else None
            if before is None or run.first > before.last + 1:
                joined.append(run)
            elif run.last > before.last:
                joined[-1] = FoundRun(before.first, run.last, before.base, run.end)
        self.runs = joined

    def holes(self, last: int, begin: int, end: int) -> Iterator[Hole]:
        """What is missing of the entries up to `last`, whose offsets are [begin, end) in all. To be called once it
        is settled."""
        entry, base = 0, begin
        for run in self.runs:
            if run.first > last:
                break
            if run.first > entry:
                yield Hole(entry, run.first - 1, base, run.base)
            entry, base = run.last + 1, run.end
        if entry <= last:
            yield Hole(entry, last, base, end)


class Found:
    """What was found of all ledgers that a chart knows."""

    def __init__(self, chart: Chart) -> None:
        self._chart = chart
        self.ledgers: dict[LedgerId, FoundLedger] = {}

    def take(self, ledger_id: LedgerId, batch: Iterable[tuple[EntryId, bytes]], *, messages: bool = False) -> None:
        """Note whole entries of a ledger; `messages`: it is none of the chart's, and may be a topic's."""
        role = Role.MESSAGES if messages else self._chart.role(ledger_id)
        found = self.ledgers.get(ledger_id)
        if found is None:
            found = self.ledgers[ledger_id] = FoundLedger()
        for entry_id, data in batch:
            why = lost_entry(data)
            if why is not None:
                found.marked[entry_id] = why
            elif role is Role.MESSAGES:
                _add_messages(found, entry_id, data)
            else:
                if role is Role.STATE:
                    found.payloads[entry_id] = data[HEADER_BYTES:]
                found.add(entry_id, UNKNOWN, UNKNOWN)
            found.bytes += len(data)

    def settle(self) -> None:
        """All of it has come: bring it in order, and learn what the states of streams say."""
        for ledger_id, found in self.ledgers.items():
            use = self._chart.uses.get(ledger_id)
            if use is not None and use.role is Role.STATE:
                self._chart.learn_state(use.stream, found.payloads)
            found.settle()

    def holes(self, ledger_id: LedgerId, use: LedgerUse | None, last: int) -> list[Hole]:
        """What is missing of a ledger whose last entry this is; entries that only keep a place count as there, and
        of a state what was written twice counts if one of the two is."""
        found = self.ledgers.get(ledger_id) or FoundLedger()
        span = None if use is None else use.span
        begin = UNKNOWN if span is None else span.first_offset
        end = UNKNOWN if span is None or span.end_offset is None else span.end_offset
        holes = [part for hole in found.holes(last, begin, end) for part in _without(hole, found.marked)]
        if use is not None and use.role is Role.STATE:
            twins = has_twins(found.payloads)
            holes = [hole for hole in holes if not (twins and _has_twin(hole, found.payloads))]
        return holes


def _add_messages(found: FoundLedger, entry_id: EntryId, data: bytes) -> None:
    try:
        batch = decode_batch(memoryview(data)[HEADER_BYTES:])
    except WireError:
        found.add(entry_id, UNKNOWN, UNKNOWN)
        return
    found.add(entry_id, batch.base_offset, batch.end_offset)
    found.first_ms = min(found.first_ms or batch.append_ms, batch.append_ms)
    found.last_ms = max(found.last_ms, batch.append_ms)


def _without(hole: Hole, marked: dict[int, str]) -> Iterator[Hole]:
    """The parts of a hole that are not known as lost already; with unknown offsets where it is cut."""
    known = [entry for entry in marked if hole.first <= entry <= hole.last]
    if not known:
        yield hole
        return
    first, base = hole.first, hole.base
    for entry in [*sorted(known), hole.last + 1]:
        if entry > first:
            yield Hole(first, entry - 1, base, hole.end if entry > hole.last else UNKNOWN)
        first, base = entry + 1, UNKNOWN


def has_twins(payloads: dict[int, bytes]) -> bool:
    """Whether each entry of a state's ledger was written twice: told by the first pair that is whole."""
    for entry in sorted(payloads):
        if entry % 2 == 0 and entry + 1 in payloads:
            return payloads[entry] == payloads[entry + 1]
    return True


def _has_twin(hole: Hole, payloads: dict[int, bytes]) -> bool:
    return all(entry ^ 1 in payloads for entry in range(hole.first, hole.last + 1))
