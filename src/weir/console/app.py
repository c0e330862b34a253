"""The console as routes: who comes in, what a page answers, and its files.

What the console needs of the process that it runs in, and no admin call tells.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from urllib.parse import quote

from weir.admin.context import AdminContext
from weir.console.calls import AdminCalls
from weir.console.rendering import Templates
from weir.console.sampler import Sampler
from weir.console.view import (
    COOKIE,
    HTML,
    SECURITY_HEADERS,
    SESSION_S,
    Session,
    Sessions,
    View,
    cookie,
    form_of,
    from_our_page,
    with_cookies,
)
from weir.model.errors import NotAuthenticatedError, WeirError
from weir.model.topics import TopicName
from weir.rest.http import Request, Response
from weir.rest.responses import status_of
from weir.rest.routes import Call, RefusedError, Route
from weir.rest.server import Authenticate


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Bytes of the disk that the data folder is on. `low_water`: with less free, nothing new is taken."""

    free: int
    total: int
    low_water: int = 0


async def _no_disk() -> DiskSpace | None:
    """The data is elsewhere."""
    return None


@dataclass(frozen=True, slots=True)
class ConsoleParts:
    #: Shared by all brokers of the cluster: 32 bytes that seal sessions.
    session_key: bytes
    disk: Callable[[], Awaitable[DiskSpace | None]] = _no_disk
    #: Makes a token for a role, good for so many seconds (None: for ever); None where no key to sign is here.
    make_token: Callable[[str, int | None], str] | None = None
    #: How many connections each protocol has now.
    connections: Callable[[], Sequence[tuple[str, int]]] = tuple


SIGN_IN = "/console/signin"
_STATIC = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "sse.min.js": "text/javascript; charset=utf-8",
    "weir.svg": "image/svg+xml",
    "LICENSE-htmx.txt": "text/plain; charset=utf-8",
}

Handler = Callable[[View], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class PageRoute:
    """A page, or what one of its forms does. `open`: also for who is not signed in."""

    method: str
    path: str
    handler: Handler
    open: bool = False


class Console:
    """All pages of one listener. `tls`: whether it is reached by TLS."""

    def __init__(
        self,
        context: AdminContext,
        admin_routes: Sequence[Route],
        authenticate: Authenticate,
        parts: ConsoleParts,
        sampler: Sampler,
        *,
        tls: bool = False,
    ) -> None:
        self.context = context
        self.calls = AdminCalls(context, admin_routes)
        self.parts = parts
        self.sampler = sampler
        self._authenticate = authenticate
        self._tls = tls

    @cached_property
    def templates(self) -> Templates:
        return Templates()

    @cached_property
    def sessions(self) -> Sessions:
        return Sessions(self.parts.session_key, self.context.clock)

    def secure(self, request: Request) -> bool:
        return self._tls

    def session_cookie(self, sealed: str) -> str:
        return cookie(COOKIE, sealed, secure=self._tls, max_age_s=SESSION_S)

    def tabs(self, role: str) -> list[tuple[str, str, str]]:
        """(key, URL, label) of the pages that this role may have something to see on."""
        from weir.console.pages.menu import tabs

        return tabs(self, role)

    def topic_url(self, name: TopicName) -> str:
        from weir.console.pages.topics import topic_url

        return topic_url(name)

    def routes(self) -> list[Route]:
        """For the server: pages and files."""
        from weir.console.pages.menu import page_routes

        found = [self._route(page) for page in page_routes(self)]
        found.append(Route("GET", "/console/static/{file}", "A file.", self._static, open=True, tag="console"))
        return found

    def _route(self, page: PageRoute) -> Route:
        async def answer(call: Call) -> Response:
            return await self._answer(page, call)

        async def gate(head: Request) -> str | Response:
            return await self._gate(page, head)

        return Route(page.method, page.path, "A page of the console.", answer, gate=gate, tag="console")

    # --- who comes in -------------------------------------------------------------------------------------------

    async def _gate(self, page: PageRoute, head: Request) -> str | Response:
        """Decides by the head; what a form says to prove itself is looked at when it is here."""
        if page.method != "GET" and not from_our_page(head.headers, secure=self._tls):
            return refused_page(403, "this request came from another site's page")
        session = self.sessions.open(head)
        try:
            return await self.role_of(session, head)
        except NotAuthenticatedError:
            return "" if page.open else self._to_sign_in(head)

    async def role_of(self, session: Session | None, head: Request) -> str:
        """As the API would find out by the same credentials."""
        said = "" if session is None else session.authorization
        headers = {name: value for name, value in head.headers.items() if name != "authorization"}
        if said:
            headers["authorization"] = said
        return await self._authenticate(replace(head, headers=headers))

    def _to_sign_in(self, head: Request) -> Response:
        wanted = head.target if head.method == "GET" and "hx-request" not in head.headers else "/"
        where = f"{SIGN_IN}?next={quote(wanted, safe='')}"
        if "hx-request" in head.headers or head.headers.get("accept") == "text/event-stream":
            return Response(401, headers={**SECURITY_HEADERS, "hx-redirect": where})
        return Response(303, headers={**SECURITY_HEADERS, "location": where})

    # --- what a page answers ------------------------------------------------------------------------------------

    async def _answer(self, page: PageRoute, call: Call) -> Response:
        request = call.request
        session = self.sessions.open(request)
        new = session is None
        if session is None:
            session = Session(self.sessions.seal(""), "")
        view = View(self, call, call.role, session, new, {})
        try:
            if page.method != "GET":
                form = form_of(request.body)
                if new or not self.sessions.proves(session, form.get("proof", "")):
                    raise RefusedError(403, "the form is not from this session; go back and load the page again")
                view = replace(view, form=form)
            return await page.handler(view)
        except WeirError as refused:
            return self._refused(view, refused)

    def _refused(self, view: View, refused: WeirError) -> Response:
        status = status_of(refused)
        if view.call.request.method != "GET":
            back = view.form.get("back", "")
            if status != 403 and back.startswith("/") and not back.startswith(("//", "/\\")):
                return view.back(back, str(refused), badly=True)
        return view.render("refused.html", status, status=status, why=str(refused), title="Refused", tab="")

    async def _static(self, call: Call) -> Response:
        name = call.path["file"]
        kind = _STATIC.get(name)
        if kind is None:
            return refused_page(404, "there is no such file")
        data = files("weir.console").joinpath("static", name).read_bytes()
        tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        headers = {**SECURITY_HEADERS, "etag": tag, "cache-control": "no-cache"}
        if call.request.headers.get("if-none-match") == tag:
            return Response(304, headers=headers)
        return Response(200, data, kind, headers)


def refused_page(status: int, why: str) -> Response:
    """For who gets no page: a sentence."""
    return Response(status, f"<!doctype html><title>{status}</title><p>{why}</p>".encode(), HTML, SECURITY_HEADERS)


__all__ = ["Console", "PageRoute", "with_cookies"]
