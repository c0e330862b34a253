"""A bounded cache of byte strings that forgets what was used longest ago."""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class BytesLru(Generic[K]):
    """At most `max_bytes` of values. A dict keeps its order of insertion: the front was used longest ago."""

    def __init__(self, max_bytes: int) -> None:
        self._limit = max_bytes
        self._values: dict[K, bytes | bytearray] = {}
        self.size = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: K) -> bytes | bytearray | None:
        value = self._values.pop(key, None)
        if value is None:
            self.misses += 1
            return None
        self._values[key] = value
        self.hits += 1
        return value

    def put(self, key: K, value: bytes | bytearray) -> None:
        self.drop(key)
        self._values[key] = value
        self.size += len(value)
        while self.size > self._limit and len(self._values) > 1:
            self.drop(next(iter(self._values)))

    def drop(self, key: K) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self.size -= len(value)
