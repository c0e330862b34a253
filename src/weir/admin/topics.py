"""Topics: create, list, delete, partitions, stats, and what is done to a topic as a whole.

Lookup over HTTP: where a topic is served.
"""

from collections.abc import AsyncIterator

from weir.admin import topic_stats as stats
from weir.admin.context import AdminContext
from weir.admin.names import (
    ABOUT_NAMESPACE,
    ABOUT_TOPIC,
    CONFLICT,
    PAGE_QUERY,
    V2,
    LookupData,
    PartitionedTopicMetadata,
    Properties,
    after_of,
    bounded,
    delete_topic,
    given,
    names_answer,
    namespace_of,
    topic_of,
    topic_path,
    users_own,
)
from weir.admin.topic_stats import StatsWanted, internal_stats, partitioned_stats, topic_stats
from weir.broker.api.broker import Owner
from weir.model.cluster import BundleName
from weir.model.definitions import ID_NOTE, INPUT_NOTE, PREFIX
from weir.model.errors import NotAllowedError, NotOwnerError, TopicNotFoundError
from weir.model.topics import Domain, NamespaceName, TopicName
from weir.rest.http import Response
from weir.rest.routes import TEXT, Call, Int, Query, RefusedError, Route

_FORCE = Query("force", bool, "also while it has producers or consumers", False)
#: The property by which Pulsar's admin client names the source of a new shadow topic.
_SHADOW_SOURCE = "PULSAR.SHADOW_SOURCE"
_MAX_PARTITIONS = 10_000
_COUNT = {406: "not a possible number of partitions", **ABOUT_TOPIC, **CONFLICT}
_FIXED = {422: "it has more partitions than that", **_COUNT}

_STATS = (
    Query("getPreciseBacklog", bool, "the backlog without acknowledged messages; it always is", False),
    Query("subscriptionBacklogSize", bool, "the backlog of each subscription in bytes; else -1", True),
    Query("getEarliestTimeInBacklog", bool, "when the oldest message in a backlog was published", False),
    Query("excludePublishers", bool, "leave the producers out", False),
    Query("excludeConsumers", bool, "leave the consumers out", False),
)


