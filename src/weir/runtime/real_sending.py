"""What a connection was told to send and its transport has not: bounded in the transport, counted here.

Transports take whatever they are given and differ in what they say of it. asyncio's `writelines` never says
`pause_writing` in Python 3.12.0 to 3.12.8 and 3.13.0 to 3.13.1, and turns for ever around an empty buffer; TLS
does not count what it has encrypted and handed on. So a transport is given one piece after the other, none of
them empty, and asked how much it holds after each; above the mark the rest waits here, as references and not as
copies.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from weir.model.ids import Buffer

#: A transport holds at most its high-water mark and one such piece.
PIECE_BYTES = 256 * 1024


class Sender:
    """The way out of one connection. The protocol passes `pause_writing` and `resume_writing` on to it."""

    def __init__(self, transport: asyncio.Transport, high_bytes: int) -> None:
        self._transport = transport
        self._high_bytes = high_bytes
        self._waiting: deque[Buffer] = deque()
        #: Bytes that the transport has not been given.
        self.waiting_bytes = 0
        self._full = False  # the transport has more than the mark, and has not come down yet
        self._room = asyncio.Event()
        self._room.set()
        transport.set_write_buffer_limits(high=high_bytes)

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Send these after what was written before."""
        if not all(map(len, buffers)):
            buffers = [each for each in buffers if len(each)]
        if not buffers:
            return
        size = sum(map(len, buffers))
        if size <= PIECE_BYTES and not self._full and not self._waiting:
            self._give(buffers)
            return
        self._waiting.extend(buffers)
        self.waiting_bytes += size
        self._give_more()

    @property
    def unsent_bytes(self) -> int:
        """What waits here, and what the transport has (of TLS, all but a few encrypted records)."""
        return self.waiting_bytes + self._transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Wait until the transport has room for more."""
        await self._room.wait()

    def pause(self) -> None:
        """The transport has more than the mark."""
        self._full = True
        self._room.clear()

    def resume(self) -> None:
        """The transport has sent most of what it had."""
        self._full = False
        self._give_more()

    def finish(self) -> None:
        """Give the transport all that waits: it is told to close next, and sends what it has before it does."""
        if self._waiting:
            self._transport.writelines(list(self._waiting))
        self.drop()

    def drop(self) -> None:
        """Nothing that waits will be sent."""
        self._waiting.clear()
        self.waiting_bytes = 0

    def end(self) -> None:
        """The transport is gone, and nobody need wait for it."""
        self.drop()
        self._room.set()

    def _give_more(self) -> None:
        while self._waiting and not self._full:
            self._give(self._next_piece())
        if self._waiting or self._full:
            self._room.clear()
        else:
            self._room.set()

    def _next_piece(self) -> list[Buffer]:
        piece: list[Buffer] = []
        room = PIECE_BYTES
        while self._waiting and room:
            buffer = self._waiting.popleft()
            if len(buffer) > room:
                view = memoryview(buffer)
                buffer = view[:room]
                self._waiting.appendleft(view[room:])
            piece.append(buffer)
            room -= len(buffer)
        self.waiting_bytes -= PIECE_BYTES - room
        return piece

    def _give(self, piece: Sequence[Buffer]) -> None:
        if len(piece) == 1:
            self._transport.write(piece[0])
        else:
            self._transport.writelines(piece)
        if not self._full and self._transport.get_write_buffer_size() > self._high_bytes:
            # It did not say so. Told its limits, every transport looks again; then it also says when it has room.
            self._transport.set_write_buffer_limits(high=self._high_bytes)
