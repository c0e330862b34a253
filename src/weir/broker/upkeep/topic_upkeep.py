"""Upkeep of one topic: expiry, backlog quota, retention, compaction, unused subscriptions and idle producers.

Warns of unread messages that a policy deletes soon: once in the log, and in the topic's stats while this is so.
"""

import logging
from datetime import UTC, datetime

from weir.broker.api.stats import CompactionStatus, UnreadWarning
from weir.broker.subscriptions.subscription import Subscription
from weir.broker.topics.topic import BrokerTopic
from weir.broker.topics.topic_stats import backlog_bytes
from weir.model.errors import ProducersHeldError, QuotaExceededError, ReadFailedError
from weir.model.policies import BacklogAction, BacklogQuota, LogCompaction, Policies, Retention
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.stream.retention import bytes_from, offset_keeping, trim_point

#: Uncompacted bytes that justify a compaction, even if the topic's ledgers may become larger.
_ENOUGH_BYTES = 16 * 1024 * 1024


def is_due(topic: BrokerTopic, now_ms: int) -> bool:
    """Whether to start a compaction: enough new messages since the last one, or tombstones older than their
    retention. A few messages on a quiet topic wait until their size or age reaches the limit of a ledger, because
    each compaction rewrites all live messages."""
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
    """Lower bound of the time of all messages that a compaction could process."""
    span = topic.stream.chain.span_at(max(topic.view.horizon, topic.stream.start_offset))
    return max(0 if span is None else span.first_ms, topic.view.compacted.done_ms)


async def forget_expired(topic: BrokerTopic, retention: Retention, now_ms: int) -> None:
    """Delete compacted messages beyond the retention."""
    view = topic.view
    start, horizon = view.start_offset, view.horizon
    point = start
    if retention.time_ms >= 0 and start < horizon:
        point = await view.offset_at(now_ms - retention.time_ms)
    if retention.size_bytes >= 0:
        point = max(point, _within(topic, retention.size_bytes))
    await view.forget_before(max(min(point, horizon), topic.start_offset if topic.start_offset > horizon else 0))


def _within(topic: BrokerTopic, limit_bytes: int) -> int:
    """The first offset that leaves about `limit_bytes` behind it; assumes messages of equal size."""
    view, stream = topic.view, topic.stream
    left = limit_bytes - bytes_from(stream.chain, view.horizon, stream.end_offset, stream.open_bytes)
    if view.size_bytes <= left:
        return view.start_offset
    kept = (view.horizon - view.start_offset) * max(left, 0) // view.size_bytes
    return view.horizon - kept


log = logging.getLogger(__name__)

#: Warn when this fraction (1/N) of a policy's time is left, and at least this long before its end.
_LEAD_PART = 5
_LEAD_MS = 60_000


def warn_of_unread(topic: BrokerTopic, now_ms: int) -> None:
    """Evaluate the current policies: log new warnings, and set all of them in the topic's stats."""
    found = tuple(_found(topic, topic.policies, now_ms))
    known = {(warning.subscription, warning.policy) for warning in topic.unread_warnings}
    topic.note_unread(found)
    for warning in found:
        if (warning.subscription, warning.policy) not in known:
            log.warning("%s: %s", topic.name, warning.what)


def _found(topic: BrokerTopic, policies: Policies, now_ms: int) -> list[UnreadWarning]:
    warnings = [
        *_of_ttl(topic, policies, now_ms),
        *_of_quota(topic, policies.backlog_quota or BacklogQuota(), now_ms),
    ]
    warnings += _of_expiry(topic, policies, now_ms)
    if (policies.log_compaction or LogCompaction()).cleanup.deletes:
        warnings += _of_retention(topic, topic.tiering.retention, now_ms)
    return [*warnings, *_of_compaction(topic, now_ms)]


