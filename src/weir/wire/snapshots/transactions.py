"""What a topic has learnt from its log about transactions: the open ones, what is decided, what is to be held.

Open ones:      version u8 | count u32 | each: producer i64, first offset i64, bytes u32, offsets (bitmap)
A decided piece: version u8 | count u32 | each aborted one: producer i64, first i64, last i64, stable i64 |
                hidden offsets (bitmap)
Delays:         version u8 | open ones u32 | ledgers u32 | bytes of unmoved u32 |
                each open one: producer i64, bytes u32, offsets (bitmap) |
                each ledger: id i64, entries i64 | unmoved offsets (bitmap)

A transactional id with its last transaction, as JSON; and how far a sink has come, as text.

How half messages of one holding ledger were decided, and how often the others were asked about.

version u8 | drained ms i64 | bytes of both bitmaps u32, u32 | count u32 | committed | rolled back | each:
    entry u64, checks u32, next check ms i64
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, NamedTuple

from pyroaring import BitMap64

from weir.model.errors import WireError
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset, TransactionState
from weir.wire.snapshots.fields import Reader, check_version, dump, each, load, text, topic, whole

_VERSION = 1
#: Of a number of 64 bits.
_MAX_DIGITS = 20


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """What each of them means, `weir.broker.transactions.transaction.Transaction` says."""

    producer_id: int
    epoch: int
    last_epoch: int
    last_id: int
    next_id: int
    role: str
    state: TransactionState
    timeout_ms: int
    started_ms: int
    updated_ms: int
    parts: tuple[TopicName, ...] = ()
    groups: Mapping[str, Mapping[TopicName, CommittedOffset]] = field(default_factory=dict)
    ended_ms: int = -1
    committed: bool = False


def encode_transaction(transaction: TransactionRecord) -> bytes:
    return dump(
        {
            "version": _VERSION,
            "producer": [transaction.producer_id, transaction.epoch, transaction.last_epoch],
            "ids": [transaction.last_id, transaction.next_id],
            "role": transaction.role,
            "state": transaction.state.value,
            "ms": [transaction.timeout_ms, transaction.started_ms, transaction.updated_ms],
            "ended": [transaction.ended_ms, int(transaction.committed)],
            "parts": [str(part) for part in transaction.parts],
            "groups": {
                group: [[str(part), at.offset, at.leader_epoch, at.metadata] for part, at in positions.items()]
                for group, positions in transaction.groups.items()
            },
        }
    )


def decode_transaction(data: bytes, what: str = "a transaction") -> TransactionRecord:
    return load(data, what, _transaction)


def _transaction(fields: Any) -> TransactionRecord:
    check_version(fields["version"], _VERSION, "a transaction")
    producer_id, epoch, last_epoch = map(whole, each(fields["producer"]))
    last_id, next_id = map(whole, each(fields.get("ids", [-1, -1])))
    timeout_ms, started_ms, updated_ms = map(whole, each(fields["ms"]))
    state = TransactionState(fields["state"])
    # Records from before this was kept: the last one is known as long as nothing came behind it.
    ended = [started_ms, 1] if state is TransactionState.COMPLETE_COMMIT else [-1, 0]
    ended_ms, committed = map(whole, each(fields.get("ended", ended)))
    return TransactionRecord(
        producer_id,
        epoch,
        last_epoch,
        last_id,
        next_id,
        text(fields["role"]),
        state,
        timeout_ms,
        started_ms,
        updated_ms,
        tuple(map(topic, each(fields["parts"]))),
        {
            text(group): {
                topic(part): CommittedOffset(whole(offset), whole(leader), text(metadata))
                for part, offset, leader, metadata in each(positions)
            }
            for group, positions in fields["groups"].items()
        },
        ended_ms,
        bool(committed),
    )


# --- sinks -------------------------------------------------------------------------------------------------------


def encode_sink(epoch: int, role: str) -> bytes:
    """The last epoch that the sink has written, and whose sink it is."""
    return f"{epoch} {role}".encode()


def decode_sink(data: bytes) -> tuple[int, str]:
    try:
        number, _, role = data.decode().partition(" ")
        if len(number) > _MAX_DIGITS:
            raise ValueError("its epoch is too long")
        return whole(int(number)), role
    except ValueError as bad:
        raise WireError(f"a sink's record is malformed: {bad}") from bad


_HEAD = Struct("<BI")
_OPEN = Struct("<qqI")
_ABORTED = Struct("<qqqq")
_DELAYS = Struct("<BIII")
_DELAYED = Struct("<qI")
_LEDGER = Struct("<qq")


class OpenTransaction(NamedTuple):
    """Where it began, and the offsets of its messages."""

    producer_id: int
    first: int
    offsets: BitMap64


class Aborted(NamedTuple):
    """`last`: the offset of its marker. `stable`: the stable offset right after it."""

    producer_id: int
    first: int
    last: int
    stable: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What is decided in a piece of the offset space."""

    aborted: tuple[Aborted, ...]
    hidden: BitMap64


