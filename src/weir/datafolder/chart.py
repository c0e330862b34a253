"""Which ledger is whose: the chains of all streams, and what only their state names."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from weir.meta import keys
from weir.meta.interfaces import Versioned
from weir.model.errors import InvalidNameError, WireError
from weir.model.ids import LedgerId
from weir.model.ledger import LedgerMetadata
from weir.model.stream import Chain, Span
from weir.model.topics import NamespaceName, TopicName
from weir.stream.carried import MEMORY_END_KEY
from weir.stream.compacted import Compacted
from weir.wire.key_index import decode_state
from weir.wire.metadata import decode_ledger
from weir.wire.snapshots.subscriptions import CURSOR_PREFIX, decode_cursor
from weir.wire.state import decode_changes
from weir.wire.stream import decode_chain

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
