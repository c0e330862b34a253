"""Length-prefixed frames out of a stream of receive buffers.

    length u32 | that many bytes

The length is little-endian in Weir's own protocols; a protocol with another order says so to its splitter.

A frame that lies whole in one buffer is given out as a slice of it. Only a frame that arrives in pieces is
copied, into a buffer that grows with what came and not with what was announced; so a peer can make this side hold
no more memory than the bytes it really sent, some rooms for all peers aside, and never more than the limit. A very
large one gets pages of its own, which take no memory before they are written to: they go back whole, where buffers
that grew step by step leave the heap full of holes.
"""

import sys
from collections.abc import Iterator
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct

from weir.model.errors import FrameTooLargeError
from weir.model.ids import Buffer

_LENGTH = Struct("<I")
PREFIX_BYTES = _LENGTH.size
#: Rooms for large frames that come in pieces: freshly touched memory costs more than the copying.
_ROOM_BYTES = 1024 * 1024 + 64 * 1024
_ROOMS = 16
#: A frame of which less came, or was announced, is not given a room.
_LARGE_BYTES = 16 * 1024
#: References to a room that nobody looks at: that of the list, of the loop, and of the question.
_UNSHARED = 3 if sys.implementation.name == "cpython" else 0
_rooms: list[bytearray] = []
#: From here on a frame gets pages of its own, once more of it comes.
_PAGED_BYTES = 16 * 1024 * 1024


def _room() -> bytearray | None:
    """Memory for a large frame that no frame is in any more, by CPython's own count of who looks at it."""
    for room in _rooms:
        if sys.getrefcount(room) == _UNSHARED:
            return room
    if len(_rooms) == _ROOMS:
        return None
    _rooms.append(bytearray(_ROOM_BYTES))
    return _rooms[-1]


def _pages(size: int) -> mmap | None:
    """Memory of a very large frame's own, if the system has any left to promise."""
    try:
        return mmap(-1, size, MAP_PRIVATE | MAP_ANONYMOUS)
    except OSError:
        return None


class FrameSplitter:
    """Splits one connection's bytes. After an error the stream has lost its rhythm: close the connection."""

    def __init__(self, limit: int, prefix: Struct = _LENGTH) -> None:
        #: The longest frame to accept; may be changed at any frame (small before a hello, larger after).
        self.limit = limit
        self._prefix = prefix
        self._torn: bytearray | mmap = bytearray()
        self._came = 0  # so much of the torn frame, with its prefix
        self._whole: memoryview | None = None

    @property
    def at_boundary(self) -> bool:
        """Whether the stream may end here without tearing a frame."""
        return not self._came

    @property
    def announced(self) -> int:
        """How long the frame is of which only a part is here; 0 while that is not known, or there is none."""
        if self._came < PREFIX_BYTES:
            return 0
        length: int = self._prefix.unpack_from(self._torn)[0]
        return length

    def complete(self, data: Buffer) -> tuple[memoryview | None, memoryview]:
        """The torn frame, if `data` completes it, and what of `data` lies behind: for `feed`, or for whoever
        knows frames at a glance."""
        view = memoryview(data)
        if not self._came:
            return None, view
        at = self._complete_torn(view)
        whole, self._whole = self._whole, None
        return whole, view[at:]

    def feed(self, data: Buffer) -> Iterator[memoryview]:
        """The frames that `data` completes, without their prefixes. Iterate to the end, or be done with the
        stream. A frame over the limit raises after the frames before it were given out."""
        view = memoryview(data)
        at, end = 0, len(view)
        if self._came:
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
            self._keep(view[at:])

    def forget(self) -> None:
        """The stream is over: hold nothing of it until somebody collects the garbage."""
        self._torn, self._came, self._whole = bytearray(), 0, None

    def _complete_torn(self, view: memoryview) -> int:
        """Take from `view` what the torn frame lacks; how many bytes that was."""
        taken = 0
        if self._came < PREFIX_BYTES:
            taken = min(PREFIX_BYTES - self._came, len(view))
            self._keep(view[:taken])
            if self._came < PREFIX_BYTES:
                return taken
        size = PREFIX_BYTES + self._announced(memoryview(self._torn), 0)
        piece = view[taken : taken + size - self._came]
        self._keep(piece)
        if self._came == size:
            self._whole = memoryview(self._torn)[PREFIX_BYTES:size]
            self._torn, self._came = bytearray(), 0
        return taken + len(piece)

    def _keep(self, piece: memoryview) -> None:
        """Copy a piece behind what came before it."""
        came, end = self._came, self._came + len(piece)
        self._came = end
        if end > len(self._torn):
            room = self._room_for(piece) if end >= _LARGE_BYTES else None
            if room is None:
                self._torn += piece  # type: ignore[operator]  # pages are there for all of a frame
                return
            memoryview(room)[:came] = memoryview(self._torn)[:came]
            self._torn = room
        memoryview(self._torn)[came:end] = piece

    def _room_for(self, piece: memoryview) -> bytearray | mmap | None:
        """For the frame that begins with what came before, or with this piece."""
        start = self._torn or piece
        if len(start) < PREFIX_BYTES:
            return None
        size: int = PREFIX_BYTES + self._prefix.unpack_from(start)[0]
        if size <= _ROOM_BYTES:
            return _room()
        return _pages(size) if size >= _PAGED_BYTES and self._came else None

    def _announced(self, data: Buffer, at: int) -> int:
        length: int = self._prefix.unpack_from(data, at)[0]
        if length > self.limit:
            raise FrameTooLargeError(f"a frame announces {length} bytes, the limit is {self.limit}")
        return length
