"""Who handles which call: handlers enter themselves, so that one more touches no list."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from weir.gateway.rocketmq.connection.calls import Call

SERVICE = "apache.rocketmq.v2.MessagingService"
#: An answer; None if the handler answers itself, later; or what must be waited for.
Outcome: TypeAlias = "Any | Coroutine[Any, Any, Any] | None"
Handler: TypeAlias = "Callable[[Call, Any], Outcome]"


@dataclass(frozen=True, slots=True)
class Method:
    """`streams`: the answer is any number of messages, which the handler sends itself. `converses`: so is the
    request, and the handler is called for each message of it. `stores`: it is refused before its client gives up
    if what it carries is not stored by then."""

    name: str
    request: Any
    response: Any
    handler: Handler
    streams: bool = False
    converses: bool = False
    stores: bool = False


#: By HTTP/2's `:path`.
METHODS: dict[bytes, Method] = {}
_MODULES = ("routes", "clients", "sending", "receiving", "settling", "offsets", "transactions", "lite")


def calls(
    name: str, request: Any, response: Any, *, streams: bool = False, converses: bool = False, stores: bool = False
) -> Callable[[Handler], Handler]:
    def enter(handler: Handler) -> Handler:
        path = f"/{SERVICE}/{name}".encode()
        METHODS[path] = Method(
            name, request, response, handler, streams=streams, converses=converses, stores=stores
        )
        return handler

    return enter


def load_handlers() -> None:
    for module in _MODULES:
        import_module(f"weir.gateway.rocketmq.handlers.{module}")
