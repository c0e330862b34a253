"""Removes CR and LF from the names in methods that declare, delete, bind and unbind, as RabbitMQ does.

Methods that only use a queue or exchange (publish, get, consume, purge) keep their names as they are: no queue or
exchange has a line break in its name, so they fail with 404 or find no route.
"""

from dataclasses import replace
from typing import Any, TypeVar

from weir.wire.amqp.methods import exchange, queue

M = TypeVar(
    "M",
    queue.Declare,
    queue.Bind,
    queue.Unbind,
    queue.Delete,
    exchange.Declare,
    exchange.Delete,
    exchange.Bind,
    exchange.Unbind,
)
_NAMES = ("queue", "exchange", "source", "destination")
_LINE_BREAKS = str.maketrans("", "", "\r\n")


def without_line_breaks(method: M) -> M:
    """The method with CR and LF removed from the names of its queue and exchanges."""
    changed: dict[str, Any] = {
        field: name.translate(_LINE_BREAKS)
        for field in _NAMES
        if (name := getattr(method, field, "")) and ("\r" in name or "\n" in name)
    }
    return replace(method, **changed) if changed else method
