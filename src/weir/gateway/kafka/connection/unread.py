"""What one client was answered and has not read: counted from before it is read until it is sent."""

from weir.gateway.kafka.connection.answers import Answers
from weir.gateway.kafka.services import Services
from weir.model.check import check
from weir.runtime.byte_budget import ByteShare
from weir.runtime.interfaces import Connection
from weir.runtime.movable import liveness
from weir.runtime.outbox import Outbox

#: While others wait for capacity, a client reads at such a rate, looked at over `patience_s`.
_SLOWEST_BYTES_PER_S = 64 * 1024
_LOOKS = 3


class UnreadAnswers:
    """A share of the bytes that clients have not read. A fetch reserves before it reads; what it reserved is held
    until the socket has taken it, so answers that wait to be sent are counted like those that are being made."""

    def __init__(self, share: ByteShare, connection: Connection, answers: Answers, services: Services) -> None:
        self._share = share
        self._connection = connection
        self._answers = answers
        self._patience_s = services.settings.receive_patience_s
        #: Of what is held: bytes of requests that are answered.
        self._answered = 0
        self._sent = 0
        self._looked_at = (liveness(services.clock).monotonic(), 0)
        self._looks = 0

    async def let_read(self, outbox: Outbox) -> None:
        """The request at hand is answered: wait until its client has read most of it, or ConnectionLostError."""
        outbox.flush()
        check(self._answered <= self._share.used_bytes, "what was answered was reserved")
        self._answered = self._share.used_bytes
        try:
            await outbox.drain()
        finally:
            self.count()

    def count(self) -> None:
        """Release what the socket has taken since."""
        unsent = self._connection.unsent_bytes + self._answers.queued_bytes
        left = min(self._answered, unsent)
        self._sent += self._answered - left
        self._share.release(self._answered - left)
        self._answered = left
        pressure = self._share.budget.on_pressure
        if left:
            pressure[self] = self.count  # it may have been sent by the time that others wait for it
        else:
            pressure.pop(self, None)

    def late(self, now: float) -> bool:
        """Whether others wait for capacity while this client hardly reads what it was sent."""
        self.count()
        since, sent = self._looked_at
        if not self._answered or self._sent - sent >= _SLOWEST_BYTES_PER_S * self._patience_s:
            self._looked_at, self._looks = (now, self._sent), 0
            return False
        self._looks += 1  # a broker that was busy itself looks again before it blames others
        return now - since > self._patience_s and self._looks > _LOOKS and self._share.budget.waiting > 0

    def close(self) -> None:
        """The connection is gone."""
        self._answered = 0
        self._share.budget.on_pressure.pop(self, None)
        self._share.close()
