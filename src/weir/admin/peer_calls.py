"""Admin calls between brokers: what one asks of another that has a topic, and how the other does it.

The broker that asks has found out who is behind the call; the one that is asked checks what that role may.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import parse_qs

from weir.admin.answers import answered, refusal, response
from weir.admin.http import Request, Response
from weir.admin.routing import Route, Router
from weir.model.errors import NotAllowedError, NotOwnerError

#: Who asked, as the log names it.
_PEER = "another broker"


@dataclass(frozen=True, slots=True)
class PeerCall:
    """`target`: path and query, as in a request line."""

    role: str
    method: str
    target: str
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """A response's status and body. 307: the topic is not there, either; the body says so."""

    status: int
    body: bytes = b""


#: Asks the broker of this id to do a call; a NetworkError or PeerError if it could not be asked.
AskPeer = Callable[[str, PeerCall], Awaitable[PeerAnswer]]


async def nobody(broker_id: str, call: PeerCall) -> PeerAnswer:
    """For a broker that knows no others."""
    raise NotAllowedError(f"this broker cannot ask {broker_id}")


class PeerCalls:
    """Does what other brokers ask."""

    def __init__(self, routes: list[Route]) -> None:
        self._router = Router(routes)

    async def perform(self, call: PeerCall) -> PeerAnswer:
        done = await self._perform(call)
        return PeerAnswer(done.status, done.body)

    async def _perform(self, call: PeerCall) -> Response:
        path, _, query = call.target.partition("?")
        request = Request(
            call.method, path, parse_qs(query, keep_blank_values=True), {}, _PEER, call.target, body=call.body
        )
        found = self._router.find(call.method, path)
        if isinstance(found, list):
            return refusal(404, f"this broker knows no {call.method} {path}")
        route, values = found

        async def act() -> Response:
            try:
                return response(await route.action(route.call(request, values, call.role)))
            except NotOwnerError as elsewhere:
                return Response(307, str(elsewhere).encode())

        return await answered(request, act())
