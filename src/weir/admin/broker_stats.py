"""What one broker does, as Pulsar's tools ask for it: its load report, its topics, and its rates by namespace.

Each broker answers for itself; a tool asks those that `GET /admin/v2/brokers` names.
"""

from collections.abc import AsyncIterator

from msgspec import Struct, field

from weir import __version__
from weir.admin import bodies_stats as b
from weir.admin.context import AdminContext
from weir.admin.names import V2
from weir.admin.routing import Call, Route
from weir.admin.stats_map import topic_stats
from weir.broker.api import TopicStats
from weir.model.topics import TopicName

_STATS = f"{V2}/broker-stats"
_TAG = "broker-stats"
#: Topics whose stats are taken before everyone else gets a turn.
_AT_ONCE = 50


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
                "GET", f"{_STATS}/load-report", "A broker's load.", self._load_report, answer=LoadReport, tag=_TAG
            ),
            Route(
                "GET",
                f"{_STATS}/topics",
                "The stats of a broker's topics, by namespace, bundle and domain.",
                self._topics,
                answer=dict[str, dict[str, dict[str, dict[str, b.TopicStatsBody]]]],
                tag=_TAG,
            ),
            Route(
                "GET",
                f"{_STATS}/metrics",
                "A broker's rates, by namespace.",
                self._metrics,
                answer=list[MetricsBody],
                tag=_TAG,
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
