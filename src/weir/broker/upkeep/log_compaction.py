"""Topics that compact themselves: when, how far, and what goes from the view as retention says."""

from weir.broker.api import CompactionStatus
from weir.broker.topic.topic import BrokerTopic
from weir.model.policies import LogCompaction, Retention
from weir.stream.retention import bytes_from

#: So much that is not compacted is worth a compaction, however large the topic's ledgers may grow.
_ENOUGH_BYTES = 16 * 1024 * 1024


def is_due(topic: BrokerTopic, now_ms: int) -> bool:
    """Whether a compaction shall begin: enough has come since the last one, or its tombstones were seen for long
    enough. A few messages on a quiet topic wait until they would have filled a ledger, or are as old as one
    may get: each compaction writes all that is live anew."""
    policy, view, stream = topic.policies.log_compaction or LogCompaction(), topic.view, topic.stream
    if not policy.cleanup.compacts or topic.compaction.status is CompactionStatus.RUNNING:
        return False
    expires_ms = view.compacted.tombstone_end_ms(policy.tombstone_ms)
    if expires_ms is not None and expires_ms <= now_ms:
        return True
    if topic.compaction.begun_at >= stream.end_offset or stream.end_offset <= view.horizon:
        return False
    dirty = bytes_from(stream.chain, view.horizon, stream.end_offset, stream.open_bytes)
    age_ms = now_ms - _oldest_ms(topic)
    if 0 <= policy.max_lag_ms <= age_ms:
        return True
    roll_bytes, roll_s = stream.roll_limits
    worth_it = dirty >= min(roll_bytes, _ENOUGH_BYTES) or age_ms >= roll_s * 1000
    return worth_it and dirty * 100 >= policy.dirty_percent * (dirty + view.size_bytes)


def _oldest_ms(topic: BrokerTopic) -> int:
    """No message that is not compacted, and could have been, is older."""
    span = topic.stream.chain.span_at(max(topic.view.horizon, topic.stream.start_offset))
    return max(0 if span is None else span.first_ms, topic.view.compacted.done_ms)


async def forget_expired(topic: BrokerTopic, retention: Retention, now_ms: int) -> None:
    """Compacted messages that are retained no longer."""
    view = topic.view
    start, horizon = view.start_offset, view.horizon
    point = start
    if retention.time_ms >= 0 and start < horizon:
        point = await view.offset_at(now_ms - retention.time_ms)
    if retention.size_bytes >= 0:
        point = max(point, _within(topic, retention.size_bytes))
    await view.forget_before(max(min(point, horizon), topic.start_offset if topic.start_offset > horizon else 0))


def _within(topic: BrokerTopic, limit_bytes: int) -> int:
    """The first offset from which on about so much is left; sizes count as spread evenly."""
    view, stream = topic.view, topic.stream
    left = limit_bytes - bytes_from(stream.chain, view.horizon, stream.end_offset, stream.open_bytes)
    if view.size_bytes <= left:
        return view.start_offset
    kept = (view.horizon - view.start_offset) * max(left, 0) // view.size_bytes
    return view.horizon - kept
