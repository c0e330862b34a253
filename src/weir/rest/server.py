"""The admin server: routes, authentication, and errors as statuses, on one HTTP listener."""

from collections.abc import Awaitable, Callable, Sequence
from ssl import SSLContext

import msgspec

from weir import __version__
from weir.rest.http import Admission, HttpServer, HttpSettings, Request, Response
from weir.rest.openapi import document
from weir.rest.responses import answered, forms_of, no_route, response
from weir.rest.routes import Call, Route, Router
from weir.runtime.budgets import FREE_BYTES, RequestBudget
from weir.runtime.interfaces import Runtime

#: Authenticates a request: returns its role, or raises NotAuthenticatedError.
Authenticate = Callable[[Request], Awaitable[str]]


class AdminServer:
    """Serves the routes and their OpenAPI document. Call `start`, then `close`."""

    def __init__(
        self,
        runtime: Runtime,
        settings: HttpSettings,
        routes: list[Route],
        authenticate: Authenticate,
        *,
        tls: SSLContext | None = None,
        request_budget: RequestBudget | None = None,
        pages: Sequence[Route] = (),
    ) -> None:
        """`pages`: routes of the console, which the document omits; `request_budget`: bytes of requests, shared by
        all listeners; None: a budget from the settings."""
        self._routes = routes
        self._forms = forms_of(routes)
        self._max_body_bytes = settings.max_body_bytes
        self._openapi: bytes | None = None
        serve_openapi = Route(
            "GET", "/openapi.json", "This document.", self._describe, answer=dict, tag="meta", open=True
        )
        self._router = Router([*pages, *routes, serve_openapi])
        self._authenticate = authenticate
        self._secure = tls is not None
        self._http = HttpServer(runtime, settings, self._admit, tls=tls, request_budget=request_budget)

    @property
    def host(self) -> str:
        return self._http.host

    @property
    def port(self) -> int:
        return self._http.port

    async def start(self) -> None:
        await self._http.start()

    async def close(self) -> None:
        await self._http.close()

    async def _admit(self, head: Request) -> Admission | Response:
        """Authenticate and route a request by its head, before the server reads the body."""
        return await answered(head, self._opened(head), secure=self._secure, forms=self._forms)

    async def _opened(self, head: Request) -> Admission | Response:
        found = self._router.find("GET" if head.method == "HEAD" else head.method, head.path)
        if isinstance(found, list):
            return no_route(head, found, self._forms)
        route, path = found
        if route.gate is not None:
            let_in = await route.gate(head)
            if isinstance(let_in, Response):
                return let_in
            role = let_in
        else:
            role = "" if route.open else await self._authenticate(head)

        async def act(request: Request) -> Response:
            return response(await route.action(route.call(request, path, role)))

        async def answer(request: Request) -> Response:
            return await answered(request, act(request), secure=self._secure, forms=self._forms)

        # The caller of an open route is not authenticated.
        most = min(FREE_BYTES, self._max_body_bytes) if route.open else self._max_body_bytes
        return Admission(most, answer)

    async def _describe(self, call: Call) -> Response:
        if self._openapi is None:  # built on first use, to keep startup fast
            described = document(self._routes, title="Weir admin", version=__version__)
            self._openapi = msgspec.json.encode(described)
        return Response(200, self._openapi)
