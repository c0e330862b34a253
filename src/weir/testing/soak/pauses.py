"""How long a client got no answer: the longest gap between two acknowledgements, per stretch of time."""

import threading
import time


class Pauses:
    """Fed by a client's threads, read by whoever makes the trouble."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = time.monotonic()
        self._longest = 0.0

    def acknowledged(self) -> None:
        """The client was answered just now."""
        with self._lock:
            now = time.monotonic()
            self._longest = max(self._longest, now - self._last)
            self._last = now

    def longest(self) -> float:
        """The longest gap since this was asked last, the one that still lasts included; in seconds."""
        with self._lock:
            now = time.monotonic()
            longest, self._longest = max(self._longest, now - self._last), 0.0
            return longest

    def idle_s(self) -> float:
        """How long the gap that lasts now is."""
        return time.monotonic() - self._last
