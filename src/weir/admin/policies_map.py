"""Policies between Pulsar's bodies and Weir's model: pure functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weir.admin import bodies_policies as b
from weir.admin.bodies import BundlesData, Permissions
from weir.admin.routing import RefusedError
from weir.model.errors import NotAllowedError
from weir.model.policies import (
    AutoTopicCreation,
    BacklogAction,
    BacklogQuota,
    Policies,
    Rate,
    Retention,
    SchemaCompatibility,
)
from weir.model.priority import Priority
from weir.model.registry import STANDALONE, Action, Grants, Namespace, check_role
from weir.model.retry import RetryPolicy, parse_schedule
from weir.model.topics import NamespaceName, TopicName


def _invalid(what: str) -> RefusedError:
    return RefusedError(412, what)


# --- one policy each way ------------------------------------------------------------------------------------


def retention_of(body: b.RetentionPolicies) -> Retention:
    time, size = body.retentionTimeInMinutes, body.retentionSizeInMB
    if min(time, size) < -1:
        raise _invalid("retention is -1 (without end), 0 (none) or more")
    if (time == 0) != (size == 0):
        raise _invalid("retention has both a time and a size, or neither; -1 stands for any")
    return Retention(time, size)


def retention_body(value: Retention) -> b.RetentionPolicies:
    return b.RetentionPolicies(value.minutes, value.megabytes)


def publish_rate_of(body: b.PublishRate) -> Rate:
    return _rate(body.publishThrottlingRateInMsg, body.publishThrottlingRateInByte)


def publish_rate_body(value: Rate) -> b.PublishRate:
    return b.PublishRate(value.messages, value.bytes)


def dispatch_rate_of(body: b.DispatchRate) -> Rate:
    if body.relativeToPublishRate:
        raise _invalid("Weir has no rates relative to the publish rate")
    if body.ratePeriodInSecond < 1:
        raise _invalid("a rate's period is one second or more")
    rate = _rate(body.dispatchThrottlingRateInMsg, body.dispatchThrottlingRateInByte)
    return Rate(_per_second(rate.messages, body), _per_second(rate.bytes, body))


def _per_second(amount: int, body: b.DispatchRate) -> int:
    return amount if amount <= 0 else max(1, amount // body.ratePeriodInSecond)


def dispatch_rate_body(value: Rate) -> b.DispatchRate:
    return b.DispatchRate(value.messages, value.bytes)


def _rate(messages: int, size: int) -> Rate:
    """Zero and less mean that there is no bound."""
    return Rate(messages if messages > 0 else -1, size if size > 0 else -1)


def delayed_body(value: bool) -> b.DelayedDeliveryPolicies:
    return b.DelayedDeliveryPolicies(active=value)


def delayed_of(body: b.DelayedDeliveryPolicies) -> bool:
    return body.active


def strategy_of(body: str) -> SchemaCompatibility:
    return SchemaCompatibility(body)


def strategy_body(value: SchemaCompatibility) -> str:
    return value.value


def auto_topic_of(body: b.AutoTopicCreationOverride) -> AutoTopicCreation:
    partitioned = body.topicType == "partitioned"
    count = body.defaultNumPartitions
    if partitioned and (count is None or count < 1):
        raise _invalid("a partitioned topic needs defaultNumPartitions of 1 or more")
    if not partitioned and count is not None and count > 0:
        raise _invalid("defaultNumPartitions goes with topicType partitioned only")
    return AutoTopicCreation(body.allowAutoTopicCreation, (count or 0) if partitioned else 0)


def auto_topic_body(value: AutoTopicCreation) -> b.AutoTopicCreationOverride:
    if value.partitions:
        return b.AutoTopicCreationOverride(value.allowed, "partitioned", value.partitions)
    return b.AutoTopicCreationOverride(value.allowed, "non-partitioned")


def auto_subscription_of(body: b.AutoSubscriptionCreationOverride) -> bool:
    return body.allowAutoSubscriptionCreation


def auto_subscription_body(value: bool) -> b.AutoSubscriptionCreationOverride:
    return b.AutoSubscriptionCreationOverride(value)


def retry_of_body(body: b.RetryBody) -> RetryPolicy:
    try:
        schedule = None if body.schedule is None else parse_schedule(body.schedule)
        return RetryPolicy(schedule, body.maxDeliveries, body.deadLetterTopic)
    except NotAllowedError as bad:
        raise RefusedError(412, bad.what, hint=bad.hint) from bad


def retry_body(value: RetryPolicy) -> b.RetryBody:
    schedule = None if value.schedule is None else str(value.schedule)
    return b.RetryBody(schedule, value.max_deliveries, value.dead_letter_topic)


def priority_of(body: b.PriorityBody) -> Priority:
    try:
        return Priority(body.levels, body.passed, body.longestMs)
    except NotAllowedError as bad:
        raise RefusedError(412, bad.what, hint=bad.hint) from bad


def priority_body(value: Priority) -> b.PriorityBody:
    return b.PriorityBody(value.levels, value.passed, value.longest_ms)


def natural(value: int) -> int:
    """A bound; 0 means that there is none."""
    if value < 0:
        raise _invalid("this policy is 0 or more")
    return value


def ppm_of(rate: float) -> int:
    """Of a million; what is above 0 at all is one of them at least."""
    return max(1, round(rate * 1_000_000)) if rate > 0 else 0


def rate_of_ppm(ppm: int) -> float:
    return ppm / 1_000_000


def same(value: Any) -> Any:
    return value


# --- backlog quota: two limits, one policy ------------------------------------------------------------------


def with_quota(now: BacklogQuota | None, kind: str, body: b.BacklogQuotaBody) -> BacklogQuota:
    """Weir has one quota with two limits: the last word on what happens beyond them holds for both."""
    now = now or BacklogQuota()
    action = now.action if body.policy is None else BacklogAction(body.policy)
    size = body.limitSize if body.limitSize is not None else body.limit
    if kind == "message_age":
        return BacklogQuota(now.bytes, _bound(body.limitTime), action)
    return BacklogQuota(_bound(size), now.seconds, action)


def _bound(limit: int | None) -> int:
    return -1 if limit is None or limit < 0 else limit


def without_quota(now: BacklogQuota | None, kind: str) -> BacklogQuota | None:
    if now is None:
        return None
    left = (
        BacklogQuota(now.bytes, -1, now.action)
        if kind == "message_age"
        else BacklogQuota(-1, now.seconds, now.action)
    )
    return None if left.bytes < 0 and left.seconds < 0 else left


def quota_map(quota: BacklogQuota | None) -> b.BacklogQuotaMap:
    found: b.BacklogQuotaMap = {}
    if quota is not None and quota.bytes >= 0:
        found["destination_storage"] = _quota_body(quota.bytes, -1, quota)
    if quota is not None and quota.seconds >= 0:
        found["message_age"] = _quota_body(-1, quota.seconds, quota)
    return found


def _quota_body(size: int, seconds: int, quota: BacklogQuota) -> b.BacklogQuotaBody:
    """Java's client takes `limit`, the older word, for `limitSize` too, and null for 0: so it says the same."""
    return b.BacklogQuotaBody(size, seconds, quota.action.value, size)


