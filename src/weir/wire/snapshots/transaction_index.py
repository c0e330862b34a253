"""What a topic has learnt from its log about transactions: the open ones, what is decided, what is to be held.

Open ones:      version u8 | count u32 | each: producer i64, first offset i64, bytes u32, offsets (bitmap)
A decided piece: version u8 | count u32 | each aborted one: producer i64, first i64, last i64, stable i64 |
                hidden offsets (bitmap)
Delays:         version u8 | open ones u32 | ledgers u32 | bytes of unmoved u32 |
                each open one: producer i64, bytes u32, offsets (bitmap) |
                each ledger: id i64, entries i64 | unmoved offsets (bitmap)
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from pyroaring import BitMap64

from weir.wire.snapshots.fields import Reader

_VERSION = 1
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
