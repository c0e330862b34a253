"""Logs as lines of fields (logfmt or JSON) on standard error, with a limit on repeated lines.

Clients can provoke log lines, so unlimited ones could fill the disk. Records from the same place in the code are
of one kind. In each window, some records of each kind are written as they occur; one line at its end has the count
of the others and the last of them.

The task's context (`runtime.log_context`) and the `extra` of a record become fields of the line.
"""

import copy
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Timer
from typing import Any, TextIO

from weir.runtime.tasks import log_fields

#: Records of one kind that a window writes at once.
BURST = 10
WINDOW_S = 60.0
#: The most kinds to remember; fewer places in the code log.
_MAX_KINDS = 4096

_Kind = tuple[str, int, str]


class _Seen:
    """One kind of record in the current window."""

    __slots__ = ("count", "ends_at", "last")

    def __init__(self, ends_at: float) -> None:
        self.ends_at = ends_at
        self.count = 0
        #: The last record that was not written.
        self.last: logging.LogRecord | None = None


class CountingHandler(logging.StreamHandler[TextIO]):
    """Writes records, but counts repeated ones. It writes all debug records."""

    def __init__(
        self,
        stream: TextIO,
        *,
        burst: int = BURST,
        window_s: float = WINDOW_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(stream)
        self._burst = burst
        self._window_s = window_s
        self._monotonic = monotonic
        self._kinds: dict[_Kind, _Seen] = {}
        self._timer: Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Called with the handler's lock held."""
        if record.levelno < logging.INFO:
            super().emit(record)
            return
        now = self._monotonic()
        self._tell(now)
        said = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
        seen = self._kinds.get((record.name, record.levelno, said))
        if seen is None:
            if len(self._kinds) >= _MAX_KINDS:
                self._tell(float("inf"))
            seen = self._kinds[record.name, record.levelno, said] = _Seen(now + self._window_s)
        seen.count += 1
        if seen.count <= self._burst:
            super().emit(record)
            return
        seen.last = record
        if self._timer is None:
            self._wind_up()

    def close(self) -> None:
        """Write the pending counts and stop."""
        with self._locked():
            self._tell(float("inf"))
            if self._timer is not None:
                self._timer.cancel()
        super().close()

    def _due(self) -> None:
        with self._locked():
            self._timer = None
            self._tell(self._monotonic())
            if any(seen.last is not None for seen in self._kinds.values()):
                self._wind_up()

    def _wind_up(self) -> None:
        self._timer = Timer(self._window_s, self._due)
        self._timer.daemon = True
        self._timer.start()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def _tell(self, now: float) -> None:
        """Close the windows that have ended."""
        for kind, seen in [(kind, seen) for kind, seen in self._kinds.items() if seen.ends_at <= now]:
            del self._kinds[kind]
            if seen.last is not None:
                super().emit(self._summary(seen.last, seen.count - self._burst))

    def _summary(self, last: logging.LogRecord, count: int) -> logging.LogRecord:
        summary = copy.copy(last)
        summary.msg = f"{count} more like this within {self._window_s:g} s, the last: %s"
        summary.args = (last.getMessage(),)
        summary.exc_info = summary.exc_text = None
        summary.repeated = count
        return summary


#: Attributes that the logging library sets on every record; the others come from `extra`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The record's fields in the order of the line."""
    when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    fields: dict[str, Any] = {
        "at": when.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "part": record.name.removeprefix("weir."),
        "msg": record.getMessage(),
    }
    if not hasattr(record, "repeated"):  # the context of one record does not apply to a count
        fields |= log_fields()
    fields.update((name, value) for name, value in vars(record).items() if name not in _OWN)
    if record.exc_info and record.exc_info[0] is not None:
        fields["error"] = logging.Formatter().formatException(record.exc_info)
    return fields


class Logfmt(logging.Formatter):
    """`name=value name="a value with blanks"`."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_quoted(str(value))}" for name, value in fields_of(record).items())


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(fields_of(record), default=str)


def _quoted(text: str) -> str:
    plain = text and text.isprintable() and not any(c in ' "=' for c in text)
    return text if plain else json.dumps(text, ensure_ascii=False)


def set_up_logs(level: str, form: str) -> None:
    """Set up all logs of this process."""
    handler = CountingHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else Logfmt())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
