"""Metrics in Prometheus' text format: tables of families, each with its name, kind, help and source.

Functions and connectors as families of the metrics page, as their runners last told: every broker of a cluster
knows the same.

Streams that SQL has defined, as families of the metrics page: every broker of a cluster knows the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from weir.broker.api.definitions import Deployed, Described, DescribedConnector
from weir.broker.api.stats import BOUNDS_S, Latency, SubscriptionStats, TopicStats
from weir.model.definitions import (
    ConnectorProgress,
    ConnectorWanted,
    FunctionStats,
    FunctionWanted,
    StreamProgress,
    Wanted,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Topics whose histograms are written in one go.
_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class TopicFamily:
    """A value of each topic."""

    name: str
    kind: str
    help: str
    value: Callable[[TopicStats], float]


@dataclass(frozen=True, slots=True)
class SubscriptionFamily:
    """A value of each subscription."""

    name: str
    kind: str
    help: str
    #: None where there is nothing to say.
    value: Callable[[SubscriptionStats], float | None]


@dataclass(frozen=True, slots=True)
class LatencyFamily:
    """A histogram of each topic."""

    name: str
    help: str
    value: Callable[[TopicStats], Latency]


TOPIC_FAMILIES = (
    TopicFamily(
        "weir_topic_published_messages_total", "counter", "Messages stored.", lambda t: t.published.messages
    ),
    TopicFamily("weir_topic_published_bytes_total", "counter", "Bytes stored.", lambda t: t.published.bytes),
    TopicFamily(
        "weir_topic_publish_rate", "gauge", "Messages stored per second.", lambda t: t.published.messages_per_s
    ),
    TopicFamily(
        "weir_topic_delivered_messages_total", "counter", "Messages delivered.", lambda t: t.delivered.messages
    ),
    TopicFamily("weir_topic_delivered_bytes_total", "counter", "Bytes delivered.", lambda t: t.delivered.bytes),
    TopicFamily(
        "weir_topic_dispatch_rate", "gauge", "Messages delivered per second.", lambda t: t.delivered.messages_per_s
    ),
    TopicFamily("weir_topic_storage_bytes", "gauge", "Bytes in the topic's ledgers.", lambda t: t.storage_bytes),
    TopicFamily(
        "weir_topic_lake_bytes",
        "gauge",
        "Of these, bytes that are read from the lake, their ledgers being gone.",
        lambda t: 0 if t.lake is None else t.lake.bytes,
    ),
    TopicFamily("weir_topic_ledgers", "gauge", "Ledgers of the topic.", lambda t: t.ledgers),
    TopicFamily("weir_topic_end_offset", "gauge", "The offset after the last message.", lambda t: t.end_offset),
    TopicFamily(
        "weir_topic_lost_entries",
        "gauge",
        "Entries of the topic that are damaged in every copy, and left out by readers.",
        lambda t: t.lost_entries,
    ),
    TopicFamily(
        "weir_topic_unread_about_to_go",
        "gauge",
        "Messages that somebody has not read and that a policy is about to delete.",
        lambda t: t.unread_messages,
    ),
    TopicFamily("weir_topic_held_messages", "gauge", "Messages that wait for their moment.", lambda t: t.held),
    TopicFamily(
        "weir_topic_half_messages",
        "gauge",
        "Half messages that are neither committed nor rolled back.",
        lambda t: t.half.waiting,
    ),
    TopicFamily(
        "weir_topic_half_committed_total", "counter", "Half messages committed.", lambda t: t.half.committed
    ),
    TopicFamily(
        "weir_topic_half_rolled_back_total", "counter", "Half messages rolled back.", lambda t: t.half.rolled_back
    ),
    TopicFamily(
        "weir_topic_half_given_up_total",
        "counter",
        "Half messages rolled back because nothing was heard of them.",
        lambda t: t.half.given_up,
    ),
    TopicFamily(
        "weir_topic_half_checks_total",
        "counter",
        "Times that a producer was asked what became of a half message.",
        lambda t: t.half.checked,
    ),
    TopicFamily("weir_topic_producers", "gauge", "Connected producers.", lambda t: len(t.producers)),
    TopicFamily("weir_topic_subscriptions", "gauge", "Subscriptions.", lambda t: len(t.subscriptions)),
    TopicFamily(
        "weir_topic_duplicates_total", "counter", "Messages that were there already.", lambda t: t.duplicates
    ),
    TopicFamily(
        "weir_topic_dropped_total",
        "counter",
        "Messages of a non-persistent topic nobody took.",
        lambda t: t.dropped,
    ),
    TopicFamily("weir_topic_cache_hits_total", "counter", "Reads that memory served.", lambda t: t.cache_hits),
    TopicFamily(
        "weir_topic_cache_misses_total", "counter", "Reads that went to the ledgers.", lambda t: t.cache_misses
    ),
)

SUBSCRIPTION_FAMILIES = (
    SubscriptionFamily(
        "weir_subscription_backlog_messages",
        "gauge",
        "Messages not acknowledged yet.",
        lambda s: s.backlog if s.placed else None,
    ),
    SubscriptionFamily(
        "weir_subscription_position",
        "gauge",
        "The offset of the next message to acknowledge.",
        lambda s: s.position,
    ),
    SubscriptionFamily(
        "weir_subscription_backlog_bytes", "gauge", "About how many bytes these are.", lambda s: s.backlog_bytes
    ),
    SubscriptionFamily(
        "weir_subscription_oldest_unacked_seconds",
        "gauge",
        "Age of the oldest unacknowledged message.",
        lambda s: s.oldest_unacked_s,
    ),
    SubscriptionFamily(
        "weir_subscription_unacked_messages",
        "gauge",
        "Messages delivered and not acknowledged.",
        lambda s: s.unacked,
    ),
    SubscriptionFamily("weir_subscription_consumers", "gauge", "Connected consumers.", lambda s: len(s.consumers)),
    SubscriptionFamily(
        "weir_subscription_delivered_messages_total", "counter", "Messages delivered.", lambda s: s.flow.messages
    ),
    SubscriptionFamily(
        "weir_subscription_dispatch_rate",
        "gauge",
        "Messages delivered per second.",
        lambda s: s.flow.messages_per_s,
    ),
    SubscriptionFamily(
        "weir_subscription_redelivered_messages_total",
        "counter",
        "Messages delivered again.",
        lambda s: s.redelivered,
    ),
    SubscriptionFamily(
        "weir_subscription_expired_messages_total",
        "counter",
        "Messages that outlived their TTL.",
        lambda s: s.expired,
    ),
    SubscriptionFamily(
        "weir_subscription_filtered_messages_total",
        "counter",
        "Messages that its filter left out.",
        lambda s: s.filtered,
    ),
    SubscriptionFamily(
        "weir_subscription_query_batches_total",
        "counter",
        "Batches that a query has done.",
        lambda s: None if s.query is None else s.query.batch,
    ),
    SubscriptionFamily(
        "weir_subscription_query_batch_rows",
        "gauge",
        "Rows of a query's last batch.",
        lambda s: None if s.query is None else s.query.rows,
    ),
    SubscriptionFamily(
        "weir_subscription_query_rows_per_second",
        "gauge",
        "How fast a query's last batch was.",
        lambda s: None if s.query is None else s.query.rows_per_s,
    ),
    SubscriptionFamily(
        "weir_subscription_query_lost_total",
        "counter",
        "Messages that were trimmed before a query had read them.",
        lambda s: None if s.query is None else s.query.lost,
    ),
)

LATENCY_FAMILIES = (
    LatencyFamily(
        "weir_topic_publish_latency_seconds",
        "From a batch's arrival to its acknowledgement.",
        lambda t: t.publish_latency,
    ),
    LatencyFamily(
        "weir_topic_dispatch_latency_seconds",
        "From a batch's storage to its delivery.",
        lambda t: t.dispatch_latency,
    ),
)


@dataclass(frozen=True, slots=True)
class ProcessFamily:
    """A value of the broker as a whole."""

    name: str
    kind: str
    help: str


UP_SECONDS = ProcessFamily("weir_up_seconds", "gauge", "Since the broker started.")
TOPICS = ProcessFamily("weir_topics", "gauge", "Topics that exist.")
TOPICS_LOADED = ProcessFamily("weir_topics_loaded", "gauge", "Topics that this broker serves now.")
TOPICS_WITHOUT_SERIES = ProcessFamily(
    "weir_topics_without_series", "gauge", "Loaded topics beyond those that series are given for."
)
PROCESS_FAMILIES = (UP_SECONDS, TOPICS, TOPICS_LOADED, TOPICS_WITHOUT_SERIES)


@dataclass(frozen=True, slots=True)
class GatewayFamily:
    """What a gateway counts: values with their labels."""

    name: str
    kind: str
    help: str
    values: Sequence[tuple[Mapping[str, str], float]]


def render(
    topics: Sequence[TopicStats],
    process: Mapping[ProcessFamily, float] | None = None,
    gateways: Sequence[GatewayFamily] = (),
) -> Iterator[str]:
    """Everything, family by family, so that others get a turn between them."""
    for whole, value in (process or {}).items():
        yield _joined([*_head(whole.name, whole.kind, whole.help), f"{whole.name} {value:.10g}"])
    for counted in gateways:
        lines = [f"{counted.name}{{{_label(**labels)}}} {value:.10g}" for labels, value in counted.values]
        yield _joined([*_head(counted.name, counted.kind, counted.help), *lines])
    labelled = [(_label(topic=topic.name), topic) for topic in topics]
    for family in TOPIC_FAMILIES:
        lines = [f"{family.name}{{{label}}} {family.value(topic):.10g}" for label, topic in labelled]
        yield _joined([*_head(family.name, family.kind, family.help), *lines])
    subscriptions = [
        (_label(topic=topic.name, subscription=subscription.name), subscription)
        for topic in topics
        for subscription in topic.subscriptions
    ]
    for of in SUBSCRIPTION_FAMILIES:
        values = ((label, of.value(subscription)) for label, subscription in subscriptions)
        lines = [f"{of.name}{{{label}}} {value:.10g}" for label, value in values if value is not None]
        yield _joined([*_head(of.name, of.kind, of.help), *lines])
    for latency in LATENCY_FAMILIES:
        yield _joined(_head(latency.name, "histogram", latency.help))
        for start in range(0, len(labelled), _AT_ONCE):
            some = labelled[start : start + _AT_ONCE]
            yield _joined(
                [line for label, topic in some for line in _histogram(latency.name, label, latency.value(topic))]
            )


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _histogram(name: str, label: str, latency: Latency) -> list[str]:
    if not latency.counts:
        return []
    lines, below = [], 0
    for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), latency.counts, strict=True):
        below += count
        lines.append(f'{name}_bucket{{{label},le="{bound}"}} {below}')
    return [*lines, f"{name}_sum{{{label}}} {latency.total_s:.10g}", f"{name}_count{{{label}}} {below}"]


def _label(**labels: str) -> str:
    return ",".join(
        '{}="{}"'.format(key, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n"))
        for key, value in labels.items()
    )


#: Name, kind, help, and what it is of what was told.
_FUNCTION: Sequence[tuple[str, str, str, Callable[[FunctionStats], float]]] = (
    ("received_messages_total", "counter", "Messages that the function has taken.", lambda s: s.received),
    ("sent_messages_total", "counter", "Messages that it has sent.", lambda s: s.sent),
    ("failures_total", "counter", "Times that it failed at a message.", lambda s: s.failed),
    ("retries_total", "counter", "Times that a message was put back to be tried again.", lambda s: s.retried),
    ("dead_letters_total", "counter", "Messages that were given up.", lambda s: s.dead),
    ("state_keys", "gauge", "Keys that it has state of.", lambda s: s.state_keys),
    ("state_bytes", "gauge", "How large its state is.", lambda s: s.state_bytes),
    ("restarts_total", "counter", "Times that its worker was started again after it died.", lambda s: s.restarts),
    ("worker_failures", "gauge", "How often its worker died since it last worked.", lambda s: s.failures),
)
_CONNECTOR: Sequence[tuple[str, str, str, Callable[[ConnectorProgress], float]]] = (
    ("records_total", "counter", "Records that the connector has carried.", lambda p: p.records),
    ("records_per_second", "gauge", "How fast it carries them.", lambda p: p.records_per_second),
    ("dead_letters_total", "counter", "Records that could not be carried.", lambda p: p.dead_letters),
    ("restarts_total", "counter", "Times that it was opened again after a failure.", lambda p: p.restarts),
    ("failures", "gauge", "How often it failed since it last worked.", lambda p: p.failures),
    ("batch_seconds", "gauge", "How long its last batch took.", lambda p: p.batch_ms / 1000),
)
_QUANTILES: Sequence[tuple[str, Callable[[FunctionStats], float]]] = (
    ("0.5", lambda s: s.latency_p50_ms),
    ("0.99", lambda s: s.latency_p99_ms),
)


def function_families(functions: Sequence[Deployed], *, runner: bool) -> list[GatewayFamily]:
    """`runner`: whether some process runs them now."""
    said = [
        ({"function": str(one.function.name)}, one.function, one.stats or FunctionStats("", 0, ""))
        for one in functions
    ]
    latencies = [
        ({**labels, "quantile": quantile}, of(stats) / 1000)
        for labels, _, stats in said
        for quantile, of in _QUANTILES
    ]
    return [
        _family("weir_function_runner", "1 while a process runs the functions.", [({}, int(runner))]),
        _family(
            "weir_function_wanted",
            "1 for a function that shall run, 0 for one that is stopped.",
            [(labels, int(function.wanted is FunctionWanted.RUNNING)) for labels, function, _ in said],
        ),
        _family(
            "weir_function_running",
            "1 for a function that runs, as its worker says.",
            [(labels, int(runner and stats.state == "running")) for labels, _, stats in said],
        ),
        _family(
            "weir_function_instances",
            "Processes that call the function.",
            [(labels, stats.instances if runner else 0) for labels, _, stats in said],
        ),
        _family(
            "weir_function_lag_messages",
            "Messages that wait for the function, while a process runs the functions.",
            [(labels, stats.lag) for labels, _, stats in said if runner],
        ),
        *(
            GatewayFamily(f"weir_function_{name}", kind, text, [(labels, of(stats)) for labels, _, stats in said])
            for name, kind, text, of in _FUNCTION
        ),
        _family(
            "weir_function_latency_seconds",
            "How long a message takes from being read to the commit, by quantile; a micro-batch on Spark.",
            latencies,
        ),
    ]


def connector_families(connectors: Sequence[DescribedConnector], *, runner: bool) -> list[GatewayFamily]:
    """`runner`: whether some process runs them now."""
    said = [
        ({"connector": str(one.connector.name)}, one.connector, one.progress or ConnectorProgress("", ""))
        for one in connectors
    ]
    return [
        _family("weir_connector_runner", "1 while a process runs the connectors.", [({}, int(runner))]),
        _family(
            "weir_connector_wanted",
            "1 for a connector that shall run, 0 for one that is paused or stopped.",
            [(labels, int(connector.wanted is ConnectorWanted.RUNNING)) for labels, connector, _ in said],
        ),
        _family(
            "weir_connector_running",
            "1 for a connector that runs, as its runner says.",
            [(labels, int(runner and progress.state == "running")) for labels, _, progress in said],
        ),
        _family(
            "weir_connector_lag_messages",
            "Messages that wait for the connector, where it knows, while a process runs the connectors.",
            [(labels, progress.lag) for labels, _, progress in said if runner and progress.lag >= 0],
        ),
        *(
            GatewayFamily(f"weir_connector_{name}", kind, text, [(labels, of(told)) for labels, _, told in said])
            for name, kind, text, of in _CONNECTOR
        ),
    ]


def _family(name: str, text: str, values: Sequence[tuple[Mapping[str, str], float]]) -> GatewayFamily:
    return GatewayFamily(name, "gauge", text, values)


_NOTHING_SAID = StreamProgress("", "")


def stream_families(streams: Sequence[Described], *, runner: bool) -> list[GatewayFamily]:
    """`runner`: whether some process runs them now."""
    said = [({"stream": str(one.stream.name)}, one, one.progress or _NOTHING_SAID) for one in streams]
    return [
        GatewayFamily("weir_stream_runner", "gauge", "1 while a process runs the streams.", [({}, int(runner))]),
        GatewayFamily(
            "weir_stream_wanted",
            "gauge",
            "1 for a stream that shall run, 0 for one that is paused.",
            [(labels, int(one.stream.wanted is Wanted.RUNNING)) for labels, one, _ in said],
        ),
        GatewayFamily(
            "weir_stream_running",
            "gauge",
            "1 for a stream that runs, as its runner says.",
            [(labels, int(runner and progress.state == "running")) for labels, _, progress in said],
        ),
        GatewayFamily(
            "weir_stream_lag_messages",
            "gauge",
            "Messages that wait for the stream, while a process runs the streams.",
            [(labels, progress.lag) for labels, _, progress in said if runner],
        ),
        GatewayFamily(
            "weir_stream_failures",
            "gauge",
            "How often the stream died since it last worked.",
            [(labels, progress.failures) for labels, _, progress in said],
        ),
        GatewayFamily(
            "weir_stream_rows_per_second",
            "gauge",
            "How fast the stream's last batch was.",
            [(labels, progress.rows_per_second) for labels, _, progress in said],
        ),
    ]
