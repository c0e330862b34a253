"""Byte budgets for memory: a bound for all holders together, a share for each, and waiting for capacity.

Everything in Weir that bounds memory by bytes uses one: received requests (`request_budget`), batches that are not
stored yet, deliveries and answers that clients have not read. `acquire` counts bytes that exist already and never
refuses, so holders must check before: `exhausted`, `wait_capacity` or `reserve`.

`RequestBudget` bounds the bytes of requests in reception or in service, over all listeners: above the limit,
servers do not read sockets. A request that arrives in several pieces first announces its size; the server reads on
once it has capacity for the whole request, so every request in reception can complete, without deadlock. Small and
large requests each have a byte budget of half the limit with the smallest waiting request first, so that large
ones never block small ones. A lone request always has capacity, whatever its size. A server ends a connection as
late if it has capacity that others wait for, and sends too slowly.
"""

import asyncio
from bisect import insort_right
from collections.abc import Callable
from typing import NamedTuple

from weir.model.check import check
from weir.model.errors import TooManyError
from weir.runtime.adjustable_clock import liveness
from weir.runtime.interfaces import Clock
from weir.runtime.waiters import Waiters

#: Maximum of waiting reservations, since each of them has the bytes that announced its size.
MAX_WAITING = 256


class _Turn(NamedTuple):
    size: int
    granted: "asyncio.Future[None]"


class ByteBudget:
    """A bound on all shares together; it is exhausted above `limit_bytes`, until usage falls to `resume_bytes` (by
    default the same).

    While it is exhausted, shares above their assured bytes wait. The assured bytes are an equal part of the limit
    (so that a flood slows itself down, and usage stays within twice the limit plus one acquisition of each share),
    or nothing, where each share may still have one acquisition: no share starves.
    """

    def __init__(
        self,
        limit_bytes: int,
        *,
        resume_bytes: int | None = None,
        equal_parts: bool = True,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self.limit_bytes = limit_bytes
        self._resume_bytes = limit_bytes if resume_bytes is None else resume_bytes
        check(self._resume_bytes <= limit_bytes, "a budget resumes below its limit")
        self._equal_parts = equal_parts
        self._max_waiting = max_waiting
        #: Shares with callbacks for new capacity.
        self.callers: dict[ByteShare, None] = {}
        self._line: list[_Turn] = []
        self.used_bytes = 0
        #: Shares that use something.
        self.holders = 0
        self.exhausted = False
        #: Called when a reservation begins to wait: holders may release bytes that they do not need.
        self.on_pressure: dict[object, Callable[[], None]] = {}
        #: Tasks that wait for the capacity of some share.
        self.waiters = Waiters()

    def share(self, limit_bytes: int | None = None) -> "ByteShare":
        """One holder's part; with a limit of its own, if it is given."""
        return ByteShare(self, limit_bytes)

    @property
    def left_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)

    @property
    def assured_bytes(self) -> int:
        """The bytes that each share may use while the budget is exhausted."""
        return self.limit_bytes // max(1, self.holders) if self._equal_parts else 0

    @property
    def waiting(self) -> int:
        """Reservations that wait for capacity."""
        return len(self._line)

    def has_capacity(self, size: int) -> bool:
        """Whether so much fits below the limit; a lone one always does, whatever its size."""
        return not self.used_bytes or self.used_bytes + size <= self.limit_bytes

    # --- for the shares ---------------------------------------------------------------------------------

    def moved(self, size: int, holders: int) -> None:
        """Apply an acquisition (or a release, if negative) of a share, and the change in the number of holders."""
        self.used_bytes += size
        self.holders += holders
        check(self.used_bytes >= 0 and self.holders >= 0, "no more is released than was acquired")
        if size > 0:
            self.exhausted = self.exhausted or self.used_bytes > self.limit_bytes
            return
        if self._line:
            self._grant()
        if self.exhausted and self.used_bytes <= self._resume_bytes:
            self.exhausted = False
            for share in list(self.callers):
                share.call_waiting()
        if len(self.waiters):
            self.waiters.wake()

    async def reserve(self, share: "ByteShare", size: int) -> None:
        if self.has_capacity(size):  # others in the line wait for larger sizes
            share.acquire(size)
            return
        turn = _Turn(size, asyncio.get_running_loop().create_future())
        insort_right(self._line, turn, key=lambda other: other.size)
        if len(self._line) > self._max_waiting:
            refused = self._line.pop()
            if not refused.granted.done():
                refused.granted.set_exception(
                    TooManyError("too many requests wait to be read", hint="connect anew")
                )
        for call in list(self.on_pressure.values()):
            call()
        # The budget counts a grant immediately; the share adopts it when its task wakes.
        try:
            await turn.granted
        except asyncio.CancelledError:
            if turn in self._line:
                self._line.remove(turn)
            elif not turn.granted.cancelled() and turn.granted.exception() is None:
                self.moved(-size, 0)
            raise
        if share.closed:
            self.moved(-size, 0)
        else:
            share.adopt(size)

    def _grant(self) -> None:
        while self._line and self.has_capacity(self._line[0].size):
            turn = self._line.pop(0)
            if not turn.granted.done():  # else its holder is gone
                self.used_bytes += turn.size
                self.exhausted = self.exhausted or self.used_bytes > self.limit_bytes
                turn.granted.set_result(None)


