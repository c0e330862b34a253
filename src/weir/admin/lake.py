"""The lake: catalogs, which superusers define, and what namespaces select of them.

Processes with more rights than a tenant open catalogs and stores: `weir lake run`, brokers, queries of others. So
addresses and options come from a superuser; a namespace's property names a catalog (`weir.model.lake`).
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_NAMESPACE, CONFLICT, namespace_of
from weir.model.errors import ConfigError, InvalidNameError, LakeError
from weir.model.lake import (
    LAKE_OFF,
    LAKE_OWNER,
    LAKE_PROPERTY,
    LAKE_TOPIC_PREFIX,
    LakeCatalog,
    check_catalog,
    check_selection,
    owner_of,
    resolve_selection,
)
from weir.model.registry import Namespace
from weir.model.topics import TopicName, check_entity_name
from weir.rest.routes import Call, RefusedError, Route

_WEIR = "/admin/weir/v1"
_CATALOGS, _LAKE = f"{_WEIR}/lake-catalogs", f"{_WEIR}/lake"
_CATALOG = f"{_CATALOGS}/{{catalog}}"
_TAG = "lake"
_NAMED_USERS = 3

_Text = Annotated[str, Meta(max_length=4_000)]
_Word = Annotated[str, Meta(min_length=1, max_length=200)]


class LakeCatalogBody(Struct):
    """A definition. `to`: where tables lie; `catalog`: the address of the Iceberg catalog; `options`: of store and
    catalog, from the allow list; `tenants`: who may select it; null: every tenant."""

    to: _Text
    catalog: _Text
    options: Annotated[dict[_Word, _Text], Meta(max_length=50)] = field(default_factory=dict)
    tenants: Annotated[list[_Word], Meta(max_length=10_000)] | None = None


class LakeCatalogAnswer(Struct):
    """Addresses, options and tenants are for superusers."""

    name: str
    kind: str
    to: str | None = None
    catalog: str | None = None
    options: dict[str, str] | None = None
    tenants: list[str] | None = None


class LakeSelectionAnswer(Struct, rename="camel"):
    """What holds for a topic or a namespace. Without a catalog, `problem` says why the definition is ignored."""

    off: bool = False
    name: str = ""
    to: str | None = None
    catalog: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    keep_ms: int | None = None
    tiered_after_ms: int | None = None
    problem: str = ""


class NamespaceLakeAnswer(Struct):
    """`every`: of all topics of the namespace; `topics`: of those that are said for themselves, by local name."""

    namespace: str
    owner: str
    every: LakeSelectionAnswer | None
    topics: dict[str, LakeSelectionAnswer]
    #: Log topics of functions, by local name: they are in the lake if they are among `topics`.
    logs: list[str] = field(default_factory=list)


class LakeRoutes:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        bad = {412: "not a catalog, or not an allowed option"}

        def route(verb: str, path: str, what: str, work: Any, **more: Any) -> Route:
            return Route(verb, path, what, work, tag=_TAG, **more)

        return [
            route(
                "GET",
                _CATALOGS,
                "The catalogs of the lake that the caller may select; for superusers, all, with their addresses.",
                self._catalogs,
                answer=list[LakeCatalogAnswer],
            ),
            route("PUT", _CATALOG, "Define a catalog.", self._put, body=LakeCatalogBody, refusals=bad),
            route(
                "DELETE",
                _CATALOG,
                "Remove a catalog that no namespace selects.",
                self._delete,
                refusals={404: "no such catalog", **CONFLICT, **bad},
            ),
            route(
                "GET",
                _LAKE,
                "What the namespaces that the caller administers say of the lake.",
                self._whole,
                answer=list[NamespaceLakeAnswer],
            ),
            route(
                "GET",
                f"{_LAKE}/{{tenant}}/{{namespace}}",
                "What a namespace says of the lake, with the catalogs that it selects.",
                self._of,
                answer=NamespaceLakeAnswer,
                refusals=ABOUT_NAMESPACE,
            ),
        ]

    # --- catalogs -----------------------------------------------------------------------------------------------

    async def _catalogs(self, call: Call) -> list[LakeCatalogAnswer]:
        known = [one for _, one in sorted(self._context.registry.lake_catalogs.all().items())]
        if self._context.authoriser.is_superuser(call.role):
            return [_shown(one) for one in known]
        may = self._context.authoriser.may_administer
        tenants = [name for name in self._context.registry.tenants.names() if may(call.role, name)]
        return [
            LakeCatalogAnswer(one.name, one.kind)
            for one in known
            if any(one.permits(tenant) for tenant in tenants)
        ]

    async def _put(self, call: Call) -> None:
        self._context.authoriser.check_superuser(call.role)
        body: LakeCatalogBody = call.body
        tenants = None if body.tenants is None else tuple(body.tenants)
        for tenant in tenants or ():
            check_entity_name(tenant, "tenant")
        wanted = LakeCatalog(call.path["catalog"], body.to, body.catalog, body.options, tenants)
        try:
            check_catalog(wanted)
        except ConfigError as wrong:
            raise RefusedError(412, wrong.what, hint=wrong.hint) from None
        await self._context.registry.lake_catalogs.put(wanted)

    async def _delete(self, call: Call) -> None:
        self._context.authoriser.check_superuser(call.role)
        name = call.path["catalog"]
        users = [str(one.name) for one in self._namespaces() if name in _selected(self._context, one)]
        if users:
            raise RefusedError(
                409,
                f"lake catalog {name[:80]!r} is selected by {', '.join(users[:_NAMED_USERS])}"
                + (f" and {len(users) - _NAMED_USERS} more" if len(users) > _NAMED_USERS else ""),
                hint="turn the lake off there (weir lake off), or select another one (weir lake on --catalog)",
            )
        if not await self._context.registry.lake_catalogs.delete(name):
            raise RefusedError(404, f"no superuser has defined a lake catalog {name[:80]!r}")

    # --- what namespaces say ------------------------------------------------------------------------------------

    async def _whole(self, call: Call) -> list[NamespaceLakeAnswer]:
        may = self._context.authoriser.may_administer
        found = [namespace_lake(self._context, one) for one in self._namespaces() if may(call.role, one.name)]
        logs = await self._logs()
        for one in found:
            one.logs = logs.get(one.namespace, [])
        return [one for one in found if one.every is not None or one.topics]

    async def _of(self, call: Call) -> NamespaceLakeAnswer:
        name = namespace_of(call.path)
        self._context.authoriser.check_admin(call.role, name)
        found = namespace_lake(self._context, self._context.registry.namespaces.get(name))
        found.logs = (await self._logs()).get(found.namespace, [])
        return found

    async def _logs(self) -> dict[str, list[str]]:
        """Log topics of functions, by namespace."""
        functions, found = self._context.functions, dict[str, list[str]]()
        for one in [] if functions is None else await functions.list():
            text, namespace = one.function.options.get("log_topic", ""), one.function.name.namespace
            if not text:
                continue
            with suppress(InvalidNameError):
                topic = TopicName.parse(text if "/" in text else f"{namespace}/{text}")
                found.setdefault(str(topic.namespace), []).append(topic.local)
        return found

    def _namespaces(self) -> list[Namespace]:
        registry = self._context.registry
        names = [name for tenant in registry.tenants.names() for name in registry.namespaces.names(tenant)]
        return [found for name in names if (found := registry.namespaces.find(name)) is not None]


def namespace_lake(context: AdminContext, namespace: Namespace) -> NamespaceLakeAnswer:
    """What it says of the lake, with the catalogs that it may select."""
    said = {
        name: _resolved(context, namespace, text)
        for name, text in namespace.properties.items()
        if name == LAKE_PROPERTY or name.startswith(LAKE_TOPIC_PREFIX)
    }
    every = said.pop(LAKE_PROPERTY, None)
    topics = {name.removeprefix(LAKE_TOPIC_PREFIX): one for name, one in said.items()}
    return NamespaceLakeAnswer(str(namespace.name), owner_of(namespace.properties), every, topics)


def _resolved(context: AdminContext, namespace: Namespace, text: str) -> LakeSelectionAnswer:
    if text == LAKE_OFF:
        return LakeSelectionAnswer(off=True)
    found = resolve_selection(text, namespace.name.tenant, context.registry.lake_catalogs.all())
    keep_ms, tiered_after_ms, one = found.selection.keep_ms, found.selection.tiered_after_ms, found.catalog
    if one is None:
        return LakeSelectionAnswer(keep_ms=keep_ms, tiered_after_ms=tiered_after_ms, problem=found.problem)
    return LakeSelectionAnswer(False, one.name, one.to, one.catalog, dict(one.options), keep_ms, tiered_after_ms)


def _selected(context: AdminContext, namespace: Namespace) -> set[str]:
    """The names of the catalogs that it selects."""
    told = namespace_lake(context, namespace)
    return {one.name for one in (told.every, *told.topics.values()) if one is not None and one.name}


def _shown(one: LakeCatalog) -> LakeCatalogAnswer:
    tenants = None if one.tenants is None else list(one.tenants)
    return LakeCatalogAnswer(one.name, one.kind, one.to, one.catalog, dict(one.options), tenants)


def checked_lake(
    context: AdminContext, tenant: str, said: Mapping[str, str], now: Mapping[str, str]
) -> dict[str, str]:
    """Properties for a namespace that has `now`, with an owner of its tables if they select a catalog. 412 for
    what only a superuser defines."""
    checked = dict(said)
    owner = checked.pop(LAKE_OWNER, None)
    known = owner_of(now)
    if owner is not None and known and owner != known:
        raise RefusedError(412, "the owner of the lake's tables stays as it is", hint="leave lake-owner out")
    wanted = [name for name in checked if name == LAKE_PROPERTY or name.startswith(LAKE_TOPIC_PREFIX)]
    for name in wanted:
        try:
            check_selection(checked[name], tenant, context.registry.lake_catalogs.all())
        except LakeError as wrong:
            raise RefusedError(412, f"property {name[:80]}: {wrong.what}", hint=wrong.hint) from None
    if wanted and not known:
        checked[LAKE_OWNER] = context.registry.lake_catalogs.new_owner()
    return checked
