"""What a session owes its client: how much was accepted, and which answers wait to be sent.

A request is charged when it is accepted and paid back when its answer has left this process, not when the
answer is merely known. So a client that does not read its answers runs out of credit, and costs bounded memory.
"""

import asyncio
from collections.abc import Sequence

from weir.bookie.serving import SessionLimits
from weir.model.check import check
from weir.model.ids import Buffer
from weir.runtime.interfaces import Clock, Connection
from weir.runtime.waiters import Waiters
from weir.wire.bookie import encode_done


class Outbox:
    """Answers of one session. Everything that is answered in one turn of the loop goes out in one write."""

    def __init__(self, connection: Connection, clock: Clock, limits: SessionLimits) -> None:
        self._connection = connection
        self._clock = clock
        self._limits = limits
        #: Accepted and not yet sent: requests, and the bytes that they or their answers hold.
        self.requests = 0
        self.bytes = 0
        #: Since when the client has not been reading its answers.
        self.stalled_at: float | None = None
        self._done: list[int] = []
        self._out: list[Buffer] = []
        # What is paid back once `_done` and `_out` have been sent.
        self._owed_requests = 0
        self._owed_bytes = 0
        self._capacity = Waiters()
        self._wake = asyncio.Event()

    @property
    def full(self) -> bool:
        return self.requests >= self._limits.max_requests or self.bytes >= self._limits.max_bytes

    async def wait_capacity(self) -> None:
        """Wait until one more request may be accepted; its one caller is the session's receive loop."""
        await self._capacity.wait_until(lambda: not self.full)

    def accept(self, size: int) -> None:
        """Charge one request, with the bytes that it or its answer may hold."""
        self.requests += 1
        self.bytes += size

    def done(self, request_id: int, charged: int) -> None:
        """Answer an accepted request with success, in one frame with all others of this turn."""
        self._done.append(request_id)
        self._owed_requests += 1
        self._owed_bytes += charged
        self._wake.set()

    def answer(self, buffers: Sequence[Buffer], charged: int) -> None:
        """Answer an accepted request with a frame; from now on it is charged with what the frame holds."""
        size = sum(map(len, buffers))
        self.bytes += size - charged
        self._out += buffers
        self._owed_requests += 1
        self._owed_bytes += size
        self._wake.set()

    def say(self, buffers: Sequence[Buffer]) -> None:
        """A frame that answers no charged request."""
        self.accept(0)
        self.answer(buffers, 0)

    def wake(self) -> None:
        """Let `wait` return: something changed for whoever sends."""
        self._wake.set()

    async def wait(self) -> None:
        """Wait until there may be something to send."""
        self._wake.clear()
        await self._wake.wait()

    @property
    def has_output(self) -> bool:
        return bool(self._out or self._done)

    async def send(self) -> None:
        """Write all that is ready, wait until the client takes it, and pay back what it was charged."""
        buffers, self._out = self._out, []
        if self._done:
            buffers.append(encode_done(self._done))
            self._done = []
        requests, self._owed_requests = self._owed_requests, 0
        size, self._owed_bytes = self._owed_bytes, 0
        self._connection.write(buffers)
        self.stalled_at = self._clock.monotonic()
        await self._connection.drain()
        self.stalled_at = None
        self._pay_back(requests, size)

    def _pay_back(self, requests: int, size: int) -> None:
        self.requests -= requests
        self.bytes -= size
        check(self.requests >= 0 and self.bytes >= 0, "no more is paid back than was charged")
        if not self.full:
            self._capacity.wake()
