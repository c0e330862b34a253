"""Length-prefixed frames out of a stream of receive buffers.

    length u32 | that many bytes

The length is little-endian in Weir's own protocols; a protocol with another order says so to its splitter.

A frame that lies whole in one buffer is given out as a slice of it. Only a frame that arrives in pieces is
copied, once, into a buffer that grows with what came and not with what was announced; so a peer can make this
side hold no more memory than the bytes it really sent, and never more than the limit.
"""

from struct import Struct

from weir.model.errors import FrameTooLargeError
from weir.model.ids import Buffer

_LENGTH = Struct("<I")
PREFIX_BYTES = _LENGTH.size


class FrameSplitter:
    """Splits one connection's bytes. After an error the stream has lost its rhythm: close the connection."""

    def __init__(self, limit: int, prefix: Struct = _LENGTH) -> None:
        #: The longest frame to accept; may be changed between calls (small before a hello, larger after).
        self.limit = limit
        self._prefix = prefix
        self._torn = bytearray()

    @property
    def at_boundary(self) -> bool:
        """Whether the stream may end here without tearing a frame."""
        return not self._torn

    def feed(self, data: Buffer) -> list[memoryview]:
        """The frames that `data` completes, without their prefixes."""
        frames: list[memoryview] = []
        view = memoryview(data)
        at = self._complete_torn(view, frames) if self._torn else 0
        end = len(view)
        unpack = self._prefix.unpack_from
        while end - at >= PREFIX_BYTES:
            length: int = unpack(view, at)[0]
            if length > self.limit:
                raise self._too_large(length)
            start = at + PREFIX_BYTES
            if end - start < length:
                break
            at = start + length
            frames.append(view[start:at])
        if at < end:
            # Copied, not kept as a view: many tiny pieces would else pin many large receive buffers.
            self._torn += view[at:]
        return frames

    def _complete_torn(self, view: memoryview, frames: list[memoryview]) -> int:
        """Take from `view` what the torn frame lacks; how many bytes that was."""
        taken = 0
        if len(self._torn) < PREFIX_BYTES:
            taken = min(PREFIX_BYTES - len(self._torn), len(view))
            self._torn += view[:taken]
            if len(self._torn) < PREFIX_BYTES:
                return taken
        length: int = self._prefix.unpack_from(self._torn)[0]
        if length > self.limit:
            raise self._too_large(length)
        lacking = PREFIX_BYTES + length - len(self._torn)
        piece = view[taken : taken + lacking]
        self._torn += piece
        if len(piece) == lacking:
            frames.append(memoryview(self._torn)[PREFIX_BYTES:])
            self._torn = bytearray()
        return taken + len(piece)

    def _too_large(self, length: int) -> FrameTooLargeError:
        return FrameTooLargeError(f"a frame announces {length} bytes, the limit is {self.limit}")
