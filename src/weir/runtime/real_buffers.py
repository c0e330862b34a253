"""Receive buffers that are reused only when nobody looks at them any more.

Freshly touched memory is the hidden cost of receiving (docs/runtime.md), so chunks are recycled. CPython's own
reference counts say when: every view of a chunk, and every slice of a view, holds a reference to it, so a
chunk that only the pool refers to can be filled again. A slow reader thus never sees its bytes overwritten.
"""

import sys
from collections import deque

CHUNK_BYTES = 256 * 1024
#: A read is offered at least this much room; a chunk with less is retired.
_MIN_SPACE_BYTES = 16 * 1024
#: Chunks remembered for reuse; more than that are left to the garbage collector.
_KEPT_CHUNKS = 64
#: How many retired chunks one `take` looks at before it allocates.
_LOOK_AT = 4
#: References to a chunk that only the pool's queue holds: the queue is asked through a local and a call.
_UNSHARED = 3 if sys.implementation.name == "cpython" else 0


class BufferPool:
    """Chunks that were filled, waiting until their last view is gone."""

    def __init__(self) -> None:
        self._retired: deque[bytearray] = deque()

    def take(self) -> bytearray:
        """A chunk that nobody else refers to."""
        for _ in range(min(_LOOK_AT, len(self._retired))):
            chunk = self._retired[0]
            if sys.getrefcount(chunk) == _UNSHARED:
                return self._retired.popleft()
            self._retired.rotate(-1)
        return bytearray(CHUNK_BYTES)

    def retire(self, chunk: bytearray) -> None:
        """Give a chunk back; views of it may still live."""
        if len(self._retired) < _KEPT_CHUNKS:
            self._retired.append(chunk)


class Inbox:
    """Bytes that arrived on one connection, in order, as slices of pooled chunks."""

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._chunk: bytearray | None = None
        self._start = 0  # of the bytes in the current chunk that nobody took yet
        self._end = 0
        self._full: deque[memoryview] = deque()  # from chunks before the current one
        self.size = 0

    def space(self) -> memoryview:
        """Room for the next bytes."""
        if self._chunk is None or CHUNK_BYTES - self._end < _MIN_SPACE_BYTES:
            self._turn_over()
        return memoryview(self._chunk)[self._end :]  # type: ignore[arg-type]

    def filled(self, count: int) -> None:
        """`count` bytes arrived in the room given last."""
        self._end += count
        self.size += count

    def take(self) -> memoryview:
        """The oldest bytes, all that lie together; only when `size` is not zero."""
        if self._full:
            taken = self._full.popleft()
        else:
            taken = memoryview(self._chunk)[self._start : self._end]  # type: ignore[arg-type]
            self._start = self._end
        self.size -= len(taken)
        return taken

    def finish(self) -> None:
        """Nothing more will come: the chunk goes back, whoever may still hold the connection."""
        if self._chunk is not None:
            if self._start < self._end:
                self._full.append(memoryview(self._chunk)[self._start : self._end])
            self._pool.retire(self._chunk)
            self._chunk = None
            self._start = self._end = 0

    def _turn_over(self) -> None:
        self.finish()
        self._chunk = self._pool.take()
        self._start = self._end = 0
