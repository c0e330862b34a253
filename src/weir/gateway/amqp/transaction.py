"""A transaction of one channel: publishes and acknowledgements that take effect at tx.commit."""

from weir.gateway.amqp.errors import precondition_failed
from weir.gateway.amqp.publish_properties import Facts
from weir.gateway.amqp.settings import SessionLimits
from weir.gateway.amqp.unacked import Pending
from weir.runtime.waiters import Waiters
from weir.wire.amqp.methods import basic

#: Method, routing facts and body of a message.
Published = tuple[basic.Publish, Facts, bytes]


class Transaction:
    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits
        self.messages: list[Published] = []
        #: Settled messages with their tags, and the kind of settlement.
        self.settled: list[tuple[list[tuple[int, Pending]], str]] = []
        self._bytes = 0
        self._settlements = 0

    def publish(self, method: basic.Publish, facts: Facts, body: bytes) -> None:
        self._bytes += len(body) + len(facts.raw)
        self.messages.append((method, facts, body))
        self._check()

    def settle(self, taken: list[tuple[int, Pending]], how: str) -> None:
        self._settlements += len(taken)
        self.settled.append((taken, how))
        self._check()

    @property
    def settlements(self) -> int:
        return self._settlements

    def clear(self) -> None:
        self.messages, self.settled = [], []
        self._bytes = self._settlements = 0

    def _check(self) -> None:
        limits = self._limits
        if (
            len(self.messages) + self._settlements > limits.max_transaction
            or self._bytes > limits.max_transaction_bytes
        ):
            raise precondition_failed("the transaction is too large")


class Outcome:
    """Results of the publishes of a commit."""

    def __init__(self) -> None:
        self._left = 0
        self.failed = False
        self._change = Waiters()

    def take(self, queues: int) -> int:
        self._left += queues
        return 0

    def resolved(self, first: int, end: int, stored: bool) -> None:
        self._left -= end - first
        self.failed = self.failed or not stored
        if not self._left:
            self._change.wake()

    async def known(self) -> None:
        """Wait for the results of all queues."""
        await self._change.wait_until(lambda: not self._left)
