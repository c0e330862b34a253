"""Length-prefixed frames out of a stream of receive buffers.

    length u32 | that many bytes

The length is little-endian in Weir's own protocols; a protocol with another order says so to its splitter.

A frame that lies whole in one buffer is given out as a slice of it. Only a frame that arrives in pieces is
copied, once, into a buffer that grows with what came and not with what was announced; so a peer can make this
side hold no more memory than the bytes it really sent, and never more than the limit.
"""

from collections.abc import Iterator
from struct import Struct

from weir.model.errors import FrameTooLargeError
from weir.model.ids import Buffer

_LENGTH = Struct("<I")
PREFIX_BYTES = _LENGTH.size


class FrameSplitter:
    """Splits one connection's bytes. After an error the stream has lost its rhythm: close the connection."""

    def __init__(self, limit: int, prefix: Struct = _LENGTH) -> None:
        #: The longest frame to accept; may be changed at any frame (small before a hello, larger after).
        self.limit = limit
        self._prefix = prefix
        self._torn = bytearray()
        self._whole: memoryview | None = None

    @property
    def at_boundary(self) -> bool:
        """Whether the stream may end here without tearing a frame."""
        return not self._torn

    @property
    def announced(self) -> int:
        """How long the frame is of which only a part is here; 0 while that is not known, or there is none."""
        if len(self._torn) < PREFIX_BYTES:
            return 0
        length: int = self._prefix.unpack_from(self._torn)[0]
        return length

    def feed(self, data: Buffer) -> Iterator[memoryview]:
        """The frames that `data` completes, without their prefixes. Iterate to the end, or be done with the
        stream. A frame over the limit raises after the frames before it were given out."""
        view = memoryview(data)
        at, end = 0, len(view)
        if self._torn:
            at = self._complete_torn(view)
            if self._whole is not None:
                whole, self._whole = self._whole, None
                yield whole
        while end - at >= PREFIX_BYTES:
            length = self._announced(view, at)
            start = at + PREFIX_BYTES
            if end - start < length:
                break
            at = start + length
            yield view[start:at]
        if at < end:
            # Copied, not kept as a view: many tiny pieces would else pin many large receive buffers.
            self._torn += view[at:]

    def _complete_torn(self, view: memoryview) -> int:
        """Take from `view` what the torn frame lacks; how many bytes that was."""
        taken = 0
        if len(self._torn) < PREFIX_BYTES:
            taken = min(PREFIX_BYTES - len(self._torn), len(view))
            self._torn += view[:taken]
            if len(self._torn) < PREFIX_BYTES:
                return taken
        lacking = PREFIX_BYTES + self._announced(self._torn, 0) - len(self._torn)
        piece = view[taken : taken + lacking]
        self._torn += piece
        if len(piece) == lacking:
            self._whole, self._torn = memoryview(self._torn)[PREFIX_BYTES:], bytearray()
        return taken + len(piece)

    def _announced(self, data: Buffer, at: int) -> int:
        length: int = self._prefix.unpack_from(data, at)[0]
        if length > self.limit:
            raise FrameTooLargeError(f"a frame announces {length} bytes, the limit is {self.limit}")
        return length
