"""A limit on bytes per second."""

from weir.runtime.interfaces import Clock


class Throttle:
    """Lets bytes through at a rate, by making whoever is ahead of it wait."""

    def __init__(self, clock: Clock, *, bytes_per_s: float) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._free_at = clock.monotonic()

    async def take(self, size: int) -> None:
        """Wait until what was let through before is paid for; then let `size` bytes through."""
        now = self._clock.monotonic()
        wait_s = self._free_at - now
        self._free_at = max(self._free_at, now) + size / self._bytes_per_s
        if wait_s > 0:
            await self._clock.sleep(wait_s)
