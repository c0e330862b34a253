"""Pushes to browsers: after each tick of the sampler, what changed, rendered once for all who may see the same."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable

from weir.admin.http import Response
from weir.admin.routing import RefusedError
from weir.console.view import SECURITY_HEADERS, View
from weir.model.errors import NotAuthenticatedError, WeirError

log = logging.getLogger(__name__)

EVENTS = "text/event-stream"
#: Who look at the same time; more are told to come again.
MAX_VIEWERS = 200
#: Rendered pieces that are kept, each for as long as it is the newest.
_MAX_KEPT = 500

Render = Callable[[View], Awaitable[str]]


class Live:
    """Renders each piece once per tick and per role."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[int, str]] = {}
        #: How often something was rendered: what a test counts.
        self.rendered = 0

    def stream(self, view: View, event: str, key: str, render: Render) -> Response:
        """Events of one name, each with a piece of HTML. `key`: equal for those who look at the same."""
        if view.console.sampler.viewers >= MAX_VIEWERS:
            raise RefusedError(503, "too many look at this broker's console at once", hint="try another broker")
        headers = {**SECURITY_HEADERS, "cache-control": "no-store", "x-accel-buffering": "no"}
        return Response(200, b"", EVENTS, headers, self._events(view, event, key, render))

    async def _events(self, view: View, event: str, key: str, render: Render) -> AsyncGenerator[bytes, None]:
        sampler = view.console.sampler
        with sampler.viewed():
            seen = sampler.revision
            yield b"retry: 3000\n\n"
            while True:
                seen = await sampler.next(seen)
                if not await self._still(view):
                    return
                try:
                    piece = await self._piece(view, key, seen, render)
                except WeirError as gone:  # deleted, or not this role's to see any more
                    log.info("the console's viewer %s sees no more of %s: %s", view.role, key, gone)
                    return
                yield encode_event(event, piece)

    async def _piece(self, view: View, key: str, revision: int, render: Render) -> str:
        kept = self._kept.get((key, view.role))
        if kept is not None and kept[0] == revision:
            return kept[1]
        piece = await render(view)
        self.rendered += 1
        if len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
        self._kept[key, view.role] = (revision, piece)
        return piece

    async def _still(self, view: View) -> bool:
        """Whether session and credentials still hold, for the same role."""
        if view.signed_in and view.console.sessions.open(view.call.request) is None:
            return False
        try:
            return await view.console.role_of(view.session, view.call.request) == view.role
        except NotAuthenticatedError:
            return False


def encode_event(event: str, data: str) -> bytes:
    """As browsers read it: each line of the data on its own."""
    lines = "".join(f"data: {line}\n" for line in data.splitlines())
    return f"event: {event}\n{lines}\n".encode()
