"""Whether a topic may be unloaded: no client uses it, and no timer or background work of its own needs it."""

from weir.broker.api import CompactionStatus
from weir.broker.topic.opening import AnyTopic
from weir.broker.topic.topic import BrokerTopic
from weir.model.errors import NotAllowedError
from weir.model.policies import BacklogQuota, LogCompaction
from weir.model.queues import QUEUE_SUBSCRIPTION


def is_needed(topic: AnyTopic) -> bool:
    """Whether the topic must stay loaded."""
    try:
        topic.check_unused()
    except NotAllowedError:
        return True
    if not isinstance(topic, BrokerTopic):
        return False
    return not topic.alive or topic.has_watchers or _has_unfinished(topic) or _has_timers(topic)


def _has_unfinished(topic: BrokerTopic) -> bool:
    """Whether something that was begun has not ended: it would be lost, or begun again by the next load."""
    stream = topic.stream
    return bool(
        stream.unwritten
        or stream.in_flight
        or topic.publisher.failed
        or topic.producer_state.index.any_open
        or topic.producer_state.unmoved_from < stream.end_offset
        or topic.half.there
        or topic.letters.waiting
        or topic.compaction.status is CompactionStatus.RUNNING
        or topic.key_index.working
        or topic.tiering.working
    )


def _has_timers(topic: BrokerTopic) -> bool:
    """Whether something happens to its messages, or to itself, when a time has come."""
    policies, rules = topic.policies, topic.queue_rules
    subscriptions = [one for one in topic.subscriptions.values() if one.durable]
    if topic.stored.held_messages or rules.acts_by_itself:
        return True
    if any(one.name != QUEUE_SUBSCRIPTION for one in subscriptions) and policies.subscription_expiry_min:
        return True
    if not any(one.backlog for one in subscriptions):
        return _is_compacted_later(topic)
    hooks = topic.queue_side.hooks
    quota = policies.backlog_quota or BacklogQuota()
    return bool(
        policies.message_ttl_s or quota.seconds >= 0 or (hooks is not None and hooks.waits)
    ) or _is_compacted_later(topic)


def _is_compacted_later(topic: BrokerTopic) -> bool:
    """Whether there are messages that a compaction, whose time has not come, is to look at."""
    policy = topic.policies.log_compaction or LogCompaction()
    if not policy.cleanup.compacts:
        return False
    tombstones = topic.view.compacted.tombstone_end_ms(policy.tombstone_ms) is not None
    return tombstones or topic.compaction.begun_at < topic.stream.end_offset > topic.view.horizon
