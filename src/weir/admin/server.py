"""The admin server: routes, authentication, and errors as statuses, on one HTTP listener."""

import logging
from collections.abc import Awaitable, Callable
from ssl import SSLContext

import msgspec

from weir import __version__
from weir.admin.http import HttpSettings, Request, Response
from weir.admin.http_server import HttpServer
from weir.admin.openapi import Refusal, document
from weir.admin.refusals import status_of
from weir.admin.routing import Call, Route, Router
from weir.model.errors import NotOwnerError, WeirError
from weir.runtime.interfaces import Runtime

log = logging.getLogger(__name__)

#: No answer is larger; who asks for so much shall ask for less.
_MAX_ANSWER_BYTES = 32 * 1024 * 1024

#: Who is behind a request: answers a role, or raises NotAuthenticatedError.
Authenticate = Callable[[Request], Awaitable[str]]


class AdminServer:
    """`start`, then `close`. Besides the routes it serves their OpenAPI document."""

    def __init__(
        self,
        runtime: Runtime,
        settings: HttpSettings,
        routes: list[Route],
        authenticate: Authenticate,
        *,
        tls: SSLContext | None = None,
    ) -> None:
        self._routes = routes
        self._openapi: bytes | None = None
        serve_openapi = Route(
            "GET", "/openapi.json", "This document.", self._describe, answer=dict, tag="meta", open=True
        )
        self._router = Router([*routes, serve_openapi])
        self._authenticate = authenticate
        self._http = HttpServer(runtime, settings, self._answer, tls=tls)

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

    async def _answer(self, request: Request) -> Response:
        try:
            found = self._router.find("GET" if request.method == "HEAD" else request.method, request.path)
            if isinstance(found, list):
                return _no_route(found)
            route, path = found
            role = "" if route.open else await self._authenticate(request)
            return _response(await route.action(route.call(request, path, role)))
        except NotOwnerError as elsewhere:
            return _redirect(request, elsewhere)
        except WeirError as refused:
            status = status_of(refused)
            log.log(
                logging.WARNING if status >= 500 else logging.INFO,
                "http: %s %s from %s: %s",
                request.method,
                request.path,
                request.peer,
                refused,
            )
            return _refusal(status, str(refused))
        except Exception:
            log.exception("http: %s %s failed", request.method, request.path)
            return _refusal(500, "an internal error; see the server's log")

    async def _describe(self, call: Call) -> Response:
        if self._openapi is None:  # few ask; a start need not wait for it
            described = document(self._routes, title="Weir admin", version=__version__)
            self._openapi = msgspec.json.encode(described)
        return Response(200, self._openapi)


def _response(answer: object) -> Response:
    if isinstance(answer, Response):
        return answer
    if answer is None:
        return Response(204)
    body = msgspec.json.encode(answer)
    if len(body) > _MAX_ANSWER_BYTES:
        return _refusal(413, f"the answer has {len(body)} bytes, more than {_MAX_ANSWER_BYTES}; ask for less")
    return Response(200, body)


def _redirect(request: Request, elsewhere: NotOwnerError) -> Response:
    """To the broker that has the topic, as Pulsar's clients expect it."""
    if not elsewhere.http_url:
        return _refusal(503, str(elsewhere))
    return Response(307, headers={"location": elsewhere.http_url.rstrip("/") + request.target})


def _no_route(verbs: list[str]) -> Response:
    if not verbs:
        return _refusal(404, "there is no such path; GET /openapi.json lists them")
    refused = _refusal(405, f"this path knows {', '.join(verbs)}")
    return Response(405, refused.body, headers={"allow": ", ".join(verbs)})


def _refusal(status: int, why: str) -> Response:
    return Response(status, msgspec.json.encode(Refusal(why)))
