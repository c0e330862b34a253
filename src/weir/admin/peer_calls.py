"""Admin calls between brokers: what one asks of another that has a topic, and how the other does it.

The broker that asks has found out who is behind the call; the one that is asked checks what that role may.
"""

from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs

from weir.admin.answers import answered, refusal, response
from weir.admin.http import Request, Response
from weir.admin.routing import Route, Router
from weir.model.errors import NotOwnerError, PeerUnavailableError
from weir.wire.peer.administration import AdminAnswer, AdminCall

#: Who asked, as the log names it.
_PEER = "another broker"

#: Asks the broker of this id to do a call; PeerError if it could not be asked.
AskPeer = Callable[[str, AdminCall], Awaitable[AdminAnswer]]


async def nobody(broker_id: str, call: AdminCall) -> AdminAnswer:
    """For a broker that knows no others."""
    raise PeerUnavailableError(f"this broker cannot ask {broker_id}", sent=False)


class AdminPeerHandler:
    """Does what other brokers ask."""

    def __init__(self, routes: list[Route]) -> None:
        self._router = Router(routes)

    async def perform(self, call: AdminCall) -> AdminAnswer:
        """307 without a location: what the call is about is not here, either; the body says so."""
        done = await self._perform(call)
        return AdminAnswer(done.status, done.body, done.content_type, done.headers)

    async def _perform(self, call: AdminCall) -> Response:
        target = f"{call.path}?{call.query}" if call.query else call.path
        query = parse_qs(call.query, keep_blank_values=True)
        request = Request(call.method, call.path, query, call.headers, _PEER, target, body=call.body)
        found = self._router.find(call.method, call.path)
        if isinstance(found, list):
            return refusal(404, f"this broker knows no {call.method} {call.path}")
        route, values = found

        async def act() -> Response:
            try:
                return response(await route.action(route.call(request, values, call.role)))
            except NotOwnerError as elsewhere:
                return Response(307, str(elsewhere).encode())

        return await answered(request, act())
