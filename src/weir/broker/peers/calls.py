"""Asking another broker, and what a broker answers: the two interfaces that its parts have to do with."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from weir.model.check import check
from weir.model.errors import PeerUnavailableError, PeerUnsupportedError
from weir.wire.peer.calls import call_of
from weir.wire.peer.node import Done, Ping
from weir.wire.peer.values import A, PeerRequest

R = TypeVar("R", bound=PeerRequest[Any])
Handler = Callable[[Any], Awaitable[object]]


class PeerCalls(Protocol):
    async def ask(self, broker_id: str, request: PeerRequest[A], *, timeout_s: float | None = None) -> A:
        """Have a broker do something; this one is called directly. Raises what it raises there, else:

        PeerUnavailableError (out of reach, or too late: unless its `sent` is false it may have been done),
        PeerBusyError (nothing was done), PeerUnsupportedError (an older broker), PeerFailedError (anything else).
        """


class PeerHandlers:
    """What this broker answers. Parts say so when they are made, before it listens to others."""

    def __init__(self) -> None:
        self._handlers: dict[type[PeerRequest[Any]], Handler] = {}
        self.on(Ping, _pong)

    def on(self, kind: type[R], handler: Callable[[R], Awaitable[object]]) -> None:
        """Answer requests of this kind with what the function returns. It is ended when nobody waits for it any
        more, by its time limit; the end of the asker's connection alone does not end it."""
        check(kind not in self._handlers, f"{kind.__name__} is answered by one part")
        self._handlers[kind] = handler

    async def handle(self, request: PeerRequest[A]) -> A:
        """Do it here; PeerUnsupportedError if no part of this broker answers it."""
        handler = self._handlers.get(type(request))
        if handler is None:
            raise PeerUnsupportedError(f"this broker does not answer {call_of(request).name}")
        answer: Any = await handler(request)
        check(isinstance(answer, call_of(request).answer), f"{call_of(request).name} is answered by its own type")
        found: A = answer
        return found


class LonePeers:
    """A broker on its own: there is nobody else to ask."""

    def __init__(self, broker_id: str, handlers: PeerHandlers) -> None:
        self._broker_id = broker_id
        self._handlers = handlers

    async def ask(self, broker_id: str, request: PeerRequest[A], *, timeout_s: float | None = None) -> A:
        if broker_id != self._broker_id:
            raise PeerUnavailableError(f"there is no broker {broker_id} that could be asked", sent=False)
        return await self._handlers.handle(request)


async def _pong(_: Ping) -> Done:
    return Done()
