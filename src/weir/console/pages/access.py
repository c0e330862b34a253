"""Tenants, namespaces, grants and tokens: for who administers them.

Signing in with a token, or with a user's name and password; and signing out.
"""

import base64
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from weir.console.app import SIGN_IN, Console, PageRoute
from weir.console.view import COOKIE, SECURITY_HEADERS, Session, View, cookie, with_cookies
from weir.model.errors import NotAuthenticatedError, WeirError
from weir.model.registry import check_role
from weir.model.topics import NamespaceName
from weir.rest.http import Response
from weir.rest.routes import RefusedError

_DAY_S = 86_400
_ACTIONS = ("produce", "consume")


def access_routes(console: Console) -> list[PageRoute]:
    return [
        PageRoute("GET", "/console/access", show_access),
        PageRoute("POST", "/console/access/tenant", make_tenant),
        PageRoute("POST", "/console/access/namespace", make_namespace),
        PageRoute("POST", "/console/access/grant", grant),
        PageRoute("POST", "/console/access/revoke", revoke),
        PageRoute("POST", "/console/access/token", make_token),
    ]


def administered(view: View) -> list[NamespaceName]:
    """The namespaces whose grants the role may see and change."""
    registry, may = view.context.registry, view.context.authoriser.may_administer
    return [
        name
        for tenant in registry.tenants.names()
        if may(view.role, tenant)
        for name in registry.namespaces.names(tenant)
    ]


async def show_access(view: View) -> Response:
    return _page(view)


def _page(view: View, token: str = "", token_for: str = "") -> Response:
    registry, superuser = view.context.registry, view.context.authoriser.is_superuser(view.role)
    may = view.context.authoriser.may_administer
    tenants = []
    for tenant in registry.tenants.names():
        if not may(view.role, tenant):
            continue
        tenants.append(
            {
                "name": tenant,
                "admins": registry.tenants.get(tenant).admin_roles,
                "scopes": [
                    *_scope(view, tenant, tenant),
                    *(row for name in registry.namespaces.names(tenant) for row in _scope(view, name, str(name))),
                ],
            }
        )
    return view.render(
        "access.html",
        title="Access",
        tab="access",
        tenants=tenants,
        superuser=superuser,
        may_make_tokens=superuser and view.console.parts.make_token is not None,
        users=registry.users.names() if superuser else [],
        token=token,
        token_for=token_for,
    )


def _scope(view: View, scope: Any, label: str) -> list[dict[str, Any]]:
    grants = view.context.registry.grants
    rows = [
        {
            "label": label,
            "kind": "tenant" if isinstance(scope, str) else "namespace",
            "grants": grants.on(scope).roles,
        }
    ]
    if isinstance(scope, NamespaceName):
        for topic, found in sorted(grants.on_topics_of(scope).items()):
            rows.append({"label": topic, "kind": "topic", "grants": found.roles})
    return rows


async def make_tenant(view: View) -> Response:
    name, roles = view.said("tenant").strip(), view.form.get("admins", "")
    body = {
        "adminRoles": [role.strip() for role in roles.split(",") if role.strip()],
        "allowedClusters": [cluster.name for cluster in view.context.registry.clusters()],
    }
    await view.ask("PUT", f"/admin/v2/tenants/{quote(name, safe='')}", body=body)
    return view.back("/console/access", f"Tenant {name} is there.")


async def make_namespace(view: View) -> Response:
    tenant, name = view.said("tenant"), view.said("namespace").strip()
    await view.ask("PUT", f"/admin/v2/namespaces/{quote(tenant, safe='')}/{quote(name, safe='')}")
    return view.back("/console/access", f"Namespace {tenant}/{name} is there.")


def _permissions(kind: str, scope: str) -> str:
    """Where the API has the grants on a tenant, a namespace or a topic."""
    if kind == "topic":
        domain, _, rest = scope.partition("://")
        tenant, namespace, local = rest.split("/", 2)
        return f"/admin/v2/{domain}/{tenant}/{namespace}/{quote(local, safe='')}/permissions"
    parts = [quote(part, safe="") for part in scope.split("/")]
    if kind == "tenant" and len(parts) == 1:
        return f"/admin/weir/v1/tenants/{parts[0]}/permissions"
    if kind == "namespace" and len(parts) == 2:
        return f"/admin/v2/namespaces/{parts[0]}/{parts[1]}/permissions"
    raise RefusedError(400, f"{scope[:80]!r} is nothing that can be granted on")


async def grant(view: View) -> Response:
    kind, scope, role = view.said("kind"), view.said("scope"), view.said("role").strip()
    actions = [action for action in _ACTIONS if view.form.get(action) == "yes"]
    if not actions:
        raise RefusedError(400, "choose what the role may do")
    await view.ask("POST", f"{_permissions(kind, scope)}/{quote(role, safe='')}", body=actions)
    return view.back("/console/access", f"{role} may {' and '.join(actions)} on {scope}.")


async def revoke(view: View) -> Response:
    kind, scope, role = view.said("kind"), view.said("scope"), view.said("role")
    await view.ask("DELETE", f"{_permissions(kind, scope)}/{quote(role, safe='')}")
    return view.back("/console/access", f"{role} has no grant on {scope} any more.")


async def make_token(view: View) -> Response:
    """Shown once, on the page that answers: it is nowhere kept."""
    view.context.authoriser.check_superuser(view.role)
    make, role, days = view.console.parts.make_token, check_role(view.said("role").strip()), view.said("days")
    if make is None:
        raise RefusedError(501, "this broker has no key to sign tokens with", hint="use weir token create")
    if not (days.isascii() and days.isdigit() and len(days) < 6):
        raise RefusedError(400, f"{days[:20]!r} is not a number of days")
    return _page(view, make(role, int(days) * _DAY_S if int(days) else None), role)


_MAX_CHARS = 16_000


def signing_in_routes(console: Console) -> list[PageRoute]:
    return [
        PageRoute("GET", SIGN_IN, show_sign_in, open=True),
        PageRoute("POST", SIGN_IN, sign_in, open=True),
        PageRoute("POST", "/console/signout", sign_out, open=True),
    ]


async def show_sign_in(view: View) -> Response:
    return _sign_in_page(view, _local(view.asked("next")))


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
        return _sign_in_page(view, where, "Give a token, or a name and a password.")
    if len(authorization) > _MAX_CHARS or not authorization.isascii() or not authorization.isprintable():
        return _sign_in_page(view, where, "These credentials cannot be read.")
    console = view.console
    try:
        await console.role_of(Session("", authorization), view.call.request)
        sealed = console.sessions.seal(authorization)
    except NotAuthenticatedError as refused:
        return _sign_in_page(view, where, str(refused))
    except WeirError as refused:
        return _sign_in_page(view, where, str(refused))
    headers = {**SECURITY_HEADERS, "location": where}
    return Response(303, headers=with_cookies(headers, [console.session_cookie(sealed)]))


async def sign_out(view: View) -> Response:
    gone = cookie(COOKIE, "", secure=view.console.secure(view.call.request), max_age_s=0)
    return Response(303, headers=with_cookies({**SECURITY_HEADERS, "location": SIGN_IN}, [gone]))


def _sign_in_page(view: View, where: str, problem: str = "") -> Response:
    fresh = replace(view, role=view.role)
    return fresh.render(
        "signin.html", 401 if problem else 200, title="Sign in", tab="", next=where, problem=problem
    )


def _local(where: str) -> str:
    """A page of ours; never another site's."""
    plain = where.startswith("/") and not where.startswith(("//", "/\\")) and where.isprintable()
    return where if plain and not where.startswith(SIGN_IN) else "/"
