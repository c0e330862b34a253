"""Messages that differ in their values and times only, encoded for `weir.wire.messages` with one join each."""

from collections.abc import Sequence
from dataclasses import replace
from struct import Struct

from weir.model.ids import Buffer
from weir.model.message import Message
from weir.wire.messages import encode_message

_U32 = Struct("<I")
_FIXED = Struct("<Bq")
_START = _U32.size + _FIXED.size


class MessageTemplate:
    """Of a message with a value, whatever it is."""

    __slots__ = ("_middle", "_present", "_size")

    def __init__(self, message: Message) -> None:
        encoded = encode_message(replace(message, value=b""))
        self._present = encoded[_U32.size]
        self._middle = encoded[_START:]
        self._size = len(encoded) - _U32.size

    def encode_all(self, values: Sequence[Buffer], publish_ms: int) -> list[bytes]:
        """`encode` of each."""
        pack, size, join = _U32.pack, self._size, b"".join
        start = _FIXED.pack(self._present, publish_ms) + self._middle
        return [join((pack(size + len(value)), start, value)) for value in values]

    def encode(self, value: Buffer, publish_ms: int) -> bytes:
        """As `encode_message` has it."""
        size = self._size + len(value)
        return b"".join((_U32.pack(size), _FIXED.pack(self._present, publish_ms), self._middle, value))
