"""The trace: everything observable, in order, and a digest that two runs of one seed share to the byte."""

import hashlib
from collections import deque

_BATCH = 256


class Trace:
    """An append-only list of events as lines `time node kind detail`.

    The digest is always on; the text is kept only on request: `keep=None` keeps every line, `keep=n` the last
    n lines, `keep=0` (the default) none.
    """

    __slots__ = ("_batch", "_digest", "_kept", "count")

    def __init__(self, *, keep: int | None = 0) -> None:
        self.count = 0
        self._digest = hashlib.sha256()
        self._batch: list[str] = []
        self._kept: deque[str] | None = None if keep == 0 else deque(maxlen=keep)

    def add(self, time: float, node: str, kind: str, detail: str) -> None:
        """Append one event. Nothing in it may depend on hashes, addresses or real time."""
        line = f"{time:.9f} {node} {kind} {detail}\n"
        self.count += 1
        batch = self._batch
        batch.append(line)
        if len(batch) >= _BATCH:
            self._flush()
        if self._kept is not None:
            self._kept.append(line)

    def _flush(self) -> None:
        if self._batch:
            self._digest.update("".join(self._batch).encode())
            self._batch.clear()

    def digest(self) -> str:
        """SHA-256 of every line so far, in hexadecimal."""
        self._flush()
        return self._digest.hexdigest()

    def lines(self) -> list[str]:
        """The lines that were kept, without their line ends."""
        return [line[:-1] for line in self._kept or ()]
