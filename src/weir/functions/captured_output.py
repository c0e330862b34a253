"""What a function says, by `print` and by `logging`: kept as lines, with the message that it was said about."""

import io
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from weir.functions.executor_protocol import Item, LogLine

#: Of one answer to the worker; what is said beyond is left out, and the last line says so.
_MOST_LINES = 1_000
#: So many are an answer, where it may be given early.
_LONG = 500
_MOST_CHARACTERS = 10_000


def printable(text: str) -> str:
    """What is no Unicode is shown, and stops nothing."""
    return text.encode(errors="backslashreplace").decode()


class Talk:
    """Lines, until they are taken."""

    def __init__(self) -> None:
        self._lines: list[LogLine] = []
        self._item: Item | None = None
        self._left_out = 0

    @contextmanager
    def about(self, item: Item) -> Iterator[None]:
        """What is said within is about this item."""
        self._item = item
        try:
            yield
        finally:
            self._item = None

    def say(self, level: str, logger: str, text: str) -> None:
        if len(self._lines) >= _MOST_LINES:
            self._left_out += 1
            return
        item = self._item
        place = ("", -1, -1) if item is None else (item.topic, item.partition, item.offset)
        now_ms = time.time_ns() // 1_000_000
        self._lines.append(LogLine(now_ms, level, logger, printable(text[:_MOST_CHARACTERS]), *place))

    @property
    def is_long(self) -> bool:
        return len(self._lines) >= _LONG

    def take(self) -> list[LogLine]:
        lines, self._lines = self._lines, []
        if self._left_out:
            lines.append(
                LogLine(time.time_ns() // 1_000_000, "WARNING", "weir", f"{self._left_out} lines are left out")
            )
            self._left_out = 0
        return lines

    def listen(self, level: str) -> None:
        """From now on, all that this process prints and logs."""
        sys.stdout = _Lines(self, "INFO", "stdout")
        sys.stderr = _Lines(self, "WARNING", "stderr")
        root = logging.getLogger()
        root.handlers = [_Handler(self)]
        root.setLevel(level)


class _Lines(io.TextIOBase):
    """A file for `print`: each line that ends is said."""

    def __init__(self, talk: Talk, level: str, name: str) -> None:
        self._talk, self._level, self._name, self._rest = talk, level, name, ""
        self.buffer = _Bytes(self)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._talk.say(self._level, self._name, line)
        if len(self._rest) > _MOST_CHARACTERS:
            self.flush()
        return len(text)

    def flush(self) -> None:
        rest, self._rest = self._rest, ""
        if rest:
            self._talk.say(self._level, self._name, rest)


class _Bytes(io.RawIOBase):
    """What is written as bytes is lines all the same."""

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._lines.write(bytes(data).decode(errors="backslashreplace"))
        return len(data)


class _Handler(logging.Handler):
    def __init__(self, talk: Talk) -> None:
        super().__init__()
        self._talk = talk

    def emit(self, record: logging.LogRecord) -> None:
        self._talk.say(record.levelname, record.name, self.format(record))
