"""How half messages of one holding ledger were decided, and how often the others were asked about.

version u8 | drained ms i64 | bytes of both bitmaps u32, u32 | count u32 | committed | rolled back | each:
    entry u64, checks u32, next check ms i64
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct

from pyroaring import BitMap64

from weir.wire.snapshots.fields import Reader

_VERSION = 1
_HEAD = Struct("<BqIII")
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
    head = _HEAD.pack(_VERSION, record.drained_ms, len(committed), len(rolled_back), len(record.checks))
    checks = (_CHECKS.pack(entry, *known) for entry, known in record.checks.items())
    return b"".join((head, committed, rolled_back, *checks))


def decode_half(data: bytes) -> HalfRecord:
    reader = Reader(data, "a record of half messages")
    version, drained_ms, committed, rolled_back, count = reader.take(_HEAD)
    reader.version(version, _VERSION)
    bitmaps = reader.bitmap(committed), reader.bitmap(rolled_back)
    reader.require(drained_ms >= 0 and not bitmaps[0] & bitmaps[1])
    checks = {}
    for _ in range(count):
        entry, times, next_ms = reader.take(_CHECKS)
        checks[entry] = (times, next_ms)
    reader.end()
    return HalfRecord(*bitmaps, checks, drained_ms)