class Topics:
    """Of one domain."""

    def __init__(self, context: AdminContext, domain: Domain) -> None:
        self._context = context
        self._domain = domain
        self._base = topic_path(domain)
        self._tag = f"{domain.value} topics"
        self._stats_route = Route(
            "GET",
            f"{self._base}/stats",
            "Rates, sizes, producers and subscriptions.",
            self._get_stats,
            answer=stats.TopicStatsBody,
            query=_STATS,
            refusals=ABOUT_TOPIC,
            tag=self._tag,
        )
        self._internal_route = Route(
            "GET",
            f"{self._base}/internalStats",
            "Ledgers and cursors.",
            self._get_internal,
            answer=stats.InternalStatsBody,
            refusals=ABOUT_TOPIC,
            tag=self._tag,
        )

    def routes(self) -> list[Route]:
        return [*self._lists(), *self._life(), *self._partition_routes(), *self._stats(), *self._properties()]

    def _lists(self) -> list[Route]:
        of = f"{V2}/{self._domain.value}/{{tenant}}/{{namespace}}"
        about = ABOUT_NAMESPACE
        return [
            Route(
                "GET",
                of,
                "List topics, each partition on its own.",
                self._list,
                answer=list[str],
                query=(Query("bundle", str, "of one bundle alone, by its range"), *PAGE_QUERY),
                refusals=about,
                tag=self._tag,
            ),
            Route(
                "GET",
                f"{of}/partitioned",
                "List partitioned topics.",
                self._list_partitioned,
                answer=list[str],
                query=PAGE_QUERY,
                refusals=about,
                tag=self._tag,
            ),
        ]

    def _life(self) -> list[Route]:
        about, tag = {**ABOUT_TOPIC, **CONFLICT}, self._tag
        return [
            Route(
                "PUT",
                self._base,
                "Create a topic.",
                self._create,
                body=Properties,
                body_optional=True,
                refusals=about,
                tag=tag,
            ),
            Route(
                "DELETE",
                self._base,
                "Delete a topic that is not partitioned.",
                self._delete,
                query=(_FORCE,),
                refusals=about,
                tag=tag,
            ),
            Route("PUT", f"{self._base}/unload", "Let go of a topic.", self._unload, refusals=about, tag=tag),
        ]

    def _partition_routes(self) -> list[Route]:
        path, tag, count = f"{self._base}/partitions", self._tag, Int | PartitionedTopicMetadata
        return [
            Route(
                "GET",
                path,
                "How many partitions it has; 0 if it is not partitioned.",
                self._partitions,
                answer=PartitionedTopicMetadata,
                query=(Query("checkAllowAutoCreation", bool, "create it if it may come to be", False),),
                refusals=ABOUT_TOPIC,
                tag=tag,
            ),
            Route(
                "PUT",
                path,
                "Create a partitioned topic.",
                self._create_partitioned,
                body=count,
                refusals=_COUNT,
                tag=tag,
            ),
            Route("POST", path, "Give it more partitions.", self._grow, body=count, refusals=_FIXED, tag=tag),
            Route(
                "DELETE",
                path,
                "Delete a partitioned topic.",
                self._delete_partitioned,
                query=(_FORCE,),
                refusals={**ABOUT_TOPIC, **CONFLICT},
                tag=tag,
            ),
        ]

    def _stats(self) -> list[Route]:
        base, tag, about = self._base, self._tag, ABOUT_TOPIC
        each = Query("perPartition", bool, "with the stats of each partition", True)
        return [
            self._stats_route,
            Route(
                "GET",
                f"{base}/partitioned-stats",
                "The same of all partitions together.",
                self._get_partitioned_stats,
                answer=stats.PartitionedStatsBody,
                query=(each, *_STATS),
                refusals=about,
                tag=tag,
            ),
            self._internal_route,
            Route(
                "GET",
                f"{base}/partitioned-internalStats",
                "The same of each partition.",
                self._get_partitioned_internal,
                answer=stats.PartitionedInternalStatsBody,
                refusals=about,
                tag=tag,
            ),
        ]

    def _properties(self) -> list[Route]:
        path, about, tag = f"{self._base}/properties", {**ABOUT_TOPIC, **CONFLICT}, self._tag
        key = Query("key", str, "which property")
        return [
            Route(
                "GET", path, "All properties.", self._get_properties, answer=Properties, refusals=about, tag=tag
            ),
            Route(
                "PUT",
                path,
                "Set properties.",
                self._put_properties,
                body=Properties,
                body_optional=True,
                refusals=about,
                tag=tag,
            ),
            Route(
                "DELETE", path, "Remove a property.", self._drop_property, query=(key,), refusals=about, tag=tag
            ),
        ]

    # --- who may ------------------------------------------------------------------------------------------------

    def _administered(self, call: Call) -> TopicName:
        name = topic_of(call.path, self._domain)
        self._context.authoriser.check_admin(call.role, name)
        return name

    def _found(self, call: Call) -> TopicName:
        """By whoever may produce or consume."""
        name = topic_of(call.path, self._domain)
        self._context.authoriser.check_lookup(call.role, name)
        return name

    def _listed(self, call: Call) -> NamespaceName:
        name = namespace_of(call.path)
        self._context.authoriser.check_lookup(call.role, name)
        self._context.registry.namespaces.get(name)
        return name

    # --- which there are ----------------------------------------------------------------------------------------

    async def _list(self, call: Call) -> Response:
        namespace, only = self._listed(call), call.query["bundle"]
        bundle = BundleName.of_range(namespace, only) if only else None
        pages = self._context.registry.topic_names(namespace, domain=self._domain, after=after_of(call.query))
        return await names_answer(pages, call.query, lambda name: bundle is None or bundle.holds(name))

    async def _list_partitioned(self, call: Call) -> Response:
        return await names_answer(self._partitioned(self._listed(call), after_of(call.query)), call.query)

    async def _partitioned(
        self, namespace: NamespaceName, after: TopicName | None
    ) -> AsyncIterator[list[TopicName]]:
        async for record in self._context.registry.topics.of(namespace, self._domain, after=after):
            if record.partitions:
                yield [record.name]

    # --- life and death -----------------------------------------------------------------------------------------

    async def _create(self, call: Call) -> None:
        await self._context.registry.topics.create(
            self._administered(call), properties=self._given(call, call.body)
        )

    async def _create_partitioned(self, call: Call) -> None:
        name, (count, properties) = self._administered(call), _count(call)
        await self._context.registry.topics.create(
            name, partitions=count, properties=self._given(call, properties)
        )

    async def _grow(self, call: Call) -> None:
        name, (count, _) = self._administered(call), _count(call)
        registry = self._context.registry
        record = await registry.topics.get(name)
        if name.partition is not None or not record.partitions:
            raise RefusedError(409, f"{name} is not a partitioned topic")
        if count < record.partitions:
            raise RefusedError(422, f"{name} has {record.partitions} partitions and cannot have fewer")
        await registry.topics.grow(name, count)

    async def _delete(self, call: Call) -> None:
        name = self._administered(call)
        if name.partition is not None:
            raise NotAllowedError(f"{name} is a partition", hint="delete the topic as a whole")
        if (await self._context.registry.topics.get(name)).partitions:
            raise RefusedError(409, f"{name} is a partitioned topic", hint="DELETE its partitions")
        await delete_topic(self._context, name, force=call.query["force"])

    async def _delete_partitioned(self, call: Call) -> None:
        name = self._administered(call)
        if name.partition is not None or not (await self._context.registry.topics.get(name)).partitions:
            raise RefusedError(404, f"{name} is not a partitioned topic")
        await delete_topic(self._context, name, force=call.query["force"])

    async def _unload(self, call: Call) -> None:
        name = self._administered(call)
        if await self._context.on_partitions(call, name) is None:
            await self._context.unload(name)

    async def _partitions(self, call: Call) -> PartitionedTopicMetadata:
        name, registry = self._found(call), self._context.registry
        record = await registry.ensure_topic(name, create=call.query["checkAllowAutoCreation"])
        count = record.partitions if name.partition is None else 0
        return PartitionedTopicMetadata(count, dict(record.properties))

    # --- stats --------------------------------------------------------------------------------------------------

    async def _get_stats(self, call: Call) -> stats.TopicStatsBody:
        name = self._found(call)
        if call.query["getEarliestTimeInBacklog"]:  # only a topic that is loaded knows
            await self._context.load(name)
        return await self._stats_of(call, name)

    async def _get_partitioned_stats(self, call: Call) -> stats.PartitionedStatsBody:
        found = await self._context.on_topics(call, await self._parts(call), route=self._stats_route)
        parts = {str(name): one for name, one in found.items()}
        return partitioned_stats(parts, each=call.query["perPartition"])

    async def _get_internal(self, call: Call) -> stats.InternalStatsBody:
        return internal_stats(await self._context.load(self._found(call)))

    async def _get_partitioned_internal(self, call: Call) -> stats.PartitionedInternalStatsBody:
        found = await self._context.on_topics(call, await self._parts(call), route=self._internal_route)
        parts = {str(name): one for name, one in found.items()}
        return stats.PartitionedInternalStatsBody(PartitionedTopicMetadata(len(parts)), parts)

    async def _parts(self, call: Call) -> list[TopicName]:
        name = self._found(call)
        record = await self._context.registry.ensure_topic(name, create=False)
        if name.partition is not None or not record.partitions:
            raise RefusedError(404, f"{name} is not a partitioned topic")
        return await self._context.names(name)

    async def _stats_of(self, call: Call, name: TopicName) -> stats.TopicStatsBody:
        asked, context = call.query, self._context
        policies = await context.registry.look_policies(name)
        return topic_stats(
            await context.broker.stats(name),
            context.clock.wall_ms(),
            deduplication=name.persistent and bool(policies.deduplication),
            owner=self._context.urls.url("pulsar", "pulsar_tls"),
            wanted=StatsWanted(
                publishers=not asked["excludePublishers"],
                consumers=not asked["excludeConsumers"],
                backlog_size=asked["subscriptionBacklogSize"],
                earliest=asked["getEarliestTimeInBacklog"],
            ),
        )

    # --- properties ---------------------------------------------------------------------------------------------

    async def _get_properties(self, call: Call) -> Properties:
        return users_own((await self._context.registry.topics.get(self._found(call))).properties)

    async def _put_properties(self, call: Call) -> None:
        said = self._given(call, call.body)
        await self._context.registry.change_properties(
            self._administered(call), lambda now: bounded({**now, **said})
        )

    def _given(self, call: Call, properties: Properties | None) -> Properties:
        """What a role may say. The notes of a function are for superusers: its runner removes the subscriptions
        that they name, with a superuser's rights."""
        said, name = _given(properties), topic_of(call.path, self._domain)
        if name.local.startswith(PREFIX) and any(key.startswith((INPUT_NOTE, ID_NOTE)) for key in said):
            self._context.authoriser.check_superuser(call.role)
        return said

    async def _drop_property(self, call: Call) -> None:
        name, key = self._administered(call), call.query["key"]
        if key is None:
            raise RefusedError(412, "which property shall go?", hint="give its name as ?key=")
        given({key: ""})
        await self._context.registry.change_properties(
            name, lambda now: {known: value for known, value in now.items() if known != key}
        )


