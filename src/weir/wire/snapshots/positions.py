"""What a consumer group said when it last placed a cursor.

version u8 | offset i64 | where the cursor was placed i64 | leader epoch i32 | when, in ms, i64 | metadata
"""

from dataclasses import dataclass
from struct import Struct

from weir.model.positions import CommittedOffset
from weir.wire.snapshots.fields import Reader

_HEADER = Struct("<Bqqiq")
_VERSION = 1


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """`placed`: the offset that the cursor stood at. It is elsewhere if somebody else has moved it since, and then
    what the group said does not hold any more."""

    said: CommittedOffset
    placed: int


def encode_position(position: StoredPosition) -> bytes:
    said = position.said
    header = _HEADER.pack(_VERSION, said.offset, position.placed, said.leader_epoch, said.commit_ms)
    return header + said.metadata.encode()


def decode_position(data: bytes, what: str = "a group's position") -> StoredPosition:
    reader = Reader(data, what)
    version, offset, placed, leader_epoch, commit_ms = reader.take(_HEADER)
    reader.version(version, _VERSION)
    reader.require(placed >= 0)
    return StoredPosition(CommittedOffset(offset, leader_epoch, reader.text(), commit_ms), placed)
