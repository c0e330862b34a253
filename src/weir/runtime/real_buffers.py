"""Pooled receive buffers: a connection has one only while bytes arrive, and the pool reuses it only without views.

Freshly touched memory is the hidden cost of receiving (docs/internals/runtime.md), so the pool recycles chunks. It
uses CPython's reference counts: every view of a chunk, and every slice of a view, has a reference to it, so the
pool may refill a chunk that only the pool refers to. A slow reader thus never sees its bytes overwritten.

The pool lends a chunk for one read: the event loop gets space, reads, and reports the count, without a pause. The
inbox copies a few bytes out of it; with many, the chunk belongs to the connection until its reader consumed them.
So an idle connection has none, and small requests and heartbeats pin none.
"""

import sys
from collections import deque

CHUNK_BYTES = 256 * 1024
#: A read is offered at least this much room; a chunk with less is retired.
_MIN_SPACE_BYTES = 16 * 1024
_LAST_START = CHUNK_BYTES - _MIN_SPACE_BYTES
#: So few bytes are cheaper to copy than a chunk is to hold.
COPIED_BYTES = 4 * 1024
#: Chunks remembered for reuse, with room and without; more than that are left to the garbage collector.
_KEPT_CHUNKS = 64
#: While all connections together have more unconsumed bytes than this, each read is small.
_CROWDED_BYTES = 128 * 1024 * 1024
#: Maximum of retired chunks that one `lend` checks before it allocates.
_LOOK_AT = 4


class Chunk:
    """Bytes, of which those before `end` came from some connection, and may be looked at."""

    __slots__ = ("data", "end")

    def __init__(self) -> None:
        self.data = bytearray(CHUNK_BYTES)
        self.end = 0

    def recycle(self) -> bool:
        """Reset the chunk if no views exist; returns whether it has enough space for a read."""
        if self.references() == _UNSHARED:
            self.end = 0
        return self.end <= _LAST_START

    def references(self) -> int:
        """The number of references to its bytes: its own, that of this call, and one per view."""
        return sys.getrefcount(self.data)


#: Those to a chunk's bytes that nobody else looks at. Asked, because interpreters count the question differently;
#: what is no CPython counts nothing, and there a chunk is filled once.
_UNSHARED = Chunk().references() if sys.implementation.name == "cpython" else 0


class BufferPool:
    """Chunks that no connection has: with room, and those that wait until their last view is gone."""

    def __init__(self) -> None:
        #: The last one is lent next, and stays the last until the read is over.
        self.open: list[Chunk] = []
        self._retired: deque[Chunk] = deque()
        #: Received and unconsumed bytes of all connections.
        self.waiting = 0
        self.connections = 0

    @property
    def crowded(self) -> bool:
        return self.waiting > _CROWDED_BYTES

    def lend(self) -> Chunk:
        """A chunk with room, for one read."""
        if not self.open:
            self.open.append(self._reused() or Chunk())
        chunk = self.open[-1]
        if chunk.end:
            chunk.recycle()
        return chunk

    def give(self, chunk: Chunk) -> None:
        """Give a chunk back; views of it may still live."""
        kept = self.open if chunk.recycle() else self._retired
        if len(kept) < _KEPT_CHUNKS:
            kept.append(chunk)

    def _reused(self) -> Chunk | None:
        for _ in range(min(_LOOK_AT, len(self._retired))):
            chunk = self._retired.popleft()
            if chunk.recycle():
                return chunk
            self._retired.append(chunk)
        return None


class Inbox:
    """Bytes that arrived on one connection, in order, as slices of pooled chunks."""

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._chunk: Chunk | None = None
        self._start = 0  # of the unconsumed bytes in the current chunk
        self._full: deque[memoryview] = deque()  # earlier bytes
        self.size = 0

    def space(self) -> memoryview:
        """Room for the next bytes."""
        if self._chunk is not None and self._chunk.end > _LAST_START:
            self.finish()
        chunk = self._chunk or self._pool.lend()
        end = chunk.end + _MIN_SPACE_BYTES if self._pool.crowded else CHUNK_BYTES
        return memoryview(chunk.data)[chunk.end : end]

    def filled(self, count: int) -> None:
        """`count` bytes arrived in the room given last."""
        self.size += count
        self._pool.waiting += count
        if self._chunk is None:
            if count <= COPIED_BYTES:
                chunk = self._pool.open[-1]
                self._full.append(memoryview(chunk.data[chunk.end : chunk.end + count]))
                return
            self._chunk = self._pool.open.pop()
            self._start = self._chunk.end
        self._chunk.end += count

    def take(self) -> memoryview:
        """The oldest bytes, all that lie together, or that came in small pieces; only when `size` is not zero."""
        if self._full:
            taken = self._full.popleft()
            if self._full and len(taken) <= COPIED_BYTES:
                taken = self._joined(taken)
        else:
            chunk: Chunk = self._chunk  # type: ignore[assignment]
            taken = memoryview(chunk.data)[self._start : chunk.end]
            self._start = chunk.end
        self.size -= len(taken)
        self._pool.waiting -= len(taken)
        return taken

    def _joined(self, first: memoryview) -> memoryview:
        """Join the piece with all small pieces after it, so that a late reader handles them together."""
        pieces = [first]
        while self._full and len(self._full[0]) <= COPIED_BYTES:
            pieces.append(self._full.popleft())
        return memoryview(b"".join(pieces)) if len(pieces) > 1 else first

    def finish(self) -> None:
        """Return the chunk to the pool until more bytes arrive; views of it may remain."""
        chunk = self._chunk
        if chunk is not None:
            if self._start < chunk.end:
                self._full.append(memoryview(chunk.data)[self._start : chunk.end])
            self._chunk = None
            self._pool.give(chunk)

    def drop(self) -> None:
        """Discard all unconsumed bytes."""
        self.finish()
        self._full.clear()
        self._pool.waiting -= self.size
        self.size = 0
