"""A node's clock: virtual time as this node believes it, with skew and a rate that is a little off."""

import asyncio
from collections.abc import Callable

from weir.testing.world.incarnation import Incarnation, current_incarnation
from weir.testing.world.loop import SimLoop

#: When every world begins: 2024-01-01, in seconds since 1970.
EPOCH_S = 1_704_067_200


class ClockHardware:
    """What makes a node's time differ from true time; may change at any moment."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        #: How far the wall clock is ahead, in seconds. Changing it makes the wall clock jump.
        self.skew_s = 0.0
        self._rate = 1.0
        self._since = 0.0
        self._elapsed = 0.0

    @property
    def rate(self) -> float:
        """Seconds that this node counts per true second."""
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        self._elapsed = self.elapsed()
        self._since = self._loop.time()
        self._rate = rate

    def elapsed(self) -> float:
        """Seconds since the world began, as this node counts them; never goes back."""
        return self._elapsed + (self._loop.time() - self._since) * self._rate

    def wall(self) -> float:
        return EPOCH_S + self.elapsed() + self.skew_s


class NodeClock:
    """What one incarnation sees of its node's clock."""

    def __init__(self, hardware: ClockHardware, loop: SimLoop, owner: Incarnation, offset: float) -> None:
        self._hardware = hardware
        self._loop = loop
        self._owner = owner
        #: Monotonic time starts anywhere after a boot; nobody may count on where.
        self._offset = offset - hardware.elapsed()

    def wall_ms(self) -> int:
        return int(self._hardware.wall() * 1000)

    def monotonic(self) -> float:
        return self._offset + self._hardware.elapsed()

    async def sleep(self, seconds: float) -> None:
        if not self._owner.alive:
            await self._owner.gone()
        await asyncio.sleep(seconds / self._hardware.rate)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        # The call is the node's even when someone outside asks for it through the node's runtime.
        context = None if current_incarnation.get() is self._owner else self._owner.context()
        return self._loop.call_later(seconds / self._hardware.rate, callback, context=context)
