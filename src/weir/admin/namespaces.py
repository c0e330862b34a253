"""Namespaces: create, list, delete, and their properties."""

from collections.abc import Mapping
from typing import Literal

from weir.admin.bodies import Properties
from weir.admin.bodies_policies import NamespacePolicies
from weir.admin.context import AdminContext
from weir.admin.http import Response
from weir.admin.lake import checked_lake
from weir.admin.names import ABOUT_NAMESPACE, ABOUT_TENANT, CONFLICT, NAMESPACE, V2, namespace_of, tenant_of
from weir.admin.policies_map import grants_of, namespace_policies, policies_of
from weir.admin.properties import bounded, brokers_own, given, users_own
from weir.admin.routing import TEXT, Call, Query, RefusedError, Route
from weir.admin.topic_deletion import delete_namespace
from weir.admin.topic_pages import PAGE_QUERY, after_of, names_answer
from weir.model.errors import NotAllowedError
from weir.model.registry import STANDALONE
from weir.model.topics import Domain, NamespaceName

Mode = Literal["PERSISTENT", "NON_PERSISTENT", "ALL"]
_MODES = {"PERSISTENT": Domain.PERSISTENT, "NON_PERSISTENT": Domain.NON_PERSISTENT, "ALL": None}


class Namespaces:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [*self._main(), *self._properties()]

    def _main(self) -> list[Route]:
        about, tag = {**ABOUT_NAMESPACE, **CONFLICT}, "namespaces"
        return [
            Route(
                "GET",
                f"{V2}/namespaces/{{tenant}}",
                "List the namespaces of a tenant.",
                self._list,
                answer=list[str],
                refusals=ABOUT_TENANT,
                tag=tag,
            ),
            Route("GET", NAMESPACE, "All policies.", self._get, answer=NamespacePolicies, refusals=about, tag=tag),
            Route(
                "PUT",
                NAMESPACE,
                "Create a namespace.",
                self._create,
                body=NamespacePolicies,
                body_optional=True,
                refusals=about,
                tag=tag,
            ),
            Route(
                "DELETE",
                NAMESPACE,
                "Delete a namespace.",
                self._delete,
                query=(Query("force", bool, "also if it has topics, which are deleted", False),),
                refusals=about,
                tag=tag,
            ),
            Route(
                "GET",
                f"{NAMESPACE}/topics",
                "List the topics of a namespace, each partition on its own.",
                self._topics,
                answer=list[str],
                query=(Query("mode", Mode, "which kinds of topics", "PERSISTENT"), *PAGE_QUERY),
                refusals=about,
                tag=tag,
            ),
            Route(
                "GET",
                f"{NAMESPACE}/replication",
                "The clusters that have it.",
                self._clusters,
                answer=list[str],
                refusals=about,
            ),
        ]

    def _properties(self) -> list[Route]:
        path, one, about = f"{NAMESPACE}/properties", f"{NAMESPACE}/property/{{key}}", ABOUT_NAMESPACE
        return [
            Route("GET", path, "All properties.", self._get_properties, answer=Properties, refusals=about),
            Route(
                "PUT",
                path,
                "Set properties.",
                self._put_properties,
                body=Properties,
                body_optional=True,
                refusals=about,
            ),
            Route("DELETE", path, "Clear properties.", self._clear_properties, refusals=about),
            Route(
                "GET", one, "One property, as it is.", self._get_property, media=TEXT, empty=True, refusals=about
            ),
            Route(
                "DELETE",
                one,
                "Remove a property; what it was.",
                self._remove_property,
                media=TEXT,
                empty=True,
                refusals=about,
            ),
            Route("PUT", f"{one}/{{value}}", "Set a property.", self._put_property, refusals=about),
        ]

    # --- one namespace ------------------------------------------------------------------------------------------

    async def _list(self, call: Call) -> list[str]:
        tenant = tenant_of(call.path)
        self._context.authoriser.check_admin(call.role, tenant)
        return [str(name) for name in self._context.registry.namespaces.names(tenant)]

    async def _get(self, call: Call) -> NamespacePolicies:
        name = self._administered(call)
        namespace = self._context.registry.namespaces.get(name)
        grants = self._context.registry.grants
        return namespace_policies(namespace, grants.on(name), grants.on_topics_of(name))

    async def _create(self, call: Call) -> None:
        name, body = self._administered(call), call.body or NamespacePolicies()
        named = (*(body.replication_clusters or ()), *body.allowed_clusters)
        unknown = [cluster for cluster in named if cluster != STANDALONE]
        if unknown:
            raise RefusedError(412, f"there is no cluster {unknown[0][:80]}")
        if body.encryption_required:
            raise NotAllowedError("the policy encryption_required is not supported: messages would not be checked")
        grants = grants_of(name, body.auth_policies)
        properties = checked_lake(self._context, name.tenant, given(body.properties), {})
        await self._context.registry.namespaces.create(name, policies=policies_of(body), properties=properties)
        for scope, role, actions in grants:
            await self._context.registry.grants.grant(scope, role, actions)
        if body.bundles is not None and body.bundles.numBundles > 0:
            await self._context.broker.bundles.divide(name, body.bundles.numBundles)

    async def _delete(self, call: Call) -> None:
        await delete_namespace(self._context, self._administered(call), force=call.query["force"])

    async def _topics(self, call: Call) -> Response:
        name = namespace_of(call.path)
        self._context.authoriser.check_lookup(call.role, name)
        domain, after = _MODES[call.query["mode"]], after_of(call.query)
        return await names_answer(self._context.registry.topic_names(name, domain=domain, after=after), call.query)

    async def _clusters(self, call: Call) -> list[str]:
        self._context.registry.namespaces.get(self._administered(call))
        return [STANDALONE]

    def _administered(self, call: Call) -> NamespaceName:
        name = namespace_of(call.path)
        self._context.authoriser.check_admin(call.role, name)
        return name

    # --- properties ---------------------------------------------------------------------------------------------

    async def _get_properties(self, call: Call) -> Properties:
        return users_own(self._context.registry.namespaces.get(self._administered(call)).properties)

    async def _put_properties(self, call: Call) -> None:
        await self._set_properties(call, given(call.body))

    async def _clear_properties(self, call: Call) -> None:
        await self._context.registry.change_properties(self._administered(call), brokers_own)

    async def _get_property(self, call: Call) -> Response | None:
        """Text rather than JSON: Pulsar's clients take the answer for the value, and quotes for a part of it."""
        value = (await self._get_properties(call)).get(call.path["key"])
        return None if value is None else Response(200, value.encode(errors="replace"), TEXT)

    async def _put_property(self, call: Call) -> None:
        await self._set_properties(call, given({call.path["key"]: call.path["value"]}))

    async def _set_properties(self, call: Call, said: Mapping[str, str]) -> None:
        name = self._administered(call)
        await self._context.registry.change_properties(
            name, lambda now: bounded({**now, **checked_lake(self._context, name.tenant, said, now)})
        )

    async def _remove_property(self, call: Call) -> Response | None:
        removed, key = await self._get_property(call), call.path["key"]
        given({key: ""})
        await self._context.registry.change_properties(
            self._administered(call), lambda now: {name: value for name, value in now.items() if name != key}
        )
        return removed
