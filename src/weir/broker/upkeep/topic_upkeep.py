"""What policies are about to delete before anybody has read it: said in the log when it begins, in stats while
it is so.

Looking after one topic: expiry, backlog quota, retention, subscriptions and producer names that nobody uses.

Topics that compact themselves: when, how far, and what goes from the view as retention says.
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


log = logging.getLogger(__name__)

#: It is told when so much of the time that a policy gives is left, and at least this long before.
_LEAD_PART = 5
_LEAD_MS = 60_000


def warn_of_unread(topic: BrokerTopic, now_ms: int) -> None:
    """Look at the policies as they are now; what is new is logged, and all of it is in the topic's stats."""
    found = tuple(_found(topic, topic.policies, now_ms))
    known = {(told.subscription, told.policy) for told in topic.unread_warnings}
    topic.note_unread(found)
    for told in found:
        if (told.subscription, told.policy) not in known:
            log.warning("%s: %s", topic.name, told.what)


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
            f" {_moment(at_ms)} because nobody uses it"
        )
        found.append(UnreadWarning(subscription.name, "subscription_expiry", subscription.backlog, at_ms, what))
    return found


def _of_retention(topic: BrokerTopic, retention: Retention, now_ms: int) -> list[UnreadWarning]:
    """Of those whom retention does not wait for: consumer groups, and a topic that nobody has subscribed to."""
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
        what = f"nobody has subscribed, and retention deletes {unread} messages from {_moment(at_ms)} on"
        found.append(UnreadWarning("", "retention", unread, at_ms, what))
    return found


def _of_compaction(topic: BrokerTopic, now_ms: int) -> list[UnreadWarning]:
    """Of a topic that compacts itself, and soon will: those who are away, and will find the latest of each key."""
    if not is_due(topic, now_ms + _LEAD_MS):
        return []
    stream, found = topic.stream, []
    for subscription in topic.subscriptions.values():
        first = max(stream.start_offset, subscription.cursor.mark_delete + 1)
        unread = stream.end_offset - first
        if subscription.consumers or not subscription.durable or unread < 2:
            continue
        what = (
            f"{subscription.name!r} has not read {unread} messages, and the compaction that is due leaves only the"
            " latest of each key"
        )
        found.append(UnreadWarning(subscription.name, "compaction", unread, now_ms, what))
    return found


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


async def maintain(topic: BrokerTopic, now_ms: int) -> None:
    """One round. What a round does is decided from the policies as they are now."""
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
    """What is older than its time to live counts as acknowledged. What cannot be read has no age, and must not
    keep the rest from being looked after."""
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
        subscription.end("nobody used it for long")


async def _keep_quota(topic: BrokerTopic, quota: BacklogQuota, now_ms: int) -> None:
    over = _exceeded(topic, quota, now_ms)
    if over is None:
        topic.producers.over_quota = None
    elif quota.action is BacklogAction.EVICT_OLDEST:
        await _evict(topic, quota, now_ms)
    else:
        kind = ProducersHeldError if quota.action is BacklogAction.HOLD_PRODUCERS else QuotaExceededError
        topic.producers.refuse(kind(f"the backlog of {topic.name} is over its quota: {over}"))


def _exceeded(topic: BrokerTopic, quota: BacklogQuota, now_ms: int) -> str | None:
    for subscription in topic.subscriptions.values():
        if not (subscription.durable and subscription.retains):
            continue
        size = backlog_bytes(topic.stream, subscription) if quota.bytes >= 0 else 0
        if 0 <= quota.bytes < size:
            return f"{size} bytes wait for {subscription.name!r}"
        if subscription.oldest is not None and 0 <= quota.seconds * 1000 < now_ms - subscription.oldest[1]:
            return f"{subscription.name!r} has not acknowledged the oldest for {quota.seconds} s"
    return None


async def _evict(topic: BrokerTopic, quota: BacklogQuota, now_ms: int) -> None:
    """The oldest messages count as acknowledged until the rest is within the quota."""
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
    """Once enough has come since the last time."""
    threshold, stream = policies.compaction_threshold or 0, topic.stream
    if is_due(topic, now_ms):
        topic.compaction.start()
    elif threshold <= 0 or topic.compaction.status is CompactionStatus.RUNNING:
        return
    elif bytes_from(stream.chain, topic.view.horizon, stream.end_offset, stream.open_bytes) >= threshold:
        topic.compaction.start()


async def trim(topic: BrokerTopic, retention: Retention, now_ms: int) -> None:
    """Forget ledgers that everyone has acknowledged and that are retained no longer. The cursors are persisted
    first: one that fell back behind the trimmed ledgers would count what is gone as lost."""
    stream, view = topic.stream, topic.view
    cleanup = (topic.policies.log_compaction or LogCompaction()).cleanup
    acknowledged = min(
        (s.cursor.mark_delete + 1 for s in topic.subscriptions.values() if s.durable and s.retains),
        default=stream.end_offset,
    )
    # What is not decided yet nobody could see, nor what is yet to be held.
    acknowledged = min(acknowledged, topic.stable_offset, topic.producer_state.unmoved_from)
    point = stream.start_offset
    if cleanup.compacts:  # nobody sees the log behind the horizon any more
        behind = min(acknowledged, view.horizon)
        point = trim_point(stream.chain, behind, Retention(), now_ms, stream.open_bytes)
    elif (topic.policies.compaction_threshold or 0) > 0 or (view.horizon and not view.compacted.own):
        acknowledged = min(acknowledged, view.horizon)  # what is not compacted yet is still wanted
    if cleanup.deletes:
        if 0 < retention.time_ms <= now_ms - stream.last_ms and stream.end_offset <= acknowledged:
            await stream.roll()  # nothing comes, so nothing else would ever let the last ledger go
        point = max(point, trim_point(stream.chain, acknowledged, retention, now_ms, stream.open_bytes))
    if point > stream.start_offset:
        await topic.trimming.forget_before(point)
    if cleanup.deletes and view.compacted.own and topic.compaction.status is not CompactionStatus.RUNNING:
        await forget_expired(topic, retention, now_ms)
        if not cleanup.compacts and view.horizon <= min(view.start_offset, stream.start_offset):
            await view.whole_again()
