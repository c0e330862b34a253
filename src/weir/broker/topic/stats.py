"""The stats of a persistent topic, from its live parts."""

from collections.abc import Sequence
from dataclasses import replace

from weir.broker.api import (
    ConsumerStats,
    CursorStats,
    Flow,
    InternalStats,
    LakeStats,
    Latency,
    LedgerStats,
    LostEntries,
    SubscriptionStats,
    TopicStats,
)
from weir.broker.dispatch.subscription import Subscription
from weir.broker.groups.assigned import GroupMembers
from weir.broker.publish.producers import Producers
from weir.broker.publish.publishing import Publisher
from weir.broker.topic.meters import Meter
from weir.broker.topic.stats_of import flow_of, producer_stats, subscription_stats, unplaced
from weir.broker.topic.subscriptions import Subscriptions
from weir.model.half import HalfCounts
from weir.model.stream import Span
from weir.model.topics import TopicName
from weir.stream.log import Stream
from weir.stream.retention import bytes_from


def topic_stats(
    name: TopicName,
    stream: Stream,
    publisher: Publisher,
    producers: Producers,
    subscriptions: Subscriptions,
    *,
    reads: Meter,
    members: GroupMembers,
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
    """To all subscriptions, and to those who read by offset, as Kafka's clients do. It never falls."""
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
    """About how many bytes lie from the first unacknowledged message on."""
    return bytes_from(stream.chain, subscription.cursor.mark_delete + 1, stream.end_offset, stream.open_bytes)


def internal_stats(stream: Stream, publisher: Publisher, subscriptions: Subscriptions) -> InternalStats:
    """The ledgers behind a topic, and the cursors of its durable subscriptions."""
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
