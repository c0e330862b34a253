"""Who looks: credentials sealed in a cookie, and the proof that a form came from one of our own pages.

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

from weir.admin.http import Request
from weir.model.errors import NotAllowedError
from weir.runtime.interfaces import Clock

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
