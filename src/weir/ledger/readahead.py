"""Reading ahead of a consumer, bounded by bytes."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable

from weir.model.ids import EntryId
from weir.wire.entry import HEADER_BYTES, Entry

ReadChunk = Callable[[EntryId, EntryId], Awaitable[list[Entry]]]


async def read_ahead(
    read_chunk: ReadChunk, first: EntryId, last: EntryId, *, max_bytes: int
) -> AsyncGenerator[list[Entry], None]:
    """Chunks of [first, last] in order, the next ones being read while the consumer works on one, as long as less
    than `max_bytes` wait for it."""
    ahead = _Ahead(max_bytes)
    pump = asyncio.get_running_loop().create_task(_pump(read_chunk, first, last, ahead))
    try:
        while (chunk := await ahead.take()) is not None:
            yield chunk
        await pump  # raises what ended it early
    finally:
        pump.cancel()


async def _pump(read_chunk: ReadChunk, first: EntryId, last: EntryId, ahead: "_Ahead") -> None:
    try:
        while first <= last:
            await ahead.wait_capacity()
            chunk = await read_chunk(first, last)
            ahead.put(chunk)
            first = EntryId(chunk[-1].entry_id + 1)
    finally:
        ahead.end()


class _Ahead:
    """Chunks between the pump and the consumer; one of each, so one event is enough."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._chunks: deque[tuple[list[Entry], int]] = deque()
        self._bytes = 0
        self._ended = False
        self._moved = asyncio.Event()

    async def wait_capacity(self) -> None:
        while self._bytes >= self._max_bytes:
            await self._move()

    def put(self, chunk: list[Entry]) -> None:
        size = sum(HEADER_BYTES + len(entry.payload) for entry in chunk)
        self._chunks.append((chunk, size))
        self._bytes += size
        self._moved.set()

    def end(self) -> None:
        self._ended = True
        self._moved.set()

    async def take(self) -> list[Entry] | None:
        while not self._chunks:
            if self._ended:
                return None
            await self._move()
        chunk, size = self._chunks.popleft()
        self._bytes -= size
        self._moved.set()
        return chunk

    async def _move(self) -> None:
        self._moved.clear()
        await self._moved.wait()
