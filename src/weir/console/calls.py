"""The console asks as anybody does: calls of the admin API, in the name of whoever looks.

So what a visitor sees and does is what their role may see and do, by the same checks; and what another broker has
is asked of that broker.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from weir.admin.context import AdminContext
from weir.model.errors import NotOwnerError, PeerError, WeirError
from weir.rest.http import Request, Response
from weir.rest.responses import answered, response
from weir.rest.routes import RefusedError, Route, Router
from weir.wire.peer.calls import AdminCall

_HERE = "the console"


def path_of(*segments: str) -> str:
    """A path of the API with these segments, each quoted."""
    return "/" + "/".join(quote(segment, safe="") for segment in segments)


class AdminCalls:
    def __init__(self, context: AdminContext, routes: Sequence[Route]) -> None:
        self._context = context
        self._router = Router(list(routes))

    async def ask(
        self, role: str, method: str, path: str, query: Mapping[str, object] | None = None, body: object = None
    ) -> Any:
        """What the API answers, as plain values; RefusedError with its status and reason."""
        done = await self.respond(role, method, path, query, body)
        return msgspec.json.decode(done.body) if done.body else None

    async def ask_others(self, role: str, path: str) -> list[Any]:
        """What the other brokers of the cluster answer to a GET; those that do not answer are left out."""
        context = self._context

        async def one(broker_id: str) -> Any:
            try:
                answer = await context.ask_peer(broker_id, AdminCall(role, "GET", path))
            except PeerError:
                return None
            return msgspec.json.decode(answer.body) if answer.status == 200 else None

        others = [info.broker_id for info in context.broker.brokers() if info.broker_id != context.broker_id]
        return [found for found in await asyncio.gather(*map(one, others)) if found is not None]

    async def respond(
        self, role: str, method: str, path: str, query: Mapping[str, object] | None = None, body: object = None
    ) -> Response:
        """The same as the response itself."""
        said = urlencode({name: _text(value) for name, value in (query or {}).items() if value is not None})
        data = b"" if body is None else msgspec.json.encode(body)
        found = self._router.find(method, path)
        if isinstance(found, list):
            raise RefusedError(404, f"the API knows no {method} {path}")
        route, values = found
        target = f"{path}?{said}" if said else path
        parsed = {name: [_text(value)] for name, value in (query or {}).items() if value is not None}
        request = Request(method, path, parsed, {}, _HERE, target, body=data)

        async def act() -> Response:
            return response(await route.action(route.call(request, values, role)))

        try:
            done = await act()
        except NotOwnerError as elsewhere:
            done = await self._elsewhere(elsewhere, AdminCall(role, method, path, said, data))
        except RefusedError:
            raise
        except WeirError as refused:
            raised = refused

            async def again() -> Response:
                raise raised

            done = await answered(request, again())
        if done.status >= 300:
            raise RefusedError(done.status, reason_of(done.body))
        return done

    async def _elsewhere(self, elsewhere: NotOwnerError, call: AdminCall) -> Response:
        context = self._context
        others = [info for info in context.broker.brokers() if info.broker_id != context.broker_id]
        owner = next(
            (info.broker_id for info in others if dict(info.listeners) == dict(elsewhere.listeners)), None
        )
        if owner is None:
            raise RefusedError(503, str(elsewhere), hint="try again in a moment")
        try:
            answer = await context.ask_peer(owner, call)
        except PeerError as silent:
            raise RefusedError(503, f"broker {owner} does not answer: {silent}") from silent
        return Response(answer.status, answer.body, answer.content_type, answer.headers)


def reason_of(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body, type=dict[str, Any])["reason"])
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError):
        return body.decode(errors="replace")[:500] or "it was refused"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
