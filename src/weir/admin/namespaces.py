"""Namespaces: create, list, delete, and their properties.

Bundles of a namespace: which there are, and giving them away, splitting them, and clearing all in one.

What is done to the subscriptions of all topics of a namespace, or of one of its bundles, at once.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal

from weir.admin.brokers import broker_named
from weir.admin.context import AdminContext
from weir.admin.lake import checked_lake
from weir.admin.names import (
    ABOUT_NAMESPACE,
    ABOUT_TENANT,
    ABOUT_TOPIC,
    CONFLICT,
    NAMESPACE,
    PAGE_QUERY,
    V2,
    BundlesData,
    Properties,
    after_of,
    bounded,
    brokers_own,
    delete_namespace,
    given,
    names_answer,
    namespace_of,
    subscription_of,
    tenant_of,
    topic_of,
    users_own,
)
from weir.admin.policies import NamespacePolicies, grants_of, namespace_policies, policies_of
from weir.model.cluster import BundleName
from weir.model.errors import NotAllowedError, NotOwnerError
from weir.model.registry import STANDALONE, Action
from weir.model.topics import Domain, NamespaceName, TopicName
from weir.rest.http import Response
from weir.rest.routes import TEXT, Call, Query, RefusedError, Route

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


_NAMESPACE_BACKLOGS_TAG = "namespaces"
#: Pulsar has no such call on one topic; brokers ask it of each other.
_ONE = "/admin/weir/v1/backlog/persistent/{tenant}/{namespace}/{topic}"


class NamespaceBacklogs:
    """Each topic is loaded for it by the broker that has it."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._clear_one_route = self._on_topic("POST", f"{_ONE}/clear", "Skip everything.", self._clear_one)
        self._clear_named_route = self._on_topic(
            "POST", f"{_ONE}/clear/{{subscription}}", "Skip everything of a subscription.", self._clear_one
        )
        self._unsubscribe_route = self._on_topic(
            "DELETE", f"{_ONE}/subscription/{{subscription}}", "Delete a subscription.", self._unsubscribe_one
        )

    def _on_topic(self, method: str, path: str, summary: str, action: Callable[[Call], Awaitable[None]]) -> Route:
        return Route(method, path, summary, action, refusals=ABOUT_TOPIC, tag=_NAMESPACE_BACKLOGS_TAG)

    def routes(self) -> list[Route]:
        routes = [self._clear_one_route, self._clear_named_route, self._unsubscribe_route]
        for base, where in ((NAMESPACE, "everywhere"), (f"{NAMESPACE}/{{bundle}}", "in a bundle")):
            routes += [
                Route(
                    "POST",
                    f"{base}/{path}",
                    f"{summary}, {where}.",
                    action,
                    refusals=ABOUT_NAMESPACE,
                    tag=_NAMESPACE_BACKLOGS_TAG,
                )
                for path, summary, action in (
                    ("clearBacklog", "Skip everything", self._clear),
                    ("clearBacklog/{subscription}", "Skip everything of one subscription", self._clear),
                    ("unsubscribe/{subscription}", "Delete one subscription", self._unsubscribe),
                )
            ]
        return routes

    async def _topics(self, call: Call) -> list[TopicName]:
        """The topics that store messages and that the call is about."""
        name = namespace_of(call.path)
        self._context.authoriser.check(call.role, Action.CONSUME, name)
        bundle = BundleName.of_range(name, call.path["bundle"]) if "bundle" in call.path else None
        if bundle is not None:
            self._context.broker.bundles.info(bundle)
        return [
            topic
            async for some in self._context.registry.topic_names(name, domain=Domain.PERSISTENT)
            for topic in some
            if bundle is None or bundle.holds(topic)
        ]

    async def _clear(self, call: Call) -> None:
        route = self._clear_named_route if "subscription" in call.path else self._clear_one_route
        await self._context.on_topics(call, await self._topics(call), route=route)

    async def _unsubscribe(self, call: Call) -> None:
        await self._context.on_topics(call, await self._topics(call), route=self._unsubscribe_route)

    # --- one topic ----------------------------------------------------------------------------------------------

    def _consumed(self, call: Call) -> TopicName:
        name = topic_of(call.path)
        self._context.authoriser.check(call.role, Action.CONSUME, name)
        return name

    async def _clear_one(self, call: Call) -> None:
        topic = await self._context.stored_one(self._consumed(call))
        only = subscription_of(call.path) if "subscription" in call.path else None
        for subscription in list(topic.subscriptions.values()):
            if only in (None, subscription.name):
                subscription.skip_all()
                await subscription.persisted()

    async def _unsubscribe_one(self, call: Call) -> None:
        """Fine if the topic has none of that name."""
        topic, wanted = await self._context.stored_one(self._consumed(call)), subscription_of(call.path)
        if wanted in topic.subscriptions:
            await topic.delete_subscription(wanted)


