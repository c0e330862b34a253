"""Who wants to hear that a topic has grown: gateways that wait for messages by offset."""

from collections.abc import Callable


class GrowthListeners:
    """Called in the order of coming; each may stop itself, or others, while they are called."""

    def __init__(self) -> None:
        self._callbacks: dict[int, Callable[[], None]] = {}
        #: Those of the broker itself.
        self._own: dict[int, None] = {}
        self._count = 0

    def add(self, callback: Callable[[], None], *, own: bool = False) -> Callable[[], None]:
        """Answers how to stop."""
        self._count += 1
        number = self._count
        self._callbacks[number] = callback
        if own:
            self._own[number] = None

        def stop() -> None:
            self._callbacks.pop(number, None)
            self._own.pop(number, None)

        return stop

    @property
    def clients(self) -> int:
        """How many of them act for clients."""
        return len(self._callbacks) - len(self._own)

    def tell(self) -> None:
        if self._callbacks:  # most topics have none, and grow often
            for callback in list(self._callbacks.values()):
                callback()
