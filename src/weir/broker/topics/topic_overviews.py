"""Overviews of unloaded topics: a broker writes one to the metadata when it unloads a topic.

Lists of topics, subscriptions and queues read them, so they load no topic. An overview names the version of the
topic's ledger chain and is valid for that version only: a broker that loads the topic writes the chain first.
"""

import logging
from dataclasses import replace

from weir.broker.api.stats import Flow, LakeStats, Latency, LostEntries, SubscriptionStats, TopicStats
from weir.broker.topics.topic import BrokerTopic, stream_name
from weir.broker.topics.topic_stats import backlog_bytes
from weir.meta import keys
from weir.model.errors import WeirError, WireError
from weir.model.stream import Chain
from weir.model.topics import SubscriptionOverview, TopicName, TopicOverview
from weir.stream.context import StreamContext
from weir.wire.registry import decode_overview, encode_overview
from weir.wire.stream import decode_chain

log = logging.getLogger(__name__)

#: Limit of an overview. Lists load a topic that exceeds it.
_MAX_BYTES = 256 * 1024
_NOTHING = TopicOverview(0, 0, 0, 0, 0, terminated=False)


class Overviews:
    def __init__(self, streams: StreamContext) -> None:
        self._meta = streams.meta
        self._losses = streams.ledgers.context.losses

    async def note(self, topic: BrokerTopic) -> None:
        """Store the overview of a topic that was just closed. Without one, lists load the topic."""
        try:
            value = encode_overview(_overview_of(topic))
            if len(value) <= _MAX_BYTES:
                await self._meta.put(keys.topic_overview(stream_name(topic.name)), value)
        except WeirError as failed:
            log.info("%s unloaded without an overview (lists will load the topic): %s", topic.name, failed)

    async def look(self, name: TopicName) -> TopicStats | None:
        """Stats of a persistent topic that no broker has loaded; None if a broker may have loaded it."""
        stream = stream_name(name)
        chain = await self._meta.get(keys.stream(stream))
        if chain is None:  # the topic never stored a message
            return self._stats(name, _NOTHING, Chain())
        found = await self._meta.get(keys.topic_overview(stream))
        if found is None:
            return None
        try:
            overview, spans = decode_overview(found.value), decode_chain(chain.value)
        except WireError as bad:
            log.warning("overview of %s ignored: %s", name, bad)
            return None
        if overview.version != chain.version or spans.doomed is not None:
            return None
        return self._stats(name, overview, spans)

    def _stats(self, name: TopicName, overview: TopicOverview, chain: Chain) -> TopicStats:
        lost = tuple(
            LostEntries(span.ledger_id, *run) for span in chain.spans for run in self._losses.of(span.ledger_id)
        )
        return replace(_stats_of(name, overview), lost=lost, lake=_lake_stats(chain))

    async def forget(self, name: TopicName) -> None:
        """Delete the overview, after the deletion of the topic."""
        await self._meta.delete(keys.topic_overview(stream_name(name)))


def _overview_of(topic: BrokerTopic) -> TopicOverview:
    stream = topic.stream
    return TopicOverview(
        stream.chain_version,
        stream.start_offset,
        stream.end_offset,
        stream.size_bytes,
        len(stream.chain.spans),
        topic.terminated,
        tuple(
            SubscriptionOverview(
                one.name,
                one.cursor.mark_delete,
                one.backlog,
                backlog_bytes(stream, one),
                one.cursor.holes,
                dict(one.properties),
            )
            for one in topic.subscriptions.values()
            if one.durable
        ),
    )


def _lake_stats(chain: Chain) -> LakeStats | None:
    there = [span for span in chain.spans if span.in_lake]
    if not there:
        return None
    end = max(span.end_offset or 0 for span in there)
    return LakeStats(len(there), sum(span.size_bytes for span in there), end)


def _stats_of(name: TopicName, overview: TopicOverview) -> TopicStats:
    return TopicStats(
        name=str(name),
        published=Flow(),
        delivered=Flow(),
        storage_bytes=overview.storage_bytes,
        start_offset=overview.start_offset,
        end_offset=overview.end_offset,
        ledgers=overview.ledgers,
        terminated=overview.terminated,
        duplicates=0,
        cache_hits=0,
        cache_misses=0,
        publish_latency=Latency(),
        dispatch_latency=Latency(),
        subscriptions=tuple(map(_subscription_stats, overview.subscriptions)),
    )


def _subscription_stats(one: SubscriptionOverview) -> SubscriptionStats:
    return SubscriptionStats(
        name=one.name,
        type=None,
        durable=True,
        backlog=one.backlog,
        backlog_bytes=one.backlog_bytes,
        oldest_unacked_s=0.0,
        unacked=0,
        mark_delete=one.mark_delete,
        holes=one.holes,
        read_at=one.mark_delete + 1,
        flow=Flow(),
        redelivered=0,
        expired=0,
        properties=one.properties,
    )
