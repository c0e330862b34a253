"""How many bytes consumers may have in hand: bounded for each connection, and for all of them together.

What a consumer was given and its client has not read yet is in hand. Without a bound for the connection, each of
its many consumers would add a delivery of its own while the client reads nothing.
"""

from collections.abc import Callable


class Total:
    """All connections together. Over the limit, each may still have one delivery in hand: nobody is starved."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken = 0
        self.over = False
        self._windows: dict[Window, None] = {}

    def add(self, window: "Window") -> None:
        self._windows[window] = None

    def remove(self, window: "Window") -> None:
        self._windows.pop(window, None)

    def take(self, size: int) -> None:
        self.taken += size
        self.over = self.over or self.taken >= self._limit

    def free(self, size: int) -> None:
        self.taken -= size
        # Half is free before anyone is told, so that they are not told again and again.
        if self.over and self.taken <= self._limit // 2:
            self.over = False
            for window in list(self._windows):
                window.wake()


class Window:
    """One connection. Consumers that wait for deliveries say so, and are told when there is room again."""

    def __init__(self, limit: int, total: Total) -> None:
        self._limit = limit
        self._total = total
        self.taken = 0
        self._over = False
        self._waiting: dict[object, Callable[[], None]] = {}
        total.add(self)

    @property
    def full(self) -> bool:
        return self._over or (self._total.over and self.taken > 0)

    def take(self, size: int) -> None:
        self.taken += size
        self._over = self._over or self.taken >= self._limit
        self._total.take(size)

    def free(self, size: int) -> None:
        was_full = self.full
        self.taken -= size
        if self._over and self.taken <= self._limit // 2:
            self._over = False
        self._total.free(size)
        if was_full:
            self.wake()

    def wait(self, who: object, room: Callable[[], None]) -> None:
        """Call a plain function whenever there may be room again, until `forget`."""
        self._waiting[who] = room

    def forget(self, who: object) -> None:
        self._waiting.pop(who, None)

    def wake(self) -> None:
        for room in list(self._waiting.values()):
            if self.full:
                return
            room()

    def close(self) -> None:
        """The connection is gone."""
        self._waiting.clear()
        self._total.free(self.taken)
        self.taken = 0
        self._total.remove(self)
