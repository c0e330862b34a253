"""Whether a connection is told to wait with what it publishes (connection.blocked)."""

from types import TracebackType
from typing import TYPE_CHECKING

from weir.runtime.interfaces import Timer
from weir.wire.amqp.methods import connection

if TYPE_CHECKING:
    from weir.gateway.amqp.connection.session import Session

_REASON = "the broker cannot store more for now"


class Blocking:
    """Entered while the session is held back; the client is told if that takes a while, and when it is over."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._timer: Timer | None = None
        self.blocked = False

    def __enter__(self) -> None:
        session = self._session
        self._timer = session.clock.call_later(session.limits.blocked_after_s, self._tell)

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, where: TracebackType | None
    ) -> None:
        self.forget()
        if self.blocked:
            self.blocked = False
            if self._session.capable("connection.blocked"):
                self._session.say(connection.Unblocked())

    def forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        self.blocked = True
        self._session.services.metrics.blocked += 1
        if self._session.capable("connection.blocked"):
            self._session.say(connection.Blocked(_REASON))
