"""The admin server: routes, authentication, and errors as statuses, on one HTTP listener."""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from ssl import SSLContext
from typing import Any, TypeVar

import msgspec

from weir import __version__
from weir.admin.http import Admission, HttpSettings, Request, Response
from weir.admin.http_server import HttpServer
from weir.admin.openapi import Refusal, document
from weir.admin.refusals import status_of
from weir.admin.routing import Call, Route, Router
from weir.model.errors import DiskError, NotOwnerError, WeirError
from weir.runtime.interfaces import Runtime
from weir.runtime.request_budget import FREE_BYTES, RequestBudget

log = logging.getLogger(__name__)

T = TypeVar("T")

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
        request_budget: RequestBudget | None = None,
    ) -> None:
        """`request_budget`: what all listeners together may receive; None: as the settings say, for this one."""
        self._routes = routes
        self._max_body_bytes = settings.max_body_bytes
        self._openapi: bytes | None = None
        serve_openapi = Route(
            "GET", "/openapi.json", "This document.", self._describe, answer=dict, tag="meta", open=True
        )
        self._router = Router([*routes, serve_openapi])
        self._authenticate = authenticate
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
        """Decide by the head who asks, and for what, before anything of the body is read."""
        return await self._told(head, self._opened(head))

    async def _opened(self, head: Request) -> Admission | Response:
        found = self._router.find("GET" if head.method == "HEAD" else head.method, head.path)
        if isinstance(found, list):
            return _no_route(found)
        route, path = found
        role = "" if route.open else await self._authenticate(head)

        async def act(request: Request) -> Response:
            return _response(await route.action(route.call(request, path, role)))

        async def answer(request: Request) -> Response:
            return await self._told(request, act(request))

        # Nobody knows who asks for an open route.
        most = min(FREE_BYTES, self._max_body_bytes) if route.open else self._max_body_bytes
        return Admission(most, answer)

    async def _told(self, request: Request, work: Coroutine[Any, Any, T]) -> T | Response:
        """What came of it; errors as statuses."""
        try:
            return await work
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
            # Where the disk is at fault, what happened names paths of this machine; the log has it.
            told = "the server's disk failed; see its log" if isinstance(refused, DiskError) else str(refused)
            return _refusal(status, told)
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
    url = elsewhere.listeners.get("http") or elsewhere.listeners.get("https")
    if not url:
        return _refusal(503, str(elsewhere))
    return Response(307, headers={"location": url.rstrip("/") + request.target})


def _no_route(verbs: list[str]) -> Response:
    if not verbs:
        return _refusal(404, "there is no such path; GET /openapi.json lists them")
    refused = _refusal(405, f"this path knows {', '.join(verbs)}")
    return Response(405, refused.body, headers={"allow": ", ".join(verbs)})


def _refusal(status: int, why: str) -> Response:
    return Response(status, msgspec.json.encode(Refusal(why)))
