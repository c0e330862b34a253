"""How long a client got no answer: the longest gap between two answers about one partition."""

import threading
import time


class Pauses:
    """Fed by a client's threads, read by whoever makes the trouble."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[int, float] = {}
        self._longest = 0.0

    def acknowledged(self, partition: int = 0) -> None:
        """The client was answered just now."""
        with self._lock:
            now = time.monotonic()
            self._longest = max(self._longest, now - self._last.get(partition, now))
            self._last[partition] = now

    def longest(self) -> float:
        """The longest gap since this was asked last, those that still last included; in seconds."""
        with self._lock:
            now = time.monotonic()
            lasting = max((now - last for last in self._last.values()), default=0.0)
            longest, self._longest = max(self._longest, lasting), 0.0
            return longest
