"""Statistics of a topic, its producers and its subscriptions, as immutable values."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from weir.broker.api.consumers import SubscriptionType
from weir.broker.api.stats import (
    ConsumerStats,
    CursorStats,
    Flow,
    InternalStats,
    LakeStats,
    Latency,
    LedgerStats,
    LostEntries,
    ProducerStats,
    QueryProgress,
    SubscriptionStats,
    TopicStats,
)
from weir.broker.context import GroupAssignments
from weir.broker.publish.producers import BrokerProducer, Producers
from weir.broker.publish.publisher import Publisher
from weir.broker.rates import Meter
from weir.broker.subscriptions.consumer import BrokerConsumer
from weir.broker.subscriptions.subscription import Subscription
from weir.broker.topics.topic_subscriptions import Subscriptions
from weir.model.messages import HalfCounts
from weir.model.stream import Span
from weir.model.topics import TopicName
from weir.stream.cursor import Cursor
from weir.stream.log import Stream
from weir.stream.retention import bytes_from

_NOWHERE = -1


class AnySubscription(Protocol):
    """The attributes that all kinds of subscriptions have for statistics."""

    name: str
    meter: Meter
    redelivered: int

    @property
    def filtered(self) -> int: ...

    @property
    def type(self) -> SubscriptionType | None: ...

    @property
    def durable(self) -> bool: ...

    @property
    def cursor(self) -> Cursor: ...

    @property
    def backlog(self) -> int: ...

    @property
    def consumers(self) -> Collection[BrokerConsumer]: ...

    @property
    def properties(self) -> Mapping[str, str]: ...


def flow_of(*meters: Meter) -> Flow:
    """Sum of the meters."""
    rates = [meter.rates() for meter in meters]
    return Flow(
        sum(meter.messages for meter in meters),
        sum(meter.bytes for meter in meters),
        sum(rate[0] for rate in rates),
        sum(rate[1] for rate in rates),
    )


def producer_stats(producer: BrokerProducer) -> ProducerStats:
    request = producer.request
    flow = flow_of(producer.meter)
    return ProducerStats(
        producer.name,
        request.address,
        request.access,
        flow,
        producer.connected_ms,
        request.properties,
        request.client_version,
    )


def consumer_stats(consumer: BrokerConsumer) -> ConsumerStats:
    return ConsumerStats(
        name=consumer.name,
        address=consumer.request.address,
        flow=flow_of(consumer.meter),
        unacked=consumer.unacked,
        credit=max(0, consumer.demand),
        redelivered=consumer.redelivered,
        priority=consumer.priority,
        active=consumer.active,
        blocked=False,
        connected_ms=consumer.connected_ms,
        properties=consumer.request.properties,
        client_version=consumer.request.client_version,
    )


def unplaced(group: str, members: Sequence[ConsumerStats]) -> SubscriptionStats:
    """A consumer group without a committed offset: its first commit creates the subscription."""
    return SubscriptionStats(
        name=group,
        type=None,
        durable=True,
        backlog=0,
        backlog_bytes=0,
        oldest_unacked_s=0.0,
        unacked=0,
        mark_delete=_NOWHERE,
        holes=0,
        read_at=_NOWHERE,
        flow=Flow(),
        redelivered=0,
        expired=0,
        consumers=tuple(members),
        placed=False,
    )


def subscription_stats(
    subscription: AnySubscription,
    read_at: int,
    backlog_bytes: int,
    *,
    oldest_s: float = 0.0,
    unacked: int = 0,
    expired: int = 0,
    members: Sequence[ConsumerStats] = (),
    query: QueryProgress | None = None,
) -> SubscriptionStats:
    """`members`: members of the consumer group of this name, in addition to connected consumers."""
    consumers = (*(consumer_stats(consumer) for consumer in subscription.consumers), *members)
    return SubscriptionStats(
        name=subscription.name,
        type=subscription.type,
        durable=subscription.durable,
        backlog=subscription.backlog,
        backlog_bytes=backlog_bytes,
        oldest_unacked_s=oldest_s,
        unacked=unacked,
        mark_delete=subscription.cursor.mark_delete,
        holes=subscription.cursor.holes,
        read_at=read_at,
        flow=flow_of(subscription.meter),
        redelivered=subscription.redelivered + sum(c.redelivered for c in consumers),
        expired=expired,
        filtered=subscription.filtered,
        consumers=consumers,
        properties=subscription.properties,
        query=query,
    )


def topic_stats(
    name: TopicName,
    stream: Stream,
    publisher: Publisher,
    producers: Producers,
    subscriptions: Subscriptions,
    *,
    reads: Meter,
    members: GroupAssignments,
    held: int,
    half: HalfCounts,
    lake: LakeStats | None,
    now_ms: int,
) -> TopicStats:
    hits, misses = stream.tail_reads
    there = subscriptions.by_name.values()
    return TopicStats(
        name=str(name),
        published=flow_of(publisher.meter),
        delivered=_delivered(subscriptions, reads),
        storage_bytes=stream.size_bytes,
        start_offset=stream.start_offset,
        end_offset=stream.end_offset,
        ledgers=len(stream.chain.spans),
        lost=tuple(LostEntries(ledger_id, *run) for ledger_id, run in stream.lost),
        unread=subscriptions.unread,
        unreadable=tuple(stream.unreadable),
        terminated=stream.chain.terminated_at is not None,
        duplicates=publisher.duplicates,
        cache_hits=hits,
        cache_misses=misses,
        publish_latency=Latency(*publisher.latency.snapshot()),
        dispatch_latency=Latency(*subscriptions.latency.snapshot()),
        producers=tuple(producer_stats(producer) for producer in producers.all),
        subscriptions=(
            *(_subscription_stats(stream, s, members.of(name, s.name), now_ms) for s in there),
            *(
                unplaced(group, who)
                for group, who in members.on(name).items()
                if group not in subscriptions.by_name
            ),
        ),
        epoch=producers.epoch,
        held=held,
        half=half,
        lake=lake,
    )


def _delivered(subscriptions: Subscriptions, reads: Meter) -> Flow:
    """Deliveries to all subscriptions and to readers by offset, such as Kafka clients. Never decreases."""
    now, former = flow_of(reads, *(s.meter for s in subscriptions.by_name.values())), subscriptions.former
    return replace(now, messages=now.messages + former.messages, bytes=now.bytes + former.bytes)


def _subscription_stats(
    stream: Stream, subscription: Subscription, members: Sequence[ConsumerStats], now_ms: int
) -> SubscriptionStats:
    oldest = subscription.oldest if subscription.backlog else None
    return subscription_stats(
        subscription,
        subscription.read_at,
        backlog_bytes(stream, subscription),
        oldest_s=0.0 if oldest is None else max(0.0, (now_ms - oldest[1]) / 1000),
        unacked=subscription.unacked,
        expired=subscription.expired,
        members=members,
        query=subscription.query,
    )


def backlog_bytes(stream: Stream, subscription: Subscription) -> int:
    """Approximate size of the log from the first unacknowledged message on."""
    return bytes_from(stream.chain, subscription.cursor.mark_delete + 1, stream.end_offset, stream.open_bytes)


def internal_stats(stream: Stream, publisher: Publisher, subscriptions: Subscriptions) -> InternalStats:
    """The ledgers of a topic, and the cursors of its durable subscriptions."""
    spans = stream.chain.spans
    return InternalStats(
        published=publisher.meter.messages,
        size_bytes=stream.size_bytes,
        open_ledger=bool(spans) and not spans[-1].closed,
        ledgers=tuple(_ledger(stream, span) for span in spans),
        cursors={
            name: CursorStats(
                subscription.cursor.mark_delete,
                subscription.read_at,
                subscription.backlog,
                subscription.cursor.holes,
                bool(subscription.consumers),
            )
            for name, subscription in subscriptions.by_name.items()
            if subscription.durable
        },
    )


def _ledger(stream: Stream, span: Span) -> LedgerStats:
    if span.end_offset is None:
        messages, size, closed_ms = stream.end_offset - span.first_offset, stream.open_bytes, 0
    else:
        messages, size, closed_ms = span.end_offset - span.first_offset, span.size_bytes, span.last_ms
    return LedgerStats(int(span.ledger_id), messages, size, span.first_ms, closed_ms, span.in_lake)