# --- all at once --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mapped:
    """A field of `Policies`, the same in Pulsar's object for namespaces, and how to get from one to the other."""

    field: str
    name: str
    of: Callable[[Any], Any] = same
    body: Callable[[Any], Any] = same
    #: Whether Pulsar keeps it for each cluster.
    per_cluster: bool = False


MAPPED = (
    Mapped("retention", "retention_policies", retention_of, retention_body),
    Mapped("message_ttl_s", "message_ttl_in_seconds", natural),
    Mapped("publish_rate", "publishMaxMessageRate", publish_rate_of, publish_rate_body, per_cluster=True),
    Mapped("dispatch_rate", "topicDispatchRate", dispatch_rate_of, dispatch_rate_body, per_cluster=True),
    Mapped(
        "subscription_dispatch_rate",
        "subscriptionDispatchRate",
        dispatch_rate_of,
        dispatch_rate_body,
        per_cluster=True,
    ),
    Mapped("deduplication", "deduplicationEnabled"),
    Mapped("compaction_threshold", "compaction_threshold", natural),
    Mapped("delayed_delivery", "delayed_delivery_policies", delayed_of, delayed_body),
    Mapped("max_unacked_per_consumer", "max_unacked_messages_per_consumer", natural),
    Mapped("max_unacked_per_subscription", "max_unacked_messages_per_subscription", natural),
    Mapped("max_producers", "max_producers_per_topic", natural),
    Mapped("max_consumers", "max_consumers_per_topic", natural),
    Mapped("max_subscriptions", "max_subscriptions_per_topic", natural),
    Mapped("schema_compatibility", "schema_compatibility_strategy", strategy_of, strategy_body),
    Mapped("schema_required", "schema_validation_enforced"),
    Mapped("allow_schema_auto_update", "is_allow_auto_update_schema"),
    Mapped("auto_topic_creation", "autoTopicCreationOverride", auto_topic_of, auto_topic_body),
    Mapped(
        "auto_subscription_creation",
        "autoSubscriptionCreationOverride",
        auto_subscription_of,
        auto_subscription_body,
    ),
    Mapped("subscription_expiry_min", "subscription_expiration_time_minutes", natural),
)


