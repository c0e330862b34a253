"""Who handles which method: handlers enter themselves, so that one more touches no list."""

from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from weir.wire.amqp.methods import Method

if TYPE_CHECKING:
    from weir.gateway.amqp.channel.channel import Channel

M = TypeVar("M", bound=Method)
#: What there is to say at once, or what must be waited for before the channel's next command.
Answer: TypeAlias = "Method | None"
Outcome: TypeAlias = "Answer | Coroutine[Any, Any, Answer]"
Handler: TypeAlias = "Callable[[Channel, Any], Outcome]"

#: Of the methods that come on channels.
HANDLERS: dict[type[Method], Handler] = {}
_MODULES = ("channels", "exchanges", "queues", "consumers", "settling", "transactions")


def handles(method: type[Method]) -> Callable[[Handler], Handler]:
    def enter(handler: Handler) -> Handler:
        HANDLERS[method] = handler
        return handler

    return enter


def load_handlers() -> None:
    for module in _MODULES:
        import_module(f"weir.gateway.amqp.handlers.{module}")
