"""Logs as lines of fields, for people and for machines: logfmt or JSON, to standard error.

What a task said that it is about (`runtime.log_context`), and whatever a part puts into `extra`, become fields of
the line.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from weir.runtime.log_context import log_fields
from weir.server.log_repeats import CountingHandler

#: What the logging library puts on every record; all else came by `extra`.
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
    if not hasattr(record, "repeated"):  # a count of many is about none of them
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
    """All logs of this process, from here on."""
    handler = CountingHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else Logfmt())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
