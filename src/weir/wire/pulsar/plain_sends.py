"""The sends that most clients send most of the time, taken out of a receive buffer without a protobuf object.

A plain send is one message of one producer, whole, with its checksum: the command has the producer's id and a
sequence id, the metadata the producer's name, a sequence id, a publish time, perhaps the size. Everything in it is
compared with one pattern and the lengths that the frame states; what differs in any way is left where it is, for
`decode_frame` to take or to refuse. A test holds the two together.
"""

import re
from struct import Struct
from typing import NamedTuple

from weir.wire.checksum import crc32c
from weir.wire.pulsar.commands import COMMANDS, Type
from weir.wire.pulsar.varint import varint

#: Total, size of the command, (its envelope,) size of the command without it.
_HEAD = Struct(">II3xB")
_CHECKSUM_AND_SIZE = Struct(">II")
#: A varint of at most 63 bits, in however many bytes.
_NUMBER = rb"[\x80-\xff]{0,8}[\x00-\x7f]"


class PlainSend(NamedTuple):
    """A send's sequence id, and its message as it is stored."""

    sequence: int
    message: bytes


_new = tuple.__new__


class PlainSends:
    """Those of one producer."""

    def __init__(self, producer_id: int, name: str) -> None:
        producer, named = varint(producer_id), name.encode()
        self._match = re.compile(
            rb".{8}"
            + re.escape(COMMANDS[Type.SEND].envelope)
            + rb".\x08"
            + re.escape(producer)
            + rb"\x10("
            + _NUMBER
            + rb")(?:\x18\x01)?()\x0e\x01.{8}\x0a"
            + re.escape(varint(len(named)) + named)
            + rb"\x10"
            + _NUMBER
            + rb"\x18"
            + _NUMBER
            + rb"(?:\x40\x00)?(?:\x48[\x80-\xff]{0,4}[\x00-\x7f])?",
            re.DOTALL,
        ).match

    def take(self, view: memoryview, at: int, *, count: int, size: int, limit: int) -> tuple[list[PlainSend], int]:
        """The plain sends that lie one after the other, whole, from `at` on, and where they end: at most `count`,
        and none after the one with which their frames reach `size` bytes. A frame longer than `limit` is none."""
        sends: list[PlainSend] = []
        match, left, stop = self._match, count, at + size
        while left and at < stop and (found := match(view, at)) is not None:
            total, command, rest = _HEAD.unpack_from(view, at)
            end, magic = at + 4 + total, at + 8 + command
            if total > limit or end > len(view) or command != rest + 4 or found.start(2) != magic:
                break
            checksum, metadata = _CHECKSUM_AND_SIZE.unpack_from(view, magic + 2)
            if found.end() != magic + 10 + metadata or found.end() > end:
                break
            if crc32c(view[magic + 6 : end]) != checksum:
                break
            sequence = shift = 0
            for group in found[1]:
                sequence |= (group & 0x7F) << shift
                shift += 7
            sends.append(_new(PlainSend, (sequence, bytes(view[magic:end]))))
            at = end
            left -= 1
        return sends, at
