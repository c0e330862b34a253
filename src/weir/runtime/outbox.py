"""What a session says: everything of one turn of the loop goes out in one write, in order."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from weir.model.ids import Buffer
from weir.runtime.interfaces import Clock, Connection
from weir.runtime.movable import liveness

#: Buffers that are smaller than this on average are joined; a write per tiny frame costs more than the copy.
_JOIN_BELOW_BYTES = 4096


class SentBytes(Protocol):
    """Where what is sent is counted, for many clients together."""

    bytes_out: int


class Outbox:
    """Frames on their way to one client. Whoever says much waits in `drain` before saying more."""

    def __init__(self, connection: Connection, clock: Clock, counted: SentBytes | None = None) -> None:
        self._counted = counted
        self._connection = connection
        self._clock = liveness(clock)
        self._loop = asyncio.get_running_loop()
        self._out: list[Buffer] = []
        #: Who has something to say at the end of this turn, and whether somebody has.
        self._last_words: list[Callable[[], None]] = []
        self._due = False
        #: What was written, for whoever looks.
        self.sent_bytes = self.writes = 0
        #: Since when the client has not been reading what it is sent.
        self.stalled_at: float | None = None

    def say(self, frame: Buffer) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn_ends)
        self._out.append(frame)

    def say_all(self, buffers: list[Buffer]) -> None:
        """Frames in pieces, to be written one after the other."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn_ends)
        self._out += buffers

    def say_last(self, words: Callable[[], None]) -> None:
        """Call somebody at the end of this turn, who then says all that the turn has brought."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn_ends)
        self._last_words.append(words)

    def _turn_ends(self) -> None:
        if self._last_words:
            said, self._last_words = self._last_words, []
            for words in said:
                words()
        self._due = False
        self.flush()

    def flush(self) -> None:
        """Write what was said so far now."""
        out = self._out
        if not out:
            return
        self._out = []
        size = sum(map(len, out))
        self.sent_bytes += size
        if self._counted is not None:
            self._counted.bytes_out += size
        self.writes += len(out)
        if len(out) > 1 and size < _JOIN_BELOW_BYTES * len(out):
            self._connection.write([b"".join(out)])
        else:
            self._connection.write(out)

    @property
    def is_clear(self) -> bool:
        """Whether nothing waits to be sent: nobody has to wait in `drain` then."""
        return not self._out and not self._connection.unsent_bytes

    async def drain(self) -> None:
        """Wait while the client has too much to read; ConnectionLostError if it is gone."""
        self.flush()
        if self.stalled_at is None:
            self.stalled_at = self._clock.monotonic()
        try:
            await self._connection.drain()
        finally:
            self.stalled_at = None