def policies_of(body: b.NamespacePolicies) -> Policies:
    """The policies that a new namespace begins with."""
    values: dict[str, Any] = {}
    for mapped in MAPPED:
        given = getattr(body, mapped.name)
        if mapped.per_cluster and given is not None:
            given = given.get(STANDALONE)
        if given is not None:
            values[mapped.field] = mapped.of(given)
    quota: BacklogQuota | None = None
    for kind, one in (body.backlog_quota_map or {}).items():
        quota = with_quota(quota, kind, one)
    return Policies(**values, backlog_quota=quota)


def namespace_policies(
    namespace: Namespace, grants: Grants, on_topics: Mapping[str, Grants]
) -> b.NamespacePolicies:
    """Everything that is said about a namespace."""
    values: dict[str, Any] = {}
    for mapped in MAPPED:
        said = getattr(namespace.policies, mapped.field)
        if said is not None:
            shown = mapped.body(said)
            values[mapped.name] = {STANDALONE: shown} if mapped.per_cluster else shown
    return b.NamespacePolicies(
        **values,
        backlog_quota_map=quota_map(namespace.policies.backlog_quota),
        auth_policies=b.AuthPolicies(
            permissions_body(grants), {topic: permissions_body(on) for topic, on in on_topics.items()}
        ),
        replication_clusters=[STANDALONE],
        bundles=BundlesData(),
        properties=dict(namespace.properties),
        deleted=namespace.deleting,
    )


def grants_of(
    name: NamespaceName, auth: b.AuthPolicies | None
) -> list[tuple[NamespaceName | TopicName, str, list[Action]]]:
    """The grants that a new namespace begins with: on what, whom, and which."""
    if auth is None:
        return []
    if auth.subscription_auth_roles:
        raise _invalid("Weir has no roles for single subscriptions; leave subscription_auth_roles out")
    topics = {TopicName.parse(topic): given for topic, given in auth.topic_auth.items()}
    outside = [topic for topic in topics if topic.namespace != name]
    if outside:
        raise _invalid(f"{outside[0]} is not in {name}")
    found: list[tuple[NamespaceName | TopicName, Permissions]] = [(name, auth.namespace_auth), *topics.items()]
    return [
        (scope, check_role(role), [Action(action) for action in actions])
        for scope, given in found
        for role, actions in given.items()
    ]


def permissions_body(grants: Grants) -> Permissions:
    return {role: [action.value for action in actions] for role, actions in grants.roles.items()}
