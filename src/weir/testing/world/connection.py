"""A simulated connection: two ends, and a pipe of ordered bytes in each direction, much like TCP."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass

from weir.model.check import check
from weir.model.errors import ConnectionLostError
from weir.model.ids import Buffer
from weir.testing.world.incarnation import Incarnation
from weir.testing.world.links import Link
from weir.testing.world.loop import SimLoop

#: `drain` waits while more than this is queued at the sender.
HIGH_WATER_BYTES = 64 * 1024
#: Travelling and unread bytes of one direction; a receiver that does not read stops its sender.
WINDOW_BYTES = 256 * 1024
SEGMENT_BYTES = 64 * 1024
_POWER_LOSS = "power loss"


@dataclass(frozen=True, slots=True)
class Wire:
    """What connections need of the world."""

    loop: SimLoop
    #: Belongs to no node, so that what is on its way arrives though its sender is dead.
    context: Context
    note: Callable[[str, str, str], None]
    #: Called with a connection's number when both its ends are done.
    forget: Callable[[int], None]


class Pipe:
    """One direction: what is queued at the sender, and what is in flight, in order whatever the delays.

    An empty segment in flight is the end of the stream. Arrivals are ticks that deliver the oldest segment, so
    no delay can reorder; those that come while the link is blocked are made up for when it opens again.
    """

    __slots__ = (
        "_ended",
        "_ending",
        "_flight",
        "_last_arrival",
        "_missed",
        "_pump_due",
        "_queue",
        "_target",
        "_travelling",
        "_wire",
        "end_arrived",
        "label",
        "link",
        "queued_bytes",
        "severed",
        "source",
    )

    def __init__(self, wire: Wire, link: Link, label: str, source: SimConnection, target: SimConnection) -> None:
        self.link = link
        self.label = label
        self.source = source
        self.queued_bytes = 0
        #: Nothing gets through any more.
        self.severed = False
        self.end_arrived = False
        self._target = target
        self._wire = wire
        self._queue: deque[memoryview] = deque()
        self._flight: deque[bytes] = deque()
        self._travelling = 0
        self._missed = 0
        self._last_arrival = 0.0
        self._pump_due = False
        self._ending = False
        self._ended = False

    def push(self, data: bytes) -> None:
        """Queue bytes; those queued in the same turn of the loop travel together."""
        self._queue.append(memoryview(data))
        self.queued_bytes += len(data)
        self._want_pump()

    def end(self) -> None:
        """End the stream after what is queued."""
        self._ending = True
        self._want_pump()

    def sever(self) -> None:
        """Drop what is queued and what is in flight."""
        self.severed = True
        self._queue.clear()
        self._flight.clear()
        self.queued_bytes = 0

    def drop_queued(self) -> None:
        self._queue.clear()
        self.queued_bytes = 0

    def consumed(self, size: int) -> None:
        """The receiver read that much: the window opens."""
        self._travelling -= size
        if self._queue or self._ending:
            self._want_pump()

    def _want_pump(self) -> None:
        if not self._pump_due and not self.severed:
            self._pump_due = True
            self._wire.loop.call_soon(self._pump, context=self._wire.context)

    def _pump(self) -> None:
        self._pump_due = False
        if self.severed:
            return
        rng, faults = self.link.rng, self.link.faults
        while self._queue and self._travelling < WINDOW_BYTES:
            segment = self._next_segment()
            if len(segment) > 1 and rng.random() < faults.split_chance:
                cut = rng.randrange(1, len(segment))
                self._launch(segment[:cut])
                segment = segment[cut:]
            self._launch(segment)
        if self._ending and not self._queue and not self._ended:
            self._ended = True
            self._launch(b"")
        self.source.sent()

    def _next_segment(self) -> bytes:
        pieces = []
        room = SEGMENT_BYTES
        while self._queue and room:
            piece = self._queue.popleft()
            if len(piece) > room:
                self._queue.appendleft(piece[room:])
                piece = piece[:room]
            pieces.append(piece)
            room -= len(piece)
        segment = b"".join(pieces)
        self.queued_bytes -= len(segment)
        return segment

    def _launch(self, segment: bytes) -> None:
        wire = self._wire
        size = len(segment)
        self._travelling += size
        self._flight.append(segment)
        wire.note(self.link.source, "net-send", f"{self.label} {size} {zlib.crc32(segment):08x}")
        self._schedule(size)

    def _schedule(self, size: int) -> None:
        loop = self._wire.loop
        self._last_arrival = max(self._last_arrival, self.link.arrival(loop.time(), size))
        loop.call_at(self._last_arrival, self._arrive, context=self._wire.context)

    def _arrive(self) -> None:
        if self.severed or not self._flight:
            return
        if self.link.blocked:
            self._missed += 1
            return
        segment = self._flight.popleft()
        self._wire.note(self.link.target, "net-arrive", f"{self.label} {len(segment)}")
        if not segment:
            self.end_arrived = True
        elif self.link.faults.reset_chance and self.link.rng.random() < self.link.faults.reset_chance:
            self.source.lose("the network lost it")
            return
        self._target.arrived(segment)

    def unblocked(self) -> None:
        """The link is open again: what it held back is sent once more."""
        missed, self._missed = self._missed, 0
        for segment in list(self._flight)[:missed]:
            self._schedule(len(segment))


class SimConnection:
    """One end of a connection, as the code of one incarnation sees it."""

    def __init__(self, wire: Wire, owner: Incarnation, number: int, peer: str) -> None:
        self.owner = owner
        self.number = number
        self._wire = wire
        self._peer = peer
        self._inbox: deque[bytes] = deque()
        self._ended = False
        self._closed = False
        self._lost: str | None = None
        self._reader: asyncio.Future[None] | None = None
        self._drainers: dict[asyncio.Future[None], None] = {}
        self._out: Pipe
        self._in: Pipe
        self._other: SimConnection

    def join(self, other: SimConnection, out: Pipe, incoming: Pipe) -> None:
        self._other, self._out, self._in = other, out, incoming

    # --- weir.runtime.Connection --------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def certificate(self) -> bytes | None:
        return None

    @property
    def on_reserve(self) -> bool:
        return False

    async def receive(self) -> Buffer:
        if not self.owner.alive:
            await self.owner.gone()
        check(self._reader is None, "one task receives at a time")
        while True:
            if self._closed:
                return b""
            if self._inbox:
                return self._take()
            if self._ended:
                return b""
            if self._lost is not None:
                raise ConnectionLostError(f"the connection to {self._peer} broke: {self._lost}")
            self._reader = self._wire.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None

    def write(self, buffers: Sequence[Buffer]) -> None:
        if self._lost is None and not self._closed and self.owner.alive:
            data = b"".join(buffers)
            if data:
                self._out.push(data)

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._lost is not None else self._out.queued_bytes

    async def drain(self) -> None:
        if not self.owner.alive:
            await self.owner.gone()
        while True:
            if self._lost is not None:
                raise ConnectionLostError(f"the connection to {self._peer} broke: {self._lost}")
            if self._out.queued_bytes <= HIGH_WATER_BYTES:
                return
            waiter = self._wire.loop.create_future()
            self._drainers[waiter] = None
            try:
                await waiter
            finally:
                self._drainers.pop(waiter, None)

    def close(self) -> None:
        if self._closed or self._lost is not None or not self.owner.alive:
            return
        self._closed = True
        self._discard_inbox()
        self._out.end()
        self._wake()

    def abort(self) -> None:
        if self._lost is None and self.owner.alive:
            self.break_("aborted")
            self.reset_other()

    # --- for the pipes and the network --------------------------------------------------------------------

    def _take(self) -> Buffer:
        """Everything that came or only the first piece: the reader may count on neither."""
        if len(self._inbox) > 1 and self._in.link.rng.random() < 0.5:
            data = b"".join(self._inbox)
            self._inbox.clear()
        else:
            data = self._inbox.popleft()
        self._in.consumed(len(data))
        return memoryview(data)

    def _discard_inbox(self) -> None:
        size = sum(map(len, self._inbox))
        self._inbox.clear()
        self._in.consumed(size)

    def arrived(self, segment: bytes) -> None:
        """A segment, or the end of the stream, came in."""
        if not self.owner.alive:
            # The operating system of a killed process answers for it; a machine without power does not.
            if segment and self._lost != _POWER_LOSS:
                self.reset_other()
            return
        if self._lost is not None or self._closed:
            self._in.consumed(len(segment))
            if self._lost is not None or (segment and self._out.end_arrived):
                self.reset_other()
            self._forget_if_done()
            return
        if segment:
            self._inbox.append(segment)
        else:
            self._ended = True
        self._wake()

    def sent(self) -> None:
        """The pipe took bytes from the queue."""
        if self._out.queued_bytes <= HIGH_WATER_BYTES:
            self._wake_drainers()

    def break_(self, why: str) -> None:
        """This end learns that the connection is broken."""
        if self._lost is not None:
            return
        self._lost = why
        self._wire.note(self.owner.node, "net-lost", f"{self._out.label} {why}")
        self._out.drop_queued()
        # What came before the break may or may not be read any more, as with a real socket.
        if why == "aborted" or self._in.link.rng.random() < 0.5:
            self._discard_inbox()
        self._wake()
        self._wake_drainers()
        self._forget_if_done()

    def reset_other(self) -> None:
        """Tell the other end that this one is gone; if the link is cut, it finds out by its keepalive."""
        loop, link = self._wire.loop, self._out.link

        def arrive() -> None:
            if link.blocked:
                loop.call_later(
                    link.faults.keepalive_s, self._other.break_, "keepalive", context=self._wire.context
                )
            else:
                self._other.break_("reset by peer")

        loop.call_at(link.arrival(loop.time()), arrive, context=self._wire.context)

    def lose(self, why: str) -> None:
        """The connection is gone; one end learns it now, the other some time later."""
        self._out.sever()
        self._in.sever()
        faults, rng = self._out.link.faults, self._out.link.rng
        first, second = (self, self._other) if rng.random() < 0.5 else (self._other, self)
        first.break_(why)
        self._wire.loop.call_later(faults.notice_s * rng.random(), second.break_, why, context=self._wire.context)

    def owner_died(self, *, power_loss: bool) -> None:
        """The node crashed. The operating system of a killed process ends its connections; after power loss
        the other side finds out later."""
        rng, faults = self._out.link.rng, self._out.link.faults
        self._inbox.clear()
        if self._lost is not None:
            return
        if power_loss:
            self._lost = _POWER_LOSS
            self._out.drop_queued()
            self._wire.loop.call_later(
                faults.notice_s * rng.random(), self._other.break_, "reset by peer", context=self._wire.context
            )
        elif rng.random() < 0.5:
            self._closed = True
            self._out.end()
        else:
            self._lost = "killed"
            self._out.drop_queued()
            self.reset_other()
        self._forget_if_done()

    def unblocked(self, link: Link) -> None:
        for pipe in (self._out, self._in):
            if pipe.link is link:
                pipe.unblocked()

    def crosses(self, link: Link) -> bool:
        return self._out.link is link or self._in.link is link

    @property
    def done(self) -> bool:
        return self._lost is not None or (self._closed and self._out.end_arrived)

    def _forget_if_done(self) -> None:
        if self.done and self._other.done:
            self._wire.forget(self.number)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_drainers(self) -> None:
        for waiter in self._drainers:
            if not waiter.done():
                waiter.set_result(None)
        self._drainers.clear()