_TAG = "bundles"
_BUNDLE = f"{NAMESPACE}/{{bundle}}"
_ABOUT = {307: "another broker has the bundle", **ABOUT_NAMESPACE}
_TO = Query("destinationBroker", str, "who is to have it: a broker's id, or its HTTP address as host:port")


class Bundles:
    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._unload_route = Route(
            "PUT",
            f"{_BUNDLE}/unload",
            "Let go of a bundle's topics, or give them to another broker.",
            self._unload,
            query=(_TO,),
            refusals=_ABOUT,
            tag=_TAG,
        )

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                f"{NAMESPACE}/bundles",
                "Its bundles.",
                self._list,
                answer=BundlesData,
                refusals=ABOUT_NAMESPACE,
                tag=_TAG,
            ),
            self._unload_route,
            Route(
                "PUT",
                f"{_BUNDLE}/transfer",
                "Give a bundle to another broker.",
                self._transfer,
                query=(_TO,),
                refusals=_ABOUT,
                tag=_TAG,
            ),
            Route(
                "PUT",
                f"{_BUNDLE}/split",
                "Make two bundles of one.",
                self._split,
                query=(
                    Query("unload", bool, "let go of both then", False),
                    Query("splitBoundaries", str, "at which hash, in hexadecimal; else in the middle"),
                ),
                refusals={**_ABOUT, **CONFLICT},
                tag=_TAG,
            ),
            Route(
                "PUT",
                f"{NAMESPACE}/unload",
                "Let go of all topics, on all brokers.",
                self._unload_all,
                query=(_TO,),
                refusals=ABOUT_NAMESPACE,
                tag=_TAG,
            ),
        ]

    async def _list(self, call: Call) -> BundlesData:
        return bundles_data([info.name for info in self._context.broker.bundles.of(self._namespace(call))])

    async def _unload(self, call: Call) -> None:
        bundle, to = self._named(call), call.query["destinationBroker"]
        try:
            await (self._give(bundle, to) if to else self._context.broker.bundles.let_go(bundle))
        except NotOwnerError:
            if self._context.broker.bundles.info(bundle).owner:
                raise

    async def _transfer(self, call: Call) -> None:
        bundle, to = self._named(call), call.query["destinationBroker"]
        if not to:
            raise RefusedError(412, "who is to have the bundle?", hint="give a broker as ?destinationBroker=")
        await self._give(bundle, to)

    async def _give(self, bundle: BundleName, to: str) -> None:
        await self._context.broker.bundles.hand_over(bundle, broker_named(self._context, to).broker_id)

    async def _split(self, call: Call) -> None:
        bundle = self._named(call)
        made = await self._context.broker.bundles.split(bundle, _hash(call.query["splitBoundaries"]))
        if call.query["unload"]:
            for half in made:
                await self._context.broker.bundles.let_go(half)

    async def _unload_all(self, call: Call) -> None:
        namespace = self._namespace(call)
        taken = [info.name for info in self._context.broker.bundles.of(namespace) if info.owner]
        await self._context.on_bundles(call, taken, route=self._unload_route)

    def _namespace(self, call: Call) -> NamespaceName:
        name = namespace_of(call.path)
        self._context.authoriser.check_admin(call.role, name)
        self._context.registry.namespaces.get(name)
        return name

    def _named(self, call: Call) -> BundleName:
        """What is done to a bundle that another broker has raises NotOwnerError, and its client is sent there."""
        return BundleName.of_range(self._namespace(call), call.path["bundle"])


def bundles_data(bundles: Sequence[BundleName]) -> BundlesData:
    """Their boundaries, as Pulsar writes them."""
    points = [*(bundle.low for bundle in bundles), *(bundle.high for bundle in bundles[-1:])]
    return BundlesData([f"0x{point:08x}" for point in points], len(bundles))


def _hash(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text, 0) if text.lower().startswith("0x") else int(text)
    except ValueError:
        raise RefusedError(412, f"{text[:80]!r} is no hash", hint="write it as 0x40000000") from None
