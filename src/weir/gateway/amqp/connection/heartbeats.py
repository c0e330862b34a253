"""Heartbeats of one connection, both ways. Any bytes are a sign of life, so they are sent into silence only."""

from collections.abc import Callable

from weir.runtime.interfaces import Clock, Connection
from weir.runtime.movable import liveness
from weir.wire.amqp.frames import HEARTBEAT_FRAME

#: Who says nothing for so many intervals is taken for dead.
_MISSED = 2.5


class Heartbeats:
    def __init__(self, clock: Clock, transport: Connection, say: Callable[[bytes], None]) -> None:
        self._clock = liveness(clock)
        self._transport = transport
        self._say = say
        #: As negotiated, in seconds; 0: none.
        self.interval_s = 0
        self.heard_at = self._clock.monotonic()
        self._said_at = self.heard_at

    def heard(self) -> None:
        self.heard_at = self._clock.monotonic()

    def beat(self, now: float) -> None:
        """Say that this side lives, twice per interval, unless the client has unread bytes anyway."""
        if self.interval_s and now - self._said_at >= self.interval_s / 2 and not self._transport.unsent_bytes:
            self._said_at = now
            self._say(HEARTBEAT_FRAME)

    def missed(self, now: float) -> bool:
        return bool(self.interval_s) and now - self.heard_at > self.interval_s * _MISSED
