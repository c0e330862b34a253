"""Table of handlers for channel methods, and normalization of the names in these methods.

Handlers register themselves with `@handles`. As in RabbitMQ, CR and LF are removed from names in methods that
declare, delete, bind and unbind. Methods that only use a queue or exchange (publish, get, consume, purge) keep the
names unchanged: no queue or exchange has a line break in its name, so they fail with 404 or find no route.
"""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from weir.wire.amqp.methods import Method, exchange, queue

if TYPE_CHECKING:
    from weir.gateway.amqp.channel import Channel


M = TypeVar("M", bound=Method)
#: The method to send at once, or a coroutine that must finish before the channel's next command.
Answer: TypeAlias = "Method | None"
Outcome: TypeAlias = "Answer | Coroutine[Any, Any, Answer]"
Handler: TypeAlias = "Callable[[Channel, Any], Outcome]"

#: Handlers of all channel methods.
HANDLERS: dict[type[Method], Handler] = {}
_MODULES = ("channel", "exchange", "queue", "basic")


def handles(method: type[Method]) -> Callable[[Handler], Handler]:
    def enter(handler: Handler) -> Handler:
        HANDLERS[method] = handler
        return handler

    return enter


def load_handlers() -> None:
    for module in _MODULES:
        import_module(f"weir.gateway.amqp.handlers.{module}")


NamingMethod = TypeVar(
    "NamingMethod",
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


def without_line_breaks(method: NamingMethod) -> NamingMethod:
    """The method with CR and LF removed from the names of its queue and exchanges."""
    changed: dict[str, Any] = {
        field: name.translate(_LINE_BREAKS)
        for field in _NAMES
        if (name := getattr(method, field, "")) and ("\r" in name or "\n" in name)
    }
    return replace(method, **changed) if changed else method
