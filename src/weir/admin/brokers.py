"""Brokers, health and metrics.

What one broker does, as Pulsar's tools ask for it: its load report, its topics, and its rates by namespace.

Each broker answers for itself; a tool asks those that `GET /admin/v2/brokers` names.
"""

from collections.abc import AsyncIterator

from msgspec import Struct, field

from weir import __version__
from weir.admin import metrics
from weir.admin import topic_stats as b
from weir.admin.context import AdminContext
from weir.admin.metrics import connector_families, function_families, stream_families
from weir.admin.names import BAD_NAME, V2, BrokerInfoBody, InstanceBody, OwnershipStatus, Properties
from weir.admin.topic_stats import topic_stats
from weir.broker.api.stats import TopicStats
from weir.model.errors import MetaError
from weir.model.registry import STANDALONE, BrokerInfo
from weir.model.topics import TopicName, check_entity_name
from weir.rest.http import Response
from weir.rest.routes import TEXT, Call, RefusedError, Route

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


_STATS = f"{V2}/broker-stats"
_BROKER_STATS_TAG = "broker-stats"


class ResourceUsage(Struct):
    usage: float = 0.0
    limit: float = 0.0


class BundleStatsBody(Struct):
    """Per second, and how many there are."""

    msgRateIn: float = 0.0
    msgThroughputIn: float = 0.0
    msgRateOut: float = 0.0
    msgThroughputOut: float = 0.0
    consumerCount: int = 0
    producerCount: int = 0
    topics: int = 0
    cacheSize: int = 0

    def add(self, stats: TopicStats) -> None:
        self.msgRateIn += stats.published.messages_per_s
        self.msgThroughputIn += stats.published.bytes_per_s
        self.msgRateOut += stats.delivered.messages_per_s
        self.msgThroughputOut += stats.delivered.bytes_per_s
        self.consumerCount += sum(len(subscription.consumers) for subscription in stats.subscriptions)
        self.producerCount += len(stats.producers)
        self.topics += 1


class LoadReport(Struct):
    """Pulsar's `LocalBrokerData`. `cpu` is of the one core that the broker's loop can use, in percent, as `memory`
    is of what it may have; limits of bandwidth are not known to a broker."""

    webServiceUrl: str | None
    webServiceUrlTls: str | None
    pulsarServiceUrl: str | None
    pulsarServiceUrlTls: str | None
    cpu: ResourceUsage
    memory: ResourceUsage
    directMemory: ResourceUsage
    bandwidthIn: ResourceUsage
    bandwidthOut: ResourceUsage
    msgThroughputIn: float
    msgThroughputOut: float
    msgRateIn: float
    msgRateOut: float
    lastUpdate: int
    lastStats: dict[str, BundleStatsBody]
    numTopics: int
    numBundles: int
    numConsumers: int
    numProducers: int
    bundles: list[str]
    brokerVersionString: str
    persistentTopicsEnabled: bool = True
    nonPersistentTopicsEnabled: bool = True
    lastBundleGains: list[str] = field(default_factory=list)
    lastBundleLosses: list[str] = field(default_factory=list)
    protocols: dict[str, str] = field(default_factory=dict)
    loadReportType: str = "LocalBrokerData"


class MetricsBody(Struct):
    metrics: dict[str, float]
    dimensions: dict[str, str]


class BrokerStats:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                f"{_STATS}/load-report",
                "A broker's load.",
                self._load_report,
                answer=LoadReport,
                tag=_BROKER_STATS_TAG,
            ),
            Route(
                "GET",
                f"{_STATS}/topics",
                "The stats of a broker's topics, by namespace, bundle and domain.",
                self._topics,
                answer=dict[str, dict[str, dict[str, dict[str, b.TopicStatsBody]]]],
                tag=_BROKER_STATS_TAG,
            ),
            Route(
                "GET",
                f"{_STATS}/metrics",
                "A broker's rates, by namespace.",
                self._metrics,
                answer=list[MetricsBody],
                tag=_BROKER_STATS_TAG,
            ),
        ]

    async def _stats(self) -> AsyncIterator[tuple[TopicName, TopicStats]]:
        """Of every topic that is loaded, with turns for others in between."""
        for number, topic in enumerate(self._context.broker.loaded):
            yield topic.name, topic.stats()
            if number % _AT_ONCE == _AT_ONCE - 1:
                await self._context.clock.sleep(0)

    async def _load_report(self, call: Call) -> LoadReport:
        context = self._context
        context.authoriser.check_superuser(call.role)
        bundles = context.broker.bundles
        held = sorted(str(info.name) for info in bundles.all() if info.owner == context.broker_id)
        stats: dict[str, BundleStatsBody] = {}
        total = BundleStatsBody()
        async for name, each in self._stats():
            stats.setdefault(str(bundles.bundle_of(name)), BundleStatsBody()).add(each)
            total.add(each)
        load = await context.load_of(context.broker_id)
        of = context.urls.listeners
        return LoadReport(
            of.get("http"),
            of.get("https"),
            of.get("pulsar"),
            of.get("pulsar_tls"),
            ResourceUsage(0.0 if load is None else load.cpu * 100, 100.0),
            ResourceUsage(0.0 if load is None else load.memory * 100, 100.0),
            ResourceUsage(),
            ResourceUsage(total.msgThroughputIn),
            ResourceUsage(total.msgThroughputOut),
            total.msgThroughputIn,
            total.msgThroughputOut,
            total.msgRateIn,
            total.msgRateOut,
            context.clock.wall_ms(),
            stats,
            total.topics,
            len(held),
            total.consumerCount,
            total.producerCount,
            held,
            __version__,
        )

    async def _topics(self, call: Call) -> dict[str, dict[str, dict[str, dict[str, b.TopicStatsBody]]]]:
        """Of as many topics as metrics have series."""
        context = self._context
        context.authoriser.check_superuser(call.role)
        found: dict[str, dict[str, dict[str, dict[str, b.TopicStatsBody]]]] = {}
        taken = 0
        async for name, stats in self._stats():
            of_namespace = found.setdefault(str(name.namespace), {})
            of_bundle = of_namespace.setdefault(context.broker.bundles.bundle_of(name).range, {})
            body = topic_stats(stats, context.clock.wall_ms())
            of_bundle.setdefault(name.domain.value, {})[str(name)] = body
            taken += 1
            if taken >= context.settings.metrics_topics:
                break
        return found

    async def _metrics(self, call: Call) -> list[MetricsBody]:
        self._context.authoriser.check_superuser(call.role)
        sums: dict[str, BundleStatsBody] = {}
        async for name, stats in self._stats():
            sums.setdefault(str(name.namespace), BundleStatsBody()).add(stats)
        return [
            MetricsBody(
                {
                    "brk_in_rate": total.msgRateIn,
                    "brk_in_tp_rate": total.msgThroughputIn,
                    "brk_out_rate": total.msgRateOut,
                    "brk_out_tp_rate": total.msgThroughputOut,
                    "brk_no_of_topics": total.topics,
                    "brk_no_of_producers": total.producerCount,
                    "brk_no_of_consumers": total.consumerCount,
                },
                {"metric": "", "namespace": namespace},
            )
            for namespace, total in sorted(sums.items())
        ]
