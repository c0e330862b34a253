"""What log lines are about: fields that every line of a task, and of the tasks that it starts, carries."""

from collections.abc import Mapping
from contextvars import ContextVar

_NOTHING: Mapping[str, str] = {}
_about: ContextVar[Mapping[str, str]] = ContextVar("log_about", default=_NOTHING)


def log_about(**fields: str) -> None:
    """From here on, in this task, lines are about this (a topic, a connection) and nothing else."""
    _about.set(fields)


def log_fields() -> Mapping[str, str]:
    """What a line written now is about."""
    return _about.get()
