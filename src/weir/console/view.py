"""One request for a page: who looks, what was asked and said, and the ways to answer.

Who looks: credentials sealed in a cookie, and the proof that a form came from one of our own pages.

The cookie holds what the visitor signed in with, sealed with a key that all brokers of the cluster share. So every
request is authenticated anew, exactly as one to the API with the same credentials, at whichever broker it comes
to: a token that has run out, or a user who was deleted, is out at once.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote

from weir.admin.context import AdminContext
from weir.model.errors import NotAllowedError
from weir.rest.http import Request, Response
from weir.rest.routes import Call, RefusedError
from weir.runtime.interfaces import Clock

if TYPE_CHECKING:
    from weir.console.app import Console


COOKIE = "weir_session"
#: A session ends after so long, whatever the credentials say.
SESSION_S = 12 * 3600
#: Browsers keep no larger cookies.
_MAX_COOKIE_BYTES = 4000


@dataclass(frozen=True, slots=True)
class Session:
    """`authorization`: the header that the credentials are to the API; "" of somebody who did not sign in."""

    sealed: str
    authorization: str


class Sessions:
    """Seals and opens them."""

    def __init__(self, key: bytes, clock: Clock) -> None:
        """`key`: 32 bytes that nobody but the brokers of this cluster knows."""
        from cryptography.fernet import Fernet  # only who looks pays for it

        self._seals = Fernet(base64.urlsafe_b64encode(hashlib.sha256(b"weir console seal" + key).digest()))
        self._proof_key = hashlib.sha256(b"weir console form" + key).digest()
        self._clock = clock

    def seal(self, authorization: str) -> str:
        """A cookie's value; NotAllowedError for credentials that no cookie has room for."""
        sealed = self._seals.encrypt_at_time(authorization.encode(), self._now_s()).decode()
        if len(sealed) > _MAX_COOKIE_BYTES:
            raise NotAllowedError("these credentials are too long for a browser", hint="use a shorter token")
        return sealed

    def open(self, request: Request) -> Session | None:
        """What the request's cookie holds; None if it has none that holds."""
        from cryptography.fernet import InvalidToken

        sealed = cookies_of(request).get(COOKIE, "")
        if not sealed:
            return None
        try:
            said = self._seals.decrypt_at_time(sealed.encode(), SESSION_S, self._now_s())
        except (InvalidToken, UnicodeEncodeError):
            return None
        return Session(sealed, said.decode())

    def form_proof(self, session: Session) -> str:
        """What every form of this session carries; nobody else can make it."""
        return hmac.new(self._proof_key, session.sealed.encode(), hashlib.sha256).hexdigest()

    def proves(self, session: Session | None, proof: str) -> bool:
        return session is not None and hmac.compare_digest(self.form_proof(session).encode(), proof.encode())

    def _now_s(self) -> int:
        return self._clock.wall_ms() // 1000


def cookies_of(request: Request) -> dict[str, str]:
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(request.headers.get("cookie", "")).items()}
    except CookieError:
        return {}


def cookie(name: str, value: str, *, secure: bool, max_age_s: int | None = None) -> str:
    """A cookie that no script reads, and that no other site's page makes the browser send."""
    parts = [f"{name}={value}", "Path=/", "HttpOnly", "SameSite=Strict"]
    if max_age_s is not None:
        parts.append(f"Max-Age={max_age_s}")
    if secure:
        parts.append("Secure")
    return "; ".join(parts)


def from_our_page(headers: Mapping[str, str], *, secure: bool) -> bool:
    """Whether the browser says that a request came from a page of this very server. One that says nothing of it
    is judged by the form's proof alone."""
    site = headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    return origin == f"{'https' if secure else 'http'}://{headers.get('host', '')}"


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