@dataclass(frozen=True, slots=True)
class Delays:
    """Hidden batches: of open transactions by producer id, those that are not held yet, and how far each holding
    ledger is looked through."""

    open: Mapping[int, BitMap64]
    unmoved: BitMap64
    known: Mapping[int, int]


def encode_open(transactions: Iterable[OpenTransaction]) -> bytes:
    parts = []
    count = 0
    for producer_id, first, offsets in transactions:
        data = offsets.serialize()
        parts += [_OPEN.pack(producer_id, first, len(data)), data]
        count += 1
    return b"".join([_HEAD.pack(_VERSION, count), *parts])


def decode_open(data: bytes) -> list[OpenTransaction]:
    """In the order in which they began."""
    reader = Reader(data, "a snapshot of open transactions")
    version, count = reader.take(_HEAD)
    reader.version(version, _VERSION)
    found = []
    for _ in range(count):
        producer_id, first, size = reader.take(_OPEN)
        reader.require(first >= 0)
        found.append(OpenTransaction(producer_id, first, reader.bitmap(size)))
    reader.end()
    return found


def encode_piece(piece: Piece) -> bytes:
    rows = (_ABORTED.pack(*row) for row in piece.aborted)
    return b"".join([_HEAD.pack(_VERSION, len(piece.aborted)), *rows, piece.hidden.serialize()])


def decode_piece(data: bytes) -> Piece:
    reader = Reader(data, "a piece of a transaction index")
    version, count = reader.take(_HEAD)
    reader.version(version, _VERSION)
    reader.require(count * _ABORTED.size <= reader.left)
    aborted = tuple(Aborted(*reader.take(_ABORTED)) for _ in range(count))
    reader.require(all(0 <= one.first <= one.last for one in aborted))
    return Piece(aborted, reader.bitmap())


def encode_delays(delays: Delays) -> bytes:
    unmoved = delays.unmoved.serialize()
    parts = [_DELAYS.pack(_VERSION, len(delays.open), len(delays.known), len(unmoved))]
    for producer_id, offsets in delays.open.items():
        data = offsets.serialize()
        parts += [_DELAYED.pack(producer_id, len(data)), data]
    parts += [_LEDGER.pack(ledger, entries) for ledger, entries in delays.known.items()]
    return b"".join([*parts, unmoved])


def decode_delays(data: bytes) -> Delays:
    reader = Reader(data, "a record of delays in transactions")
    version, opened, ledgers, size = reader.take(_DELAYS)
    reader.version(version, _VERSION)
    by_producer: dict[int, BitMap64] = {}
    for _ in range(opened):
        producer_id, length = reader.take(_DELAYED)
        by_producer[producer_id] = reader.bitmap(length)
    known: dict[int, int] = {}
    for _ in range(ledgers):
        ledger, entries = reader.take(_LEDGER)
        reader.require(ledger >= 0 and entries >= 0)
        known[ledger] = entries
    unmoved = reader.bitmap(size)
    reader.end()
    return Delays(by_producer, unmoved, known)


_HALF_HEAD = Struct("<BqIII")
_CHECKS = Struct("<QIq")


@dataclass(frozen=True, slots=True)
class HalfRecord:
    """`drained_ms`: since when its ledger is gone; 0 while it is there. `checks`: of each entry that was asked
    about and is not decided, how often, and when it is next."""

    committed: BitMap64 = field(default_factory=BitMap64)
    rolled_back: BitMap64 = field(default_factory=BitMap64)
    checks: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    drained_ms: int = 0


def encode_half(record: HalfRecord) -> bytes:
    committed, rolled_back = record.committed.serialize(), record.rolled_back.serialize()
    head = _HALF_HEAD.pack(_VERSION, record.drained_ms, len(committed), len(rolled_back), len(record.checks))
    checks = (_CHECKS.pack(entry, *known) for entry, known in record.checks.items())
    return b"".join((head, committed, rolled_back, *checks))


def decode_half(data: bytes) -> HalfRecord:
    reader = Reader(data, "a record of half messages")
    version, drained_ms, committed, rolled_back, count = reader.take(_HALF_HEAD)
    reader.version(version, _VERSION)
    bitmaps = reader.bitmap(committed), reader.bitmap(rolled_back)
    reader.require(drained_ms >= 0 and not bitmaps[0] & bitmaps[1])
    checks = {}
    for _ in range(count):
        entry, times, next_ms = reader.take(_CHECKS)
        checks[entry] = (times, next_ms)
    reader.end()
    return HalfRecord(*bitmaps, checks, drained_ms)
