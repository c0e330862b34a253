"""A durable subscription's properties, as JSON, and its cursor.

A cursor:

    version u8 | mark-delete i64 | offsets above it that are acknowledged (bitmap)
"""

from collections.abc import Mapping
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
