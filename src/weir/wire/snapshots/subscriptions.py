"""What a subscription knows of messages that failed: how often, and which wait for what moment.

    version u8 | digits u8 | bitmap ... | waits u32 | (moment i64, bitmap) ... | leases u32 | as the waits

The nth bitmap of the counts has the messages whose count has the digit of 2^n. A bitmap: size u32 | bytes.

A durable subscription's properties, as JSON, and its cursor.

A cursor:

    version u8 | mark-delete i64 | offsets above it that are acknowledged (bitmap)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from pyroaring import BitMap64

from weir.wire.snapshots.fields import Reader, check_version, dump, load, text

#: In a topic's state, before the name of the subscription whose cursor it is.
CURSOR_PREFIX = "cursor/"
_VERSION = 1
_CURSOR = Struct("<Bq")
_BEFORE_FIRST = -1


def encode_subscription(properties: Mapping[str, str]) -> bytes:
    return dump({"version": _VERSION, "properties": dict(properties)})


def decode_subscription(data: bytes) -> dict[str, str]:
    """The first ones do not say their version."""
    return load(data, "a subscription's record", _properties)


def _properties(fields: Any) -> dict[str, str]:
    check_version(fields.get("version", 1), _VERSION, "a subscription's record")
    return {text(name): text(value) for name, value in fields.get("properties", {}).items()}


def encode_cursor(mark_delete: int, above: BitMap64) -> bytes:
    return _CURSOR.pack(_VERSION, mark_delete) + above.serialize()


def decode_cursor(data: bytes) -> tuple[int, BitMap64]:
    """Everything up to the mark is acknowledged, and so are the offsets in the bitmap, all of them above it."""
    reader = Reader(data, "a cursor")
    version, mark_delete = reader.take(_CURSOR)
    reader.version(version, _VERSION)
    reader.require(mark_delete >= _BEFORE_FIRST)
    above = reader.bitmap()
    reader.require(not above or above.min() > mark_delete)
    return mark_delete, above


_HEAD = Struct("<BB")
_COUNT = Struct("<I")
_MOMENT = Struct("<q")
_MOST_DIGITS = 32


@dataclass(frozen=True, slots=True)
class RetryState:
    """`digits`: of the counts. `waits`, `leases`: by moments, in milliseconds since 1970."""

    digits: Sequence[BitMap64] = ()
    waits: Mapping[int, BitMap64] = field(default_factory=dict)
    leases: Mapping[int, BitMap64] = field(default_factory=dict)


def encode_retries(state: RetryState) -> bytes:
    parts = [_HEAD.pack(_VERSION, len(state.digits)), *(_bitmap(having) for having in state.digits)]
    for due in (state.waits, state.leases):
        parts.append(_COUNT.pack(len(due)))
        for moment, offsets in due.items():
            parts += (_MOMENT.pack(moment), _bitmap(offsets))
    return b"".join(parts)


def _bitmap(offsets: BitMap64) -> bytes:
    offsets.run_optimize()
    data = offsets.serialize()
    return _COUNT.pack(len(data)) + data


def decode_retries(data: bytes) -> RetryState:
    """WireError if it is none."""
    reader = Reader(data, "what a subscription knows of failed messages")
    version, digits = reader.take(_HEAD)
    reader.version(version, _VERSION)
    reader.require(digits <= _MOST_DIGITS)
    counts = [_read_bitmap(reader) for _ in range(digits)]
    waits: dict[int, BitMap64] = {}
    leases: dict[int, BitMap64] = {}
    for due in (waits, leases):
        (count,) = reader.take(_COUNT)
        for _ in range(count):
            (moment,) = reader.take(_MOMENT)
            due[moment] = _read_bitmap(reader)
    reader.end()
    return RetryState(counts, waits, leases)


def _read_bitmap(reader: Reader) -> BitMap64:
    (size,) = reader.take(_COUNT)
    return reader.bitmap(size)
