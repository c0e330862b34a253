"""Brokers, health and metrics."""

from weir import __version__
from weir.admin import metrics
from weir.admin.bodies import BrokerInfoBody, InstanceBody, OwnershipStatus, Properties
from weir.admin.context import AdminContext
from weir.admin.function_metrics import connector_families, function_families
from weir.admin.http import Response
from weir.admin.names import BAD_NAME, V2
from weir.admin.routing import TEXT, Call, RefusedError, Route
from weir.admin.stream_metrics import stream_families
from weir.broker.api import TopicStats
from weir.model.errors import MetaError
from weir.model.registry import STANDALONE, BrokerInfo
from weir.model.topics import check_entity_name

_BROKERS = f"{V2}/brokers"
_TAG = "brokers"
_HTTP = ("http", "https")
#: Topics whose stats are taken before everyone else gets a turn.
_AT_ONCE = 50


class Brokers:
    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._started = context.clock.monotonic()

    def routes(self) -> list[Route]:
        def text(path: str, summary: str, action: object, *, open_: bool = True) -> Route:
            return Route("GET", path, summary, action, media=TEXT, tag=_TAG, open=open_)  # type: ignore[arg-type]

        about = {404: "no such cluster or broker", **BAD_NAME}
        return [
            text(f"{_BROKERS}/version", "The version of the broker.", self._version),
            text(f"{_BROKERS}/health", "Whether it can do its work.", self._health, open_=False),
            text(f"{_BROKERS}/ready", "Whether it takes calls.", self._ready),
            text("/ready", "Whether it takes calls.", self._ready),
            text("/status.html", "Whether it takes calls; for load balancers.", self._ready),
            text("/metrics", "Metrics for Prometheus.", self._metrics),
            Route(
                "GET",
                "/admin/weir/v1/instance",
                "A random id of this start of the server.",
                self._instance,
                answer=InstanceBody,
                tag=_TAG,
                open=True,
            ),
            Route(
                "GET",
                f"{_BROKERS}/configuration/runtime",
                "Settings of the broker that clients ask for, by Pulsar's names.",
                self._configuration,
                answer=Properties,
                tag=_TAG,
            ),
            Route(
                "GET",
                f"{_BROKERS}/leaderBroker",
                "Who leads.",
                self._leader,
                answer=BrokerInfoBody,
                refusals={404: "nobody leads now"},
                tag=_TAG,
            ),
            Route("GET", _BROKERS, "List brokers.", self._list, answer=list[str], refusals=about, tag=_TAG),
            Route(
                "GET",
                f"{_BROKERS}/{{cluster}}/{{broker}}/ownedNamespaces",
                "The bundles that a broker has.",
                self._owned,
                answer=dict[str, OwnershipStatus],
                refusals=about,
                tag=_TAG,
            ),
            Route(
                "GET",
                f"{_BROKERS}/{{cluster}}",
                "List the brokers of a cluster.",
                self._list,
                answer=list[str],
                refusals=about,
                tag=_TAG,
            ),
        ]

    async def _version(self, call: Call) -> Response:
        return Response(200, __version__.encode(), TEXT)

    async def _health(self, call: Call) -> Response:
        self._context.authoriser.check_superuser(call.role)
        await self._context.probe()
        return Response(200, b"ok", TEXT)

    async def _ready(self, call: Call) -> Response:
        await self._context.probe()
        return Response(200, b"OK", TEXT)

    async def _instance(self, call: Call) -> InstanceBody:
        return InstanceBody(self._context.instance)

    async def _list(self, call: Call) -> list[str]:
        self._context.authoriser.check_superuser(call.role)
        self._context.registry.cluster(check_entity_name(call.path.get("cluster", STANDALONE), "cluster"))
        return [pulsar_id(broker) for broker in self._context.broker.brokers()]

    async def _configuration(self, call: Call) -> Properties:
        self._context.authoriser.check_superuser(call.role)
        return {"clusterName": STANDALONE, "transactionCoordinatorEnabled": "false"}

    async def _leader(self, call: Call) -> BrokerInfoBody:
        self._context.authoriser.check_superuser(call.role)
        context = self._context
        leader = "" if context.balance is None else context.balance.leader()
        if context.balance is None or leader == context.broker_id:
            url = context.urls.url(*_HTTP)
            return BrokerInfoBody(_authority(url) or context.broker_id, url)
        if not leader:
            raise RefusedError(404, "no broker leads now", hint="one is elected in a moment: try again")
        found = broker_named(context, leader)
        url = next((found.listeners[kind] for kind in _HTTP if found.listeners.get(kind)), "")
        return BrokerInfoBody(pulsar_id(found), url)

    async def _owned(self, call: Call) -> dict[str, OwnershipStatus]:
        self._context.authoriser.check_superuser(call.role)
        self._context.registry.cluster(check_entity_name(call.path["cluster"], "cluster"))
        owner = broker_named(self._context, call.path["broker"]).broker_id
        bundles = self._context.broker.bundles.all()
        return {str(info.name): OwnershipStatus() for info in bundles if info.owner == owner}

    async def _metrics(self, call: Call) -> Response:
        text = await self._rendered()
        return Response(200, text.encode(), metrics.CONTENT_TYPE)

    async def _rendered(self) -> str:
        topics = sorted(self._context.broker.loaded, key=lambda topic: str(topic.name))
        shown = topics[: self._context.settings.metrics_topics]
        found: list[TopicStats] = []
        for number, topic in enumerate(shown):
            found.append(topic.stats())
            if number % _AT_ONCE == _AT_ONCE - 1:
                await self._context.clock.sleep(0)
        process = {
            metrics.UP_SECONDS: self._context.clock.monotonic() - self._started,
            metrics.TOPICS: await self._context.registry.topics.count(),
            metrics.TOPICS_LOADED: len(topics),
            metrics.TOPICS_WITHOUT_SERIES: len(topics) - len(shown),
        }
        parts: list[str] = []
        families = [*self._context.gateways(), *await self._pipelines()]
        for part in metrics.render(found, process, families):
            parts.append(part)
            await self._context.clock.sleep(0)
        return "".join(parts)

    async def _pipelines(self) -> list[metrics.GatewayFamily]:
        """What runners have told of streams, functions and connectors."""
        found: list[metrics.GatewayFamily] = []
        streams, functions, connectors = (
            self._context.sql_streams,
            self._context.functions,
            self._context.connectors,
        )
        try:
            if streams is not None:
                found += stream_families(await streams.list(), runner=await streams.runner() is not None)
            if functions is not None:
                found += function_families(await functions.list(), runner=await functions.runner() is not None)
            if connectors is not None:
                found += connector_families(await connectors.list(), runner=await connectors.runner() is not None)
        except MetaError:  # all else is told without it
            pass
        return found


def broker_named(context: AdminContext, name: str) -> BrokerInfo:
    """The broker of this id; or, as Pulsar writes it, with this HTTP address. 404 if there is none."""
    for broker in context.broker.brokers():
        if name in (broker.broker_id, *(_authority(broker.listeners.get(kind, "")) for kind in _HTTP)):
            return broker
    raise RefusedError(404, f"there is no broker {name[:80]!r}", hint="GET /admin/v2/brokers lists them")


def pulsar_id(broker: BrokerInfo) -> str:
    """How Pulsar names a broker: by where its HTTP listener is. By Weir's name where it has none."""
    url = next((broker.listeners[kind] for kind in _HTTP if broker.listeners.get(kind)), "")
    return _authority(url) or broker.broker_id


def _authority(url: str) -> str:
    return url.partition("://")[2]
