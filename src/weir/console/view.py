"""One request for a page: who looks, what was asked and said, and the ways to answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote

from weir.admin.context import AdminContext
from weir.admin.http import Response
from weir.admin.routing import Call, RefusedError
from weir.console.session import Session, cookie, cookies_of

if TYPE_CHECKING:
    from weir.console.app import Console

HTML = "text/html; charset=utf-8"
FLASH = "weir_said"
_MAX_FIELDS = 100

#: What every answer says to the browser: nothing from elsewhere is loaded or run, nobody frames us.
SECURITY_HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


@dataclass(frozen=True, slots=True)
class View:
    console: "Console"
    call: Call
    role: str
    session: Session
    #: Whether the cookie is new, and is to be given with the answer.
    new_session: bool
    form: Mapping[str, str]

    @property
    def context(self) -> AdminContext:
        return self.console.context

    @property
    def path(self) -> Mapping[str, Any]:
        return self.call.path

    @property
    def signed_in(self) -> bool:
        return bool(self.session.authorization)

    def asked(self, name: str, default: str = "") -> str:
        """A query parameter."""
        given = self.call.request.query.get(name)
        return given[-1] if given else default

    def number(self, name: str, default: int, most: int = 2**63 - 1) -> int:
        """A query parameter that is a natural number; the default for what is none."""
        text = self.asked(name)
        return min(int(text), most) if text.isascii() and text.isdigit() and len(text) < 20 else default

    def said(self, name: str) -> str:
        """A field of the form; RefusedError if it is not there."""
        if name not in self.form:
            raise RefusedError(400, f"the form has no field {name}")
        return self.form[name]

    async def ask(
        self, method: str, path: str, query: Mapping[str, object] | None = None, body: object = None
    ) -> Any:
        """The admin API, as the role that looks."""
        return await self.console.calls.ask(self.role, method, path, query, body)

    async def look(self, path: str, query: Mapping[str, object] | None = None, default: Any = None) -> Any:
        """GET, or the default where the role may not, or there is nothing."""
        try:
            return await self.ask("GET", path, query)
        except RefusedError as refused:
            if refused.status in (403, 404, 405, 412, 501):
                return default
            raise

    # --- answers ------------------------------------------------------------------------------------------------

    def render(self, template: str, code: int = 200, /, **values: Any) -> Response:
        """A whole page."""
        request = self.call.request
        flash = cookies_of(request).get(FLASH, "")
        said = unquote(flash)
        body = self.console.templates.render(
            template,
            view=self,
            role=self.role,
            here=request.path,
            proof=self.console.sessions.form_proof(self.session),
            said=said.removeprefix("!"),
            said_badly=said.startswith("!"),
            **values,
        )
        headers = dict(SECURITY_HEADERS)
        headers["cache-control"] = "no-store"
        cookies = []
        if self.new_session:
            cookies.append(self.console.session_cookie(self.session.sealed))
        if flash:
            cookies.append(cookie(FLASH, "", secure=self.console.secure(request), max_age_s=0))
        return Response(code, body.encode(), HTML, with_cookies(headers, cookies))

    def fragment(self, template: str, **values: Any) -> Response:
        """A part of a page, that a script puts in its place."""
        body = self.console.templates.render(
            template, view=self, role=self.role, proof=self.console.sessions.form_proof(self.session), **values
        )
        return Response(200, body.encode(), HTML, {**SECURITY_HEADERS, "cache-control": "no-store"})

    def back(self, where: str, said: str, *, badly: bool = False) -> Response:
        """After a form: to a page, which says what came of it."""
        text = ("!" if badly else "") + said[:600]
        flash = cookie(FLASH, quote(text, safe=""), secure=self.console.secure(self.call.request), max_age_s=60)
        return Response(303, headers=with_cookies({**SECURITY_HEADERS, "location": where}, [flash]))


def with_cookies(headers: Mapping[str, str], cookies: list[str]) -> dict[str, str]:
    """Several cookies need several headers; names of headers do not mind their case."""
    spellings = ("set-cookie", "Set-Cookie", "SET-COOKIE")
    return {**headers, **dict(zip(spellings, cookies, strict=False))}


def form_of(body: bytes) -> dict[str, str]:
    """The fields of a form; RefusedError for what is none."""
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except (UnicodeDecodeError, ValueError) as bad:
        raise RefusedError(400, "the form cannot be read") from bad
    return {name: values[-1] for name, values in fields.items()}
