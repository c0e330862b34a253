"""Bytes of requests that are being received or served, over all listeners: above a limit, sockets are not read.

A request that does not come in one piece says first how large it is. It is read on once there is capacity for all
of it, so everything that is being received can come to its end: nobody waits for what another holds while that one
waits too. Small requests and large ones have a byte budget of half the limit each, in whose lines the smallest are
first, so that large ones never keep small ones out. A lone one always has capacity, whatever its size. Whoever
sits on capacity that others wait for, and sends too slowly, is late: its connection is ended.
"""

from weir.runtime.byte_budget import MAX_WAITING, ByteBudget, ByteShare
from weir.runtime.interfaces import Clock
from weir.runtime.movable import liveness

MIB = 1024 * 1024
#: So much of a request that has not come whole yet counts for nothing: heartbeats, fetches and most others.
FREE_BYTES = 16 * 1024
#: The part of the limit that a request may have and still count as small: 16 MiB, where nobody set less than 256.
_SMALL_PART = 16
#: While others wait, a request may be silent for so long, and must come at such a rate.
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
        """Whether a connection should have no more than one request under way."""
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
        #: The size of the request that is being received, if there is capacity for it.
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
        """A request came whole: the one for which there was capacity, or one in a single piece."""
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
        """What was being received, if there was something, came whole, and is counted elsewhere from now on."""
        size, self.arriving = self.arriving, 0
        self._of_size(size).release(size)

    def late(self, now: float, heard_at: float) -> bool:
        """Whether others wait while its request does not come; `heard_at`: when it last brought something."""
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