def _lead(time_ms: int) -> int:
    return max(_LEAD_MS, time_ms // _LEAD_PART)


def _of_ttl(topic: BrokerTopic, policies: Policies, now_ms: int) -> list[UnreadWarning]:
    ttl_ms = (policies.message_ttl_s or 0) * 1000
    if ttl_ms <= 0:
        return []
    found = []
    for subscription in topic.subscriptions.values():
        oldest = subscription.oldest if subscription.durable and subscription.retains else None
        if oldest is None or not subscription.backlog or oldest[1] + ttl_ms - now_ms > _lead(ttl_ms):
            continue
        at_ms = oldest[1] + ttl_ms
        what = (
            f"subscription {subscription.name!r} has {subscription.backlog} unread messages, and the time to live"
            f" ({ttl_ms // 1000} s) drops the oldest of them from {_moment(at_ms)} on"
        )
        found.append(UnreadWarning(subscription.name, "message_ttl", subscription.backlog, at_ms, what))
    return found


def _of_quota(topic: BrokerTopic, quota: BacklogQuota, now_ms: int) -> list[UnreadWarning]:
    if quota.action is not BacklogAction.EVICT_OLDEST:
        return []
    found = []
    for subscription in topic.subscriptions.values():
        if not (subscription.durable and subscription.retains and subscription.backlog):
            continue
        size = backlog_bytes(topic.stream, subscription) if quota.bytes >= 0 else 0
        nearly = quota.bytes - quota.bytes // _LEAD_PART
        limit_ms = quota.seconds * 1000
        oldest = subscription.oldest
        late = limit_ms >= 0 and oldest is not None and oldest[1] + limit_ms - now_ms <= _lead(limit_ms)
        if not late and not 0 <= nearly <= size:
            continue
        at_ms = oldest[1] + limit_ms if late and oldest is not None else now_ms
        what = (
            f"subscription {subscription.name!r} has {subscription.backlog} unread messages, and the backlog quota"
            " drops the oldest of them "
            + (f"from {_moment(at_ms)} on" if late else f"beyond {quota.bytes} bytes; {size} wait")
        )
        found.append(UnreadWarning(subscription.name, "backlog_quota", subscription.backlog, at_ms, what))
    return found


def _of_expiry(topic: BrokerTopic, policies: Policies, now_ms: int) -> list[UnreadWarning]:
    idle_ms = (policies.subscription_expiry_min or 0) * 60_000
    if not idle_ms:
        return []
    found = []
    for subscription in topic.subscriptions.values():
        at_ms = subscription.last_active_ms + idle_ms
        used = subscription.consumers or subscription.name == QUEUE_SUBSCRIPTION
        if used or not subscription.durable or not subscription.backlog or at_ms - now_ms > _lead(idle_ms):
            continue
        what = (
            f"subscription {subscription.name!r} has {subscription.backlog} unread messages, and is deleted at"
            f" {_moment(at_ms)} because no client uses it"
        )
        found.append(UnreadWarning(subscription.name, "subscription_expiry", subscription.backlog, at_ms, what))
    return found


def _of_retention(topic: BrokerTopic, retention: Retention, now_ms: int) -> list[UnreadWarning]:
    """Warnings for readers that do not delay retention: consumer groups, and topics without subscriptions."""
    stream = topic.stream
    if any(s.durable and s.retains for s in topic.subscriptions.values()):
        return []
    lead = _lead(retention.time_ms) if retention.time_ms > 0 else 0
    end = trim_point(stream.chain, stream.end_offset, retention, now_ms + lead, stream.open_bytes)
    if end <= stream.start_offset:
        return []
    gone = next((span for span in stream.chain.spans if span.end_offset is not None), None)
    at_ms = now_ms if gone is None or retention.time_ms < 0 else max(now_ms, gone.last_ms + retention.time_ms)
    groups = [s for s in topic.subscriptions.values() if s.durable]
    found = []
    for group in groups:
        unread = end - max(stream.start_offset, group.cursor.mark_delete + 1)
        if unread > 0:
            what = f"{group.name!r} has not read {unread} messages that retention deletes from {_moment(at_ms)} on"
            found.append(UnreadWarning(group.name, "retention", unread, at_ms, what))
    if not groups:
        unread = end - stream.start_offset
        what = f"the topic has no subscription, and retention deletes {unread} messages from {_moment(at_ms)} on"
        found.append(UnreadWarning("", "retention", unread, at_ms, what))
    return found


def _of_compaction(topic: BrokerTopic, now_ms: int) -> list[UnreadWarning]:
    """Warnings for subscriptions without consumers: soon a compaction leaves only the latest message of each
    key."""
    if not is_due(topic, now_ms + _LEAD_MS):
        return []
    stream, found = topic.stream, []
    for subscription in topic.subscriptions.values():
        first = max(stream.start_offset, subscription.cursor.mark_delete + 1)
        unread = stream.end_offset - first
        if subscription.consumers or not subscription.durable or unread < 2:
            continue
        what = (
            f"{subscription.name!r} has not read {unread} messages, and the next compaction leaves only the latest"
            " message of each key"
        )
        found.append(UnreadWarning(subscription.name, "compaction", unread, now_ms, what))
    return found


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


async def maintain(topic: BrokerTopic, now_ms: int) -> None:
    """Run one round of upkeep, by the current policies."""
    policies = topic.policies
    durable = [s for s in topic.subscriptions.values() if s.durable]
    for subscription in durable:
        await _expire(topic, subscription, policies, now_ms)
        _drop_unused(topic, subscription, policies, now_ms)
    await _keep_quota(topic, policies.backlog_quota or BacklogQuota(), now_ms)
    warn_of_unread(topic, now_ms)
    _compact(topic, policies, now_ms)
    await trim(topic, topic.tiering.retention, now_ms)
    topic.tiering.look(now_ms)
    topic.key_index.look()
    dedup = topic.publisher.dedup
    if dedup is not None:
        dedup.forget_idle(now_ms, topic.producers.has)
    stream, producer_state = topic.stream, topic.producer_state
    producer_state.forget_idle(
        now_ms, bytes_from(stream.chain, producer_state.saved_to, stream.end_offset, stream.open_bytes)
    )


async def _expire(topic: BrokerTopic, subscription: Subscription, policies: Policies, now_ms: int) -> None:
    """Acknowledge messages older than their time to live. Unreadable messages have no age, and must not stop the
    rest of the upkeep."""
    try:
        oldest = await subscription.oldest_unacked()
    except ReadFailedError:
        return
    ttl_ms = (policies.message_ttl_s or 0) * 1000 if subscription.retains else 0
    if oldest is not None and 0 < ttl_ms <= now_ms - oldest[1]:
        subscription.expire_before(await topic.offset_at(now_ms - ttl_ms + 1))


def _drop_unused(topic: BrokerTopic, subscription: Subscription, policies: Policies, now_ms: int) -> None:
    idle_ms = (policies.subscription_expiry_min or 0) * 60_000
    used = (
        subscription.consumers
        or topic.stored.members(subscription.name)
        or subscription.name == QUEUE_SUBSCRIPTION  # a queue stays until it is deleted
    )
    if idle_ms and not used and now_ms - subscription.last_active_ms >= idle_ms:
        subscription.end("the subscription was unused for the time that its expiry policy allows")


async def _keep_quota(topic: BrokerTopic, quota: BacklogQuota, now_ms: int) -> None:
    over = _exceeded(topic, quota, now_ms)
    if over is None:
        topic.producers.over_quota = None
    elif quota.action is BacklogAction.EVICT_OLDEST:
        await _evict(topic, quota, now_ms)
    else:
        kind = ProducersHeldError if quota.action is BacklogAction.HOLD_PRODUCERS else QuotaExceededError
        topic.producers.refuse(kind(f"the backlog of {topic.name} exceeds its quota: {over}"))


def _exceeded(topic: BrokerTopic, quota: BacklogQuota, now_ms: int) -> str | None:
    for subscription in topic.subscriptions.values():
        if not (subscription.durable and subscription.retains):
            continue
        size = backlog_bytes(topic.stream, subscription) if quota.bytes >= 0 else 0
        if 0 <= quota.bytes < size:
            return f"subscription {subscription.name!r} has a backlog of {size} bytes"
        if subscription.oldest is not None and 0 <= quota.seconds * 1000 < now_ms - subscription.oldest[1]:
            return (
                f"subscription {subscription.name!r} has not acknowledged its oldest message for {quota.seconds} s"
            )
    return None


async def _evict(topic: BrokerTopic, quota: BacklogQuota, now_ms: int) -> None:
    """Acknowledge the oldest messages until the backlog is within the quota."""
    stream = topic.stream
    keep_from = 0
    if quota.bytes >= 0:
        keep_from = offset_keeping(stream.chain, quota.bytes, stream.end_offset, stream.open_bytes)
    if quota.seconds >= 0:
        keep_from = max(keep_from, await topic.offset_at(now_ms - quota.seconds * 1000))
    for subscription in topic.subscriptions.values():
        if subscription.durable and subscription.retains:
            subscription.expire_before(keep_from, "backlog quota")


def _compact(topic: BrokerTopic, policies: Policies, now_ms: int) -> None:
    """Start a compaction if enough messages have arrived since the last one."""
    threshold, stream = policies.compaction_threshold or 0, topic.stream
    if is_due(topic, now_ms):
        topic.compaction.start()
    elif threshold <= 0 or topic.compaction.status is CompactionStatus.RUNNING:
        return
    elif bytes_from(stream.chain, topic.view.horizon, stream.end_offset, stream.open_bytes) >= threshold:
        topic.compaction.start()


async def trim(topic: BrokerTopic, retention: Retention, now_ms: int) -> None:
    """Delete ledgers that all subscriptions have acknowledged and that retention no longer protects. Persists the
    cursors first: a cursor that fell back behind the trimmed ledgers would count deleted messages as lost."""
    stream, view = topic.stream, topic.view
    cleanup = (topic.policies.log_compaction or LogCompaction()).cleanup
    acknowledged = min(
        (s.cursor.mark_delete + 1 for s in topic.subscriptions.values() if s.durable and s.retains),
        default=stream.end_offset,
    )
    # Consumers have not seen messages of open transactions, nor delayed ones that have not moved yet.
    acknowledged = min(acknowledged, topic.stable_offset, topic.producer_state.unmoved_from)
    point = stream.start_offset
    if cleanup.compacts:  # no reader uses the log before the horizon any more
        behind = min(acknowledged, view.horizon)
        point = trim_point(stream.chain, behind, Retention(), now_ms, stream.open_bytes)
    elif (topic.policies.compaction_threshold or 0) > 0 or (view.horizon and not view.compacted.own):
        acknowledged = min(acknowledged, view.horizon)  # compaction still needs the rest
    if cleanup.deletes:
        if 0 < retention.time_ms <= now_ms - stream.last_ms and stream.end_offset <= acknowledged:
            await stream.roll()  # without new messages, only this allows the deletion of the last ledger
        point = max(point, trim_point(stream.chain, acknowledged, retention, now_ms, stream.open_bytes))
    if point > stream.start_offset:
        await topic.trimming.forget_before(point)
    if cleanup.deletes and view.compacted.own and topic.compaction.status is not CompactionStatus.RUNNING:
        await forget_expired(topic, retention, now_ms)
        if not cleanup.compacts and view.horizon <= min(view.start_offset, stream.start_offset):
            await view.whole_again()
