"""Signing in with a token, or with a user's name and password; and signing out."""

import base64
from dataclasses import replace

from weir.admin.http import Response
from weir.console.app import SIGN_IN, Console, PageRoute
from weir.console.session import COOKIE, Session, cookie
from weir.console.view import SECURITY_HEADERS, View, with_cookies
from weir.model.errors import NotAuthenticatedError, WeirError

_MAX_CHARS = 16_000


def routes(console: Console) -> list[PageRoute]:
    return [
        PageRoute("GET", SIGN_IN, show, open=True),
        PageRoute("POST", SIGN_IN, sign_in, open=True),
        PageRoute("POST", "/console/signout", sign_out, open=True),
    ]


async def show(view: View) -> Response:
    return _page(view, _local(view.asked("next")))


async def sign_in(view: View) -> Response:
    """A new session, whatever there was before."""
    where = _local(view.form.get("next", ""))
    token, name = view.form.get("token", "").strip(), view.form.get("name", "").strip()
    if token:
        authorization = f"Bearer {token}"
    elif name:
        pair = f"{name}:{view.form.get('password', '')}".encode()
        authorization = f"Basic {base64.b64encode(pair).decode()}"
    else:
        return _page(view, where, "Give a token, or a name and a password.")
    if len(authorization) > _MAX_CHARS or not authorization.isascii() or not authorization.isprintable():
        return _page(view, where, "These credentials cannot be read.")
    console = view.console
    try:
        await console.role_of(Session("", authorization), view.call.request)
        sealed = console.sessions.seal(authorization)
    except NotAuthenticatedError as refused:
        return _page(view, where, str(refused))
    except WeirError as refused:
        return _page(view, where, str(refused))
    headers = {**SECURITY_HEADERS, "location": where}
    return Response(303, headers=with_cookies(headers, [console.session_cookie(sealed)]))


async def sign_out(view: View) -> Response:
    gone = cookie(COOKIE, "", secure=view.console.secure(view.call.request), max_age_s=0)
    return Response(303, headers=with_cookies({**SECURITY_HEADERS, "location": SIGN_IN}, [gone]))


def _page(view: View, where: str, problem: str = "") -> Response:
    fresh = replace(view, role=view.role)
    return fresh.render(
        "signin.html", 401 if problem else 200, title="Sign in", tab="", next=where, problem=problem
    )


def _local(where: str) -> str:
    """A page of ours; never another site's."""
    plain = where.startswith("/") and not where.startswith(("//", "/\\")) and where.isprintable()
    return where if plain and not where.startswith(SIGN_IN) else "/"
