"""Bytes of requests that are being received or served, over all connections: above a limit, sockets are not read.

A request that does not come in one piece says first how large it is. It is read on once there is room for all of
it, so everything that is being received can come to its end: nobody waits for what another holds while that one
waits too. Small requests and large ones have half of the room each, and lines of their own in which the smallest
are first, so that large ones never keep small ones out. A lone one always has room, whatever its size. Whoever
sits on room that others wait for, and sends too slowly, is late: its connection is ended.
"""

import asyncio
from bisect import insort_right
from typing import NamedTuple

from weir.model.errors import TooManyError
from weir.runtime.interfaces import Clock

MIB = 1024 * 1024
#: So much of a request that has not come whole yet counts for nothing: heartbeats, fetches and most others.
FREE_BYTES = 16 * 1024
#: The part of all room that a request may have and still count as small: 16 MiB, where nobody set less than 256.
_SMALL_PART = 16
#: Connections that may wait in each line. More would be too much: each holds what it has sent so far.
MAX_WAITING = 256
#: While others wait, a request may be silent for so long, and must come at such a rate.
PATIENCE_S = 5.0
_HURRY_BYTES_PER_S = MIB


class _Turn(NamedTuple):
    size: int
    granted: "asyncio.Future[None]"


class _Lane:
    """Room for requests of some size, given to the smallest first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken = 0
        self.line: list[_Turn] = []

    def has_room(self, size: int) -> bool:
        return not self.taken or self.taken + size <= self._limit

    def give(self, size: int) -> None:
        self.taken -= size
        self.move_up()

    def move_up(self) -> None:
        while self.line and self.has_room(self.line[0].size):
            turn = self.line.pop(0)
            if not turn.granted.done():  # else its connection is gone
                self.taken += turn.size
                turn.granted.set_result(None)


class Intake:
    """All connections together."""

    def __init__(self, limit: int, patience_s: float = PATIENCE_S) -> None:
        self.limit = limit
        self.patience_s = patience_s
        self.small_bytes = limit // _SMALL_PART
        self._small, self._large = _Lane(limit // 2), _Lane(limit - limit // 2)

    @property
    def taken(self) -> int:
        return self._small.taken + self._large.taken

    @property
    def over(self) -> bool:
        """Whether a connection should have no more than one request under way."""
        return self._small.taken + self._large.taken >= self.limit

    @property
    def waiting(self) -> int:
        """Connections that are not read until there is room."""
        return len(self._small.line) + len(self._large.line)

    def lane(self, size: int) -> _Lane:
        return self._small if size <= self.small_bytes else self._large


class Portion:
    """One connection's part of it."""

    def __init__(self, intake: Intake, clock: Clock) -> None:
        self._intake = intake
        self._clock = clock
        #: The size of the request that is being received, if there is room for it.
        self.arriving = 0
        self._since = 0.0
        #: Sizes of requests that came whole and are not answered.
        self._small = self._large = 0
        self._closed = False

    @property
    def over(self) -> bool:
        return self._intake.over

    async def room(self, announced: int) -> None:
        """Wait until a request of that size may be read to its end. TooManyError if too many smaller ones wait."""
        if announced <= FREE_BYTES or self.arriving:
            return
        lane = self._intake.lane(announced)
        if lane.has_room(announced):  # if others wait, then for more than that
            lane.taken += announced
        else:
            await _wait(lane, announced)
        self.arriving = announced
        self._since = self._clock.monotonic()

    def take(self, size: int) -> None:
        """A request came whole: the one for which there was room, or one in a single piece."""
        if self._closed:
            return
        if self.arriving:
            self._forget_arriving()
        self._intake.lane(size).taken += size
        if size <= self._intake.small_bytes:
            self._small += size
        else:
            self._large += size

    def give(self, size: int) -> None:
        """A request is answered."""
        if self._closed:
            return
        if size <= self._intake.small_bytes:
            self._small -= size
        else:
            self._large -= size
        self._intake.lane(size).give(size)

    def passed(self) -> None:
        """What was being received, if there was something, came whole, and is others' to count from now on."""
        if self.arriving:
            size = self.arriving
            self._forget_arriving()
            self._intake.lane(size).move_up()

    def _forget_arriving(self) -> None:
        self._intake.lane(self.arriving).taken -= self.arriving
        self.arriving = 0

    def late(self, now: float, heard_at: float) -> bool:
        """Whether others wait while its request does not come; `heard_at`: when it last brought something."""
        if not self.arriving or not self._intake.lane(self.arriving).line:
            return False
        silent_s, all_s, patience_s = now - max(heard_at, self._since), now - self._since, self._intake.patience_s
        return silent_s > patience_s or all_s > patience_s + self.arriving / _HURRY_BYTES_PER_S

    def close(self) -> None:
        """The connection is gone."""
        self._closed = True
        self.passed()
        for size, lane in (
            (self._small, self._intake.lane(0)),
            (self._large, self._intake.lane(self._intake.small_bytes + 1)),
        ):
            lane.give(size)
        self._small = self._large = 0


async def _wait(lane: _Lane, size: int) -> None:
    """Wait for one's turn. If too many do, it is the largest that is sent away."""
    turn = _Turn(size, asyncio.get_running_loop().create_future())
    insort_right(lane.line, turn, key=lambda other: other.size)
    if len(lane.line) > MAX_WAITING:
        refused = lane.line.pop()
        if not refused.granted.done():
            refused.granted.set_exception(TooManyError("too many requests wait to be read", hint="connect anew"))
    try:
        await turn.granted
    except asyncio.CancelledError:
        if turn in lane.line:
            lane.line.remove(turn)
        elif not turn.granted.cancelled():
            lane.give(size)
        raise
