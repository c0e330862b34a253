"""Lookup over HTTP: where a topic is served."""

from weir.admin.bodies import LookupData
from weir.admin.context import AdminContext
from weir.admin.http import Response
from weir.admin.names import ABOUT_TOPIC, topic_of
from weir.admin.routing import TEXT, Call, Query, Route
from weir.broker.api import Owner
from weir.model.errors import NotAllowedError, NotOwnerError, TopicNotFoundError
from weir.model.topics import Domain, TopicName

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