class ByteShare:
    """The part of a budget that one holder (a connection, a topic) uses."""

    __slots__ = ("_limit_bytes", "_over", "_waiting", "budget", "closed", "used_bytes")

    def __init__(self, budget: ByteBudget, limit_bytes: int | None) -> None:
        self.budget = budget
        self._limit_bytes = limit_bytes
        self._over = False
        self._waiting: dict[object, Callable[[], None]] = {}
        self.used_bytes = 0
        self.closed = False

    @property
    def exhausted(self) -> bool:
        """Whether this holder should acquire nothing for now: it is over its own limit (until it has released half
        of that), or the budget is exhausted and it uses more than its assured bytes."""
        budget = self.budget
        return self._over or (budget.exhausted and self.used_bytes > budget.assured_bytes)

    @property
    def left_bytes(self) -> int:
        """Of the whole budget."""
        return self.budget.left_bytes

    def acquire(self, size: int) -> None:
        """Count existing bytes. A closed share counts nothing, since its bytes are about to be freed."""
        check(size >= 0, "an acquired size is not negative")
        if self.closed or not size:
            return
        before, self.used_bytes = self.used_bytes, self.used_bytes + size
        if self._limit_bytes is not None and self.used_bytes >= self._limit_bytes:
            self._over = True
        self.budget.moved(size, 0 if before else 1)

    async def reserve(self, size: int) -> None:
        """Acquire once the whole size fits: the smallest waiting reservation is first. If too many wait, the
        largest gets TooManyError. In an empty budget it always fits."""
        await self.budget.reserve(self, size)

    def adopt(self, size: int) -> None:
        """A reservation that the budget counts already becomes this share's."""
        before, self.used_bytes = self.used_bytes, self.used_bytes + size
        if not before and size:
            self.budget.holders += 1

    def release(self, size: int) -> None:
        """Bytes that were acquired are gone. After `close` there is nothing left to release."""
        check(size >= 0, "a released size is not negative")
        if self.closed or not size:
            return
        check(size <= self.used_bytes, "a holder releases no more than it acquired")
        was_exhausted = self.exhausted
        self.used_bytes -= size
        if self._over and self._limit_bytes is not None and self.used_bytes <= self._limit_bytes // 2:
            self._over = False
        self.budget.moved(-size, 0 if self.used_bytes else -1)
        if was_exhausted:
            self.call_waiting()

    def release_all(self) -> None:
        self.release(self.used_bytes)

    async def wait_capacity(self) -> None:
        """Wait while it is exhausted."""
        while self.exhausted:
            await self.budget.waiters.wait()

    def on_capacity(self, who: object, call: Callable[[], None]) -> None:
        """Call a plain function whenever it may not be exhausted any more, until `forget`."""
        self._waiting[who] = call
        self.budget.callers[self] = None

    def forget(self, who: object) -> None:
        self._waiting.pop(who, None)
        if not self._waiting:
            self.budget.callers.pop(self, None)

    def call_waiting(self) -> None:
        for call in list(self._waiting.values()):
            if self.exhausted:
                return
            call()

    def close(self) -> None:
        """Release everything when the holder ends."""
        if self.closed:
            return
        self._waiting.clear()
        self.budget.callers.pop(self, None)
        self.release_all()
        self.closed = True


