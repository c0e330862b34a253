"""Looking after one topic: expiry, backlog quota, retention, subscriptions and producer names that nobody uses."""

from weir.broker.api import CompactionStatus
from weir.broker.dispatch.subscription import Subscription
from weir.broker.topic.stats import backlog_bytes
from weir.broker.topic.topic import BrokerTopic
from weir.broker.upkeep.log_compaction import forget_expired, is_due
from weir.broker.upkeep.unread import warn_of_unread
from weir.model.errors import ProducersHeldError, QuotaExceededError, ReadFailedError
from weir.model.policies import BacklogAction, BacklogQuota, LogCompaction, Policies, Retention
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.stream.retention import bytes_from, offset_keeping, trim_point


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
