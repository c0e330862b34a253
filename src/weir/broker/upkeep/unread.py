"""What policies are about to delete before anybody has read it: said in the log when it begins, in stats while
it is so."""

import logging
from datetime import UTC, datetime

from weir.broker.api.stats import UnreadWarning
from weir.broker.topic.stats import backlog_bytes
from weir.broker.topic.topic import BrokerTopic
from weir.broker.upkeep.log_compaction import is_due
from weir.model.policies import BacklogAction, BacklogQuota, LogCompaction, Policies, Retention
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.stream.retention import trim_point

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