MIB = 1024 * 1024
#: A request in reception does not count up to this size: heartbeats, fetches and most others.
FREE_BYTES = 16 * 1024
#: The fraction of the limit up to which a request counts as small: 16 MiB at a limit of 256 MiB.
_SMALL_PART = 16
#: While others wait, a request may pause this long, and must arrive at least at this rate.
PATIENCE_S = 5.0
_HURRY_BYTES_PER_S = MIB


class RequestBudget:
    """All connections of all listeners together."""

    def __init__(self, limit_bytes: int, patience_s: float = PATIENCE_S, max_waiting: int = MAX_WAITING) -> None:
        self.limit_bytes = limit_bytes
        self.patience_s = patience_s
        self.small_bytes = limit_bytes // _SMALL_PART
        self.small = ByteBudget(limit_bytes // 2, max_waiting=max_waiting)
        self.large = ByteBudget(limit_bytes - limit_bytes // 2, max_waiting=max_waiting)

    @property
    def used_bytes(self) -> int:
        return self.small.used_bytes + self.large.used_bytes

    @property
    def exhausted(self) -> bool:
        """Whether a connection should have at most one request in progress."""
        return self.small.used_bytes + self.large.used_bytes >= self.limit_bytes

    @property
    def waiting(self) -> int:
        """Connections that are not read until there is capacity."""
        return self.small.waiting + self.large.waiting

    def of_size(self, size: int) -> ByteBudget:
        """The budget of requests that large."""
        return self.small if size <= self.small_bytes else self.large


class RequestShare:
    """One connection's part of it."""

    def __init__(self, budget: RequestBudget, clock: Clock) -> None:
        self._budget = budget
        self._clock = liveness(clock)
        self._small, self._large = budget.small.share(), budget.large.share()
        #: The size of the request in reception, if it has capacity.
        self.arriving = 0
        self._since = 0.0

    @property
    def exhausted(self) -> bool:
        return self._budget.exhausted

    async def wait_capacity(self, announced: int) -> None:
        """Wait until a request of that size may be read to its end. TooManyError if too many smaller ones wait."""
        if announced <= FREE_BYTES or self.arriving:
            return
        await self._of_size(announced).reserve(announced)
        self.arriving = announced
        self._since = self._clock.monotonic()

    def acquire(self, size: int) -> None:
        """Count a complete request: the announced one, or one in a single piece."""
        if self.arriving == size:
            self.arriving = 0  # it is counted already
            return
        if self.arriving:
            self.arrived()
        self._of_size(size).acquire(size)

    def release(self, size: int) -> None:
        """A request is answered."""
        self._of_size(size).release(size)

    def arrived(self) -> None:
        """Release the request in reception, if any: it is complete, and its owner counts it from now on."""
        size, self.arriving = self.arriving, 0
        self._of_size(size).release(size)

    def late(self, now: float, heard_at: float) -> bool:
        """Whether others wait while its request does not arrive; `heard_at`: when it last sent bytes."""
        if not self.arriving or not self._budget.of_size(self.arriving).waiting:
            return False
        silent_s, all_s, patience_s = now - max(heard_at, self._since), now - self._since, self._budget.patience_s
        return silent_s > patience_s or all_s > patience_s + self.arriving / _HURRY_BYTES_PER_S

    def close(self) -> None:
        """The connection is gone."""
        self.arriving = 0
        self._small.close()
        self._large.close()

    def _of_size(self, size: int) -> ByteShare:
        return self._small if size <= self._budget.small_bytes else self._large
