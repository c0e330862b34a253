"""In-flight work of a session: unstored publishes and waiting commands. Over a limit the session stops reading."""

from weir.gateway.amqp.settings import SessionLimits
from weir.runtime.waiters import Waiters


class Load:
    """Counts unstored publishes and waiting commands of one connection."""

    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits
        self.publishes = 0
        self.publish_bytes = 0
        self.waiting = 0
        self.waiting_bytes = 0
        self._change = Waiters()

    @property
    def full(self) -> bool:
        limits = self._limits
        return (
            self.publishes >= limits.max_publishes
            or self.publish_bytes >= limits.max_publish_bytes
            or self.waiting >= limits.max_waiting
            or self.waiting_bytes >= limits.max_waiting_bytes
        )

    async def wait_capacity(self) -> None:
        """Wait until all counts are below their limits; only the session's receive loop calls it."""
        while self.full:
            await self._change.wait()

    async def wait_empty(self) -> None:
        """Wait until the queues have stored all publishes and no command with a body waits."""
        while self.publish_bytes or self.waiting_bytes:
            await self._change.wait()

    def wait(self, size: int) -> None:
        """Count a command that waits for its turn."""
        self.waiting += 1
        self.waiting_bytes += size

    def waited(self, size: int, count: int = 1) -> None:
        self.waiting -= count
        self.waiting_bytes -= size
        self._change.wake()

    def publish(self, size: int, count: int) -> None:
        self.publishes += count
        self.publish_bytes += size

    def published(self, size: int, count: int) -> None:
        self.publishes -= count
        self.publish_bytes -= size
        self._change.wake()
