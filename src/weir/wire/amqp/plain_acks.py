"""Acknowledgements of single messages that lie one after the other, taken out of a receive buffer at a glance.

A consumer says hardly anything else, and all of them are alike but for their tags. What differs in any way is left
where it is, for `CommandReader` to take or to refuse.
"""

import re
from functools import lru_cache
from struct import Struct

from weir.wire.amqp.frames import END, HEAD, METHOD

_ACK = b"\x00\x3c\x00\x50"
_PAYLOAD_BYTES = len(_ACK) + 8 + 1
_NUMBER_AT = slice(1, 3)
_TAGS = Struct(f">{HEAD.size + len(_ACK)}xQ2x")
#: Of one such frame.
FRAME_BYTES = _TAGS.size


@lru_cache(maxsize=1024)
def _pattern(channel: int) -> "re.Pattern[bytes]":
    head = HEAD.pack(METHOD, channel, _PAYLOAD_BYTES) + _ACK
    return re.compile(b"(?:" + re.escape(head) + rb".{8}\x00" + re.escape(END) + b")+", re.DOTALL)


def begins_with_ack(data: memoryview) -> bool:
    """Whether a frame that is an acknowledgement may be the first in the buffer."""
    return data[HEAD.size : HEAD.size + len(_ACK)] == _ACK


def take_acks(data: memoryview, most: int) -> tuple[int, list[int], int]:
    """The channel and the tags of the acknowledgements of one channel that the buffer begins with, of at most so
    many, and where they end: at 0 if there are none."""
    channel = int.from_bytes(data[_NUMBER_AT], "big")
    found = _pattern(channel).match(data, 0, min(len(data), most * FRAME_BYTES)) if channel else None
    if found is None:
        return channel, [], 0
    end = found.end()
    return channel, [tag for (tag,) in _TAGS.iter_unpack(data[:end])], end
