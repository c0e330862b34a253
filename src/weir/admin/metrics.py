"""Metrics in Prometheus' text format: tables of families, each with its name, kind, help and source."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from weir.broker.meters import BOUNDS_S
from weir.broker.stats import Latency, SubscriptionStats, TopicStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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
    value: Callable[[SubscriptionStats], float]


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
    TopicFamily("weir_topic_ledgers", "gauge", "Ledgers of the topic.", lambda t: t.ledgers),
    TopicFamily("weir_topic_end_offset", "gauge", "The offset after the last message.", lambda t: t.end_offset),
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
        "weir_subscription_backlog_messages", "gauge", "Messages not acknowledged yet.", lambda s: s.backlog
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


def render(topics: Sequence[TopicStats], process: Iterable[tuple[str, str, str, float]] = ()) -> str:
    """Everything, family by family; `process` are (name, kind, help, value) of the process as a whole."""
    lines: list[str] = []
    for name, kind, text, value in process:
        lines += [*_head(name, kind, text), f"{name} {value:g}"]
    labelled = [(_label(topic=topic.name), topic) for topic in topics]
    for family in TOPIC_FAMILIES:
        lines += _head(family.name, family.kind, family.help)
        lines += [f"{family.name}{{{label}}} {family.value(topic):.10g}" for label, topic in labelled]
    subscriptions = [
        (_label(topic=topic.name, subscription=subscription.name), subscription)
        for topic in topics
        for subscription in topic.subscriptions
    ]
    for of_subscription in SUBSCRIPTION_FAMILIES:
        name, value_of = of_subscription.name, of_subscription.value
        lines += _head(name, of_subscription.kind, of_subscription.help)
        lines += [f"{name}{{{label}}} {value_of(subscription):.10g}" for label, subscription in subscriptions]
    for latency in LATENCY_FAMILIES:
        lines += _head(latency.name, "histogram", latency.help)
        for label, topic in labelled:
            lines += _histogram(latency.name, label, latency.value(topic))
    return "\n".join(lines) + "\n"


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