def _given(properties: Properties | None) -> dict[str, str]:
    """Properties as a user gives them. NotAllowedError for one that would make the topic a shadow topic, which
    would stay empty."""
    if _SHADOW_SOURCE in (properties or {}):
        raise NotAllowedError(
            "shadow topics are not supported",
            hint="subscribe to the source topic, which any number of readers may",
        )
    return given(properties)


def _count(call: Call) -> tuple[int, Properties | None]:
    """The number of partitions in the body, which comes in two forms."""
    body = call.body
    count, properties = (body, None) if isinstance(body, int) else (body.partitions, body.properties)
    if not 0 < count <= _MAX_PARTITIONS:
        raise RefusedError(406, f"a topic has 1 to {_MAX_PARTITIONS} partitions, not {count}")
    return count, properties


_TAG = "lookup"
_AUTHORITATIVE = Query("authoritative", bool, "whether another broker sent the client here", False)

_PULSAR = ("pulsar", "pulsar_tls")
_LISTENER = Query("listenerName", str, "the one of the owner's listeners to name: pulsar or pulsar_tls")


class Lookup:
    def __init__(self, context: AdminContext, domain: Domain) -> None:
        self._context = context
        self._domain = domain

    def routes(self) -> list[Route]:
        path = f"/lookup/v2/topic/{self._domain.value}/{{tenant}}/{{namespace}}/{{topic}}"
        return [
            Route(
                "GET",
                path,
                "Where a topic is served.",
                self._look,
                answer=LookupData,
                query=(_AUTHORITATIVE, _LISTENER),
                refusals=ABOUT_TOPIC,
                tag=_TAG,
            ),
            Route(
                "GET",
                f"{path}/bundle",
                "The bundle of a topic.",
                self._bundle,
                media=TEXT,
                refusals=ABOUT_TOPIC,
                tag=_TAG,
            ),
        ]

    async def _look(self, call: Call) -> LookupData:
        name = await self._known(call)
        listener = call.query.get("listenerName") or call.request.headers.get("x-pulsar-listenername")
        owner = await self._context.broker.owner(name, role=call.role)
        if not owner.here and owner.url("http", "https") and not call.query["authoritative"]:
            raise NotOwnerError(f"{name} is served elsewhere", listeners=owner.listeners)
        return self._data(owner, listener or "")

    async def _bundle(self, call: Call) -> Response:
        bundle = self._context.broker.bundles.bundle_of(await self._known(call))
        return Response(200, bundle.range.encode(), TEXT)

    async def _known(self, call: Call) -> TopicName:
        """A topic that is there, or that comes to be when a client connects."""
        name, registry = topic_of(call.path, self._domain), self._context.registry
        self._context.authoriser.check_lookup(call.role, name)
        registry.namespaces.get(name.namespace)
        creation = registry.policies(name.namespace).auto_topic_creation
        if creation and creation.allowed and name.partition is None:
            return name
        if await registry.topics.look(name) is None:
            raise TopicNotFoundError(f"there is no topic {name}")
        return name

    def _data(self, owner: Owner, listener: str) -> LookupData:
        """Of every listener; of those for this protocol the named one alone, if one is named."""
        of = self._context.urls.listeners if owner.here else owner.listeners
        if listener:
            known = sorted(name for name in _PULSAR if of.get(name))
            if listener not in known:
                raise NotAllowedError(
                    f"there is no listener named {listener[:80]!r}",
                    hint=f"leave the name out, or use one of these: {', '.join(known) or 'none is known'}",
                )
            of = {name: url for name, url in of.items() if name == listener or name not in _PULSAR}
        return LookupData(
            brokerUrl=of.get("pulsar"),
            brokerUrlTls=of.get("pulsar_tls"),
            httpUrl=of.get("http"),
            httpUrlTls=of.get("https"),
            nativeUrl=of.get("pulsar") or of.get("pulsar_tls"),
        )
