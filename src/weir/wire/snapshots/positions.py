"""What a consumer group said when it last placed a cursor.

version u8 | offset i64 | where the cursor was placed i64 | leader epoch i32 | when, in ms, i64 | metadata

Version 2, for groups whose coordinator may be elsewhere, has the order of the placing (i64) before the metadata.
"""

from dataclasses import dataclass
from struct import Struct

from weir.model.positions import CommittedOffset
from weir.wire.snapshots.fields import Reader

_HEADER = Struct("<Bqqiq")
_VERSION = 1
_ORDER = Struct("<q")
_ORDERED = 2
#: An order is the coordinator's epoch, and below it, in so many bits, a number that the coordinator counts.
ORDER_BITS = 40


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """`placed`: the offset that the cursor stood at. It is elsewhere if somebody else has moved it since, and then
    what the group said does not hold any more. `order`: of all placings of the group; 0 where there is none."""

    said: CommittedOffset
    placed: int
    order: int = 0


def encode_position(position: StoredPosition) -> bytes:
    said = position.said
    version = _ORDERED if position.order else _VERSION
    header = _HEADER.pack(version, said.offset, position.placed, said.leader_epoch, said.commit_ms)
    return header + (_ORDER.pack(position.order) if position.order else b"") + said.metadata.encode()


def decode_position(data: bytes, what: str = "a group's position") -> StoredPosition:
    reader = Reader(data, what)
    version, offset, placed, leader_epoch, commit_ms = reader.take(_HEADER)
    order = 0
    if version == _ORDERED:
        (order,) = reader.take(_ORDER)
        reader.require(order > 0)
    else:
        reader.version(version, _VERSION)
    reader.require(placed >= 0)
    return StoredPosition(CommittedOffset(offset, leader_epoch, reader.text(), commit_ms), placed, order)
