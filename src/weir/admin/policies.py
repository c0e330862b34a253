"""Policies between Pulsar's bodies and Weir's model: pure functions.

Policies of namespaces and topics: for each, get, set and remove, from one table.

Bodies of policies, with Pulsar's field names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from weir.admin.context import AdminContext
from weir.admin.names import (
    ABOUT_NAMESPACE,
    ABOUT_TOPIC,
    CONFLICT,
    NAMESPACE,
    BundlesData,
    Permissions,
    namespace_of,
    topic_of,
    topic_path,
)
from weir.model.errors import NotAllowedError
from weir.model.policies import (
    DEFAULT_PASSED,
    AutoTopicCreation,
    BacklogAction,
    BacklogQuota,
    Policies,
    Priority,
    Rate,
    Retention,
    SchemaCompatibility,
)
from weir.model.registry import STANDALONE, Action, Grants, Namespace, check_role
from weir.model.retry import RetryPolicy, parse_schedule
from weir.model.topics import Domain, NamespaceName, TopicName
from weir.rest.routes import Call, Int, Long, Query, RefusedError, Route

QuotaType = Literal["destination_storage", "message_age"]
QuotaPolicy = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]
Strategy = Literal[
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
]


class RetentionPolicies(Struct):
    retentionTimeInMinutes: Int = 0
    retentionSizeInMB: Long = 0


class BacklogQuotaBody(Struct):
    """`limit` is what older clients call `limitSize`."""

    limitSize: Long | None = None
    limitTime: Int | None = None
    policy: QuotaPolicy | None = None
    limit: Long | None = None


BacklogQuotaMap = dict[QuotaType, BacklogQuotaBody]


class PublishRate(Struct):
    publishThrottlingRateInMsg: Int = -1
    publishThrottlingRateInByte: Long = -1


class DispatchRate(Struct):
    dispatchThrottlingRateInMsg: Int = -1
    dispatchThrottlingRateInByte: Long = -1
    relativeToPublishRate: bool = False
    ratePeriodInSecond: Int = 1


class RetryBody(Struct):
    """`schedule`: waits as in `1s 10s 1m`, or bounds as in `1s..10m` or `1s..10m x3`. `maxDeliveries`: 0 for no
    end. `deadLetterTopic`: "" for `<topic>-<subscription>-DLQ`. What is left out is as the level below says."""

    schedule: str | None = None
    maxDeliveries: Int | None = None
    deadLetterTopic: str | None = None


class PriorityBody(Struct):
    """`levels` above 0; 0: none. A lower level that has a message ready has its turn, for one, after `passed` of
    higher levels, or after `longestMs`; 0: no such bound."""

    levels: Int = 0
    passed: Int = DEFAULT_PASSED
    longestMs: Long = 0


class DelayedDeliveryPolicies(Struct):
    """Weir releases messages at their moment whatever the tick is."""

    active: bool = True
    tickTime: Long = 1
    maxDeliveryDelayInMillis: Long = 0


#: Of so many messages it is written down what becomes of them: 1 is all, 0.01 one of a hundred.
TraceRate = Annotated[float, Meta(ge=0, le=1)]


class AutoTopicCreationOverride(Struct):
    allowAutoTopicCreation: bool = True
    topicType: Literal["partitioned", "non-partitioned"] | None = None
    defaultNumPartitions: Int | None = None


class AutoSubscriptionCreationOverride(Struct):
    allowAutoSubscriptionCreation: bool = True


class AuthPolicies(Struct):
    """Grants on the namespace, and on single topics by their full name."""

    namespace_auth: Permissions = field(default_factory=dict)
    topic_auth: dict[str, Permissions] = field(default_factory=dict, name="destination_auth")
    subscription_auth_roles: dict[str, list[str]] = field(default_factory=dict)


class NamespacePolicies(Struct):
    """Everything that is said about a namespace; null where nothing is. Fields that Weir has no use for are
    accepted and left out; a new namespace with a policy that changes who gets which messages is refused."""

    auth_policies: AuthPolicies | None = None
    replication_clusters: list[str] | None = None
    allowed_clusters: list[str] = field(default_factory=list)
    encryption_required: bool = False
    bundles: BundlesData | None = None
    backlog_quota_map: BacklogQuotaMap | None = None
    retention_policies: RetentionPolicies | None = None
    message_ttl_in_seconds: Int | None = None
    publishMaxMessageRate: dict[str, PublishRate] | None = None
    topicDispatchRate: dict[str, DispatchRate] | None = None
    subscriptionDispatchRate: dict[str, DispatchRate] | None = None
    deduplicationEnabled: bool | None = None
    compaction_threshold: Long | None = None
    delayed_delivery_policies: DelayedDeliveryPolicies | None = None
    max_unacked_messages_per_consumer: Int | None = None
    max_unacked_messages_per_subscription: Int | None = None
    max_producers_per_topic: Int | None = None
    max_consumers_per_topic: Int | None = None
    max_subscriptions_per_topic: Int | None = None
    schema_compatibility_strategy: Strategy | None = None
    schema_validation_enforced: bool | None = None
    is_allow_auto_update_schema: bool | None = None
    autoTopicCreationOverride: AutoTopicCreationOverride | None = None
    autoSubscriptionCreationOverride: AutoSubscriptionCreationOverride | None = None
    subscription_expiration_time_minutes: Int | None = None
    properties: dict[str, str] | None = None
    deleted: bool = False


def _invalid(what: str) -> RefusedError:
    return RefusedError(412, what)


# --- one policy each way ------------------------------------------------------------------------------------


def retention_of(body: RetentionPolicies) -> Retention:
    time, size = body.retentionTimeInMinutes, body.retentionSizeInMB
    if min(time, size) < -1:
        raise _invalid("retention is -1 (without end), 0 (none) or more")
    if (time == 0) != (size == 0):
        raise _invalid("retention has both a time and a size, or neither; -1 stands for any")
    return Retention(time, size)


def retention_body(value: Retention) -> RetentionPolicies:
    return RetentionPolicies(value.minutes, value.megabytes)


def publish_rate_of(body: PublishRate) -> Rate:
    return _rate(body.publishThrottlingRateInMsg, body.publishThrottlingRateInByte)


def publish_rate_body(value: Rate) -> PublishRate:
    return PublishRate(value.messages, value.bytes)


def dispatch_rate_of(body: DispatchRate) -> Rate:
    if body.relativeToPublishRate:
        raise _invalid("Weir has no rates relative to the publish rate")
    if body.ratePeriodInSecond < 1:
        raise _invalid("a rate's period is one second or more")
    rate = _rate(body.dispatchThrottlingRateInMsg, body.dispatchThrottlingRateInByte)
    return Rate(_per_second(rate.messages, body), _per_second(rate.bytes, body))


def _per_second(amount: int, body: DispatchRate) -> int:
    return amount if amount <= 0 else max(1, amount // body.ratePeriodInSecond)


def dispatch_rate_body(value: Rate) -> DispatchRate:
    return DispatchRate(value.messages, value.bytes)


def _rate(messages: int, size: int) -> Rate:
    """Zero and less mean that there is no bound."""
    return Rate(messages if messages > 0 else -1, size if size > 0 else -1)


def delayed_body(value: bool) -> DelayedDeliveryPolicies:
    return DelayedDeliveryPolicies(active=value)


def delayed_of(body: DelayedDeliveryPolicies) -> bool:
    return body.active


def strategy_of(body: str) -> SchemaCompatibility:
    return SchemaCompatibility(body)


def strategy_body(value: SchemaCompatibility) -> str:
    return value.value


def auto_topic_of(body: AutoTopicCreationOverride) -> AutoTopicCreation:
    partitioned = body.topicType == "partitioned"
    count = body.defaultNumPartitions
    if partitioned and (count is None or count < 1):
        raise _invalid("a partitioned topic needs defaultNumPartitions of 1 or more")
    if not partitioned and count is not None and count > 0:
        raise _invalid("defaultNumPartitions goes with topicType partitioned only")
    return AutoTopicCreation(body.allowAutoTopicCreation, (count or 0) if partitioned else 0)


def auto_topic_body(value: AutoTopicCreation) -> AutoTopicCreationOverride:
    if value.partitions:
        return AutoTopicCreationOverride(value.allowed, "partitioned", value.partitions)
    return AutoTopicCreationOverride(value.allowed, "non-partitioned")


def auto_subscription_of(body: AutoSubscriptionCreationOverride) -> bool:
    return body.allowAutoSubscriptionCreation


def auto_subscription_body(value: bool) -> AutoSubscriptionCreationOverride:
    return AutoSubscriptionCreationOverride(value)


def retry_of_body(body: RetryBody) -> RetryPolicy:
    try:
        schedule = None if body.schedule is None else parse_schedule(body.schedule)
        return RetryPolicy(schedule, body.maxDeliveries, body.deadLetterTopic)
    except NotAllowedError as bad:
        raise RefusedError(412, bad.what, hint=bad.hint) from bad


def retry_body(value: RetryPolicy) -> RetryBody:
    schedule = None if value.schedule is None else str(value.schedule)
    return RetryBody(schedule, value.max_deliveries, value.dead_letter_topic)


def priority_of(body: PriorityBody) -> Priority:
    try:
        return Priority(body.levels, body.passed, body.longestMs)
    except NotAllowedError as bad:
        raise RefusedError(412, bad.what, hint=bad.hint) from bad


def priority_body(value: Priority) -> PriorityBody:
    return PriorityBody(value.levels, value.passed, value.longest_ms)


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


def with_quota(now: BacklogQuota | None, kind: str, body: BacklogQuotaBody) -> BacklogQuota:
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


def quota_map(quota: BacklogQuota | None) -> BacklogQuotaMap:
    found: BacklogQuotaMap = {}
    if quota is not None and quota.bytes >= 0:
        found["destination_storage"] = _quota_body(quota.bytes, -1, quota)
    if quota is not None and quota.seconds >= 0:
        found["message_age"] = _quota_body(-1, quota.seconds, quota)
    return found


def _quota_body(size: int, seconds: int, quota: BacklogQuota) -> BacklogQuotaBody:
    """Java's client takes `limit`, the older word, for `limitSize` too, and null for 0: so it says the same."""
    return BacklogQuotaBody(size, seconds, quota.action.value, size)


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


def policies_of(body: NamespacePolicies) -> Policies:
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


def namespace_policies(namespace: Namespace, grants: Grants, on_topics: Mapping[str, Grants]) -> NamespacePolicies:
    """Everything that is said about a namespace."""
    values: dict[str, Any] = {}
    for mapped in MAPPED:
        said = getattr(namespace.policies, mapped.field)
        if said is not None:
            shown = mapped.body(said)
            values[mapped.name] = {STANDALONE: shown} if mapped.per_cluster else shown
    return NamespacePolicies(
        **values,
        backlog_quota_map=quota_map(namespace.policies.backlog_quota),
        auth_policies=AuthPolicies(
            permissions_body(grants), {topic: permissions_body(on) for topic, on in on_topics.items()}
        ),
        replication_clusters=[STANDALONE],
        bundles=BundlesData(),
        properties=dict(namespace.properties),
        deleted=namespace.deleting,
    )


def grants_of(
    name: NamespaceName, auth: AuthPolicies | None
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


_APPLIED = Query("applied", bool, "what holds, from all levels, instead of what is said here", False)
_QUOTA_TYPE = Query("backlogQuotaType", QuotaType, "which limit", "destination_storage")


@dataclass(frozen=True, slots=True)
class Level:
    """Where a policy is said, and by which word and verb."""

    word: str
    verb: str = "POST"
    removable: bool = True


@dataclass(frozen=True, slots=True)
class Policy:
    """One field of `Policies` in Pulsar's words."""

    field: str
    body: Any
    namespace: Level | None
    topic: Level | None
    of: Callable[[Any], Any] = same
    shown: Callable[[Any], Any] = same
    #: What is answered where nothing was said; None: nothing (204).
    unsaid: Any = None


def _both(field: str, body: Any, word: str, **more: Any) -> Policy:
    return Policy(field, body, Level(word), Level(word), **more)


def _policies_bound(field: str, namespace: str | None, topic: str | None) -> Policy:
    return Policy(field, Int, Level(namespace) if namespace else None, Level(topic) if topic else None, of=natural)


_DISPATCH = {"of": dispatch_rate_of, "shown": dispatch_rate_body}

POLICIES = (
    _both("retention", RetentionPolicies, "retention", of=retention_of, shown=retention_body),
    _both("publish_rate", PublishRate, "publishRate", of=publish_rate_of, shown=publish_rate_body),
    _both("dispatch_rate", DispatchRate, "dispatchRate", **_DISPATCH),
    _both("subscription_dispatch_rate", DispatchRate, "subscriptionDispatchRate", **_DISPATCH),
    Policy("deduplication", bool, Level("deduplication"), Level("deduplicationEnabled")),
    Policy(
        "compaction_threshold",
        Long,
        Level("compactionThreshold", "PUT"),
        Level("compactionThreshold"),
        of=natural,
    ),
    _both(
        "delayed_delivery",
        DelayedDeliveryPolicies,
        "delayedDelivery",
        of=delayed_of,
        shown=delayed_body,
    ),
    _policies_bound("message_ttl_s", "messageTTL", None),
    _policies_bound("max_unacked_per_consumer", "maxUnackedMessagesPerConsumer", "maxUnackedMessagesOnConsumer"),
    _policies_bound(
        "max_unacked_per_subscription", "maxUnackedMessagesPerSubscription", "maxUnackedMessagesOnSubscription"
    ),
    _policies_bound("max_producers", "maxProducersPerTopic", "maxProducers"),
    _policies_bound("max_consumers", "maxConsumersPerTopic", "maxConsumers"),
    _policies_bound("max_subscriptions", "maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic"),
    _policies_bound("max_message_bytes", None, "maxMessageSize"),
    _both("key_index", bool, "keyIndex"),
    _both("trace_ppm", TraceRate, "traceRate", of=ppm_of, shown=rate_of_ppm),
    _policies_bound("subscription_expiry_min", "subscriptionExpirationTime", None),
    Policy(
        "schema_compatibility",
        Strategy,
        Level("schemaCompatibilityStrategy", "PUT", removable=False),
        Level("schemaCompatibilityStrategy", "PUT"),
        of=strategy_of,
        shown=strategy_body,
        unsaid="UNDEFINED",
    ),
    Policy(
        "schema_required",
        bool,
        Level("schemaValidationEnforced", removable=False),
        Level("schemaValidationEnforced", removable=False),
        unsaid=False,
    ),
    Policy("allow_schema_auto_update", bool, Level("isAllowAutoUpdateSchema", removable=False), None, unsaid=True),
    Policy(
        "auto_topic_creation",
        AutoTopicCreationOverride,
        Level("autoTopicCreation"),
        None,
        of=auto_topic_of,
        shown=auto_topic_body,
    ),
    _both(
        "auto_subscription_creation",
        AutoSubscriptionCreationOverride,
        "autoSubscriptionCreation",
        of=auto_subscription_of,
        shown=auto_subscription_body,
    ),
    _both("retry", RetryBody, "retry", of=retry_of_body, shown=retry_body),
    _both("priority", PriorityBody, "priority", of=priority_of, shown=priority_body),
)


class PolicyRoutes:
    """The policies of one level."""

    def __init__(self, context: AdminContext, *, topics: bool) -> None:
        self._context = context
        self._topics = topics
        self._base = topic_path(Domain.PERSISTENT) if topics else NAMESPACE
        self._about = {**(ABOUT_TOPIC if topics else ABOUT_NAMESPACE), **CONFLICT}
        self._tag = "topic policies" if topics else "namespace policies"

    def routes(self) -> list[Route]:
        found = [route for policy in POLICIES for route in self._routes_of(policy)]
        return found + self._quota_routes() + (self._ttl_routes() if self._topics else [])

    def _routes_of(self, policy: Policy) -> list[Route]:
        level = policy.topic if self._topics else policy.namespace
        if level is None:
            return []
        path, what = f"{self._base}/{level.word}", policy.field.replace("_", " ")

        async def get(call: Call) -> Any:
            said = getattr(await self._policies(call), policy.field)
            return policy.unsaid if said is None else policy.shown(said)

        async def put(call: Call) -> None:
            # As in Pulsar, nothing (null, or no body) takes back what was said.
            where, value = self._where(call), None if call.body is None else policy.of(call.body)
            if isinstance(value, RetryPolicy):
                near = where if isinstance(where, TopicName) else TopicName(where, "any")
                self._context.check_dead_letters(call.role, near, value)
            await self._context.registry.change_policies(where, lambda now: replace(now, **{policy.field: value}))

        async def remove(call: Call) -> None:
            await self._change(call, lambda now: replace(now, **{policy.field: None}))

        routes = [
            self._route(
                "GET",
                path,
                f"Get {what}.",
                get,
                answer=policy.body,
                empty=policy.unsaid is None,
                query=(_APPLIED,),
            ),
            self._route(level.verb, path, f"Set {what}.", put, body=policy.body, body_optional=True),
        ]
        return [*routes, self._route("DELETE", path, f"Remove {what}.", remove)] if level.removable else routes

    def _quota_routes(self) -> list[Route]:
        quota, query = f"{self._base}/backlogQuota", (_QUOTA_TYPE,)
        return [
            self._route(
                "GET",
                f"{quota}Map",
                "Get the backlog quotas.",
                self._get_quotas,
                answer=BacklogQuotaMap,
                query=(_APPLIED,),
            ),
            self._route(
                "POST",
                quota,
                "Set a backlog quota.",
                self._set_quota,
                body=BacklogQuotaBody,
                body_optional=True,
                query=query,
            ),
            self._route("DELETE", quota, "Remove a backlog quota.", self._remove_quota, query=query),
        ]

    def _ttl_routes(self) -> list[Route]:
        path = f"{self._base}/messageTTL"
        given = Query("messageTTL", Int, "seconds; 0: messages never expire")
        return [
            self._route("GET", path, "Get message ttl.", self._get_ttl, answer=Int, empty=True, query=(_APPLIED,)),
            self._route("POST", path, "Set message ttl.", self._set_ttl, query=(given,)),
            self._route("DELETE", path, "Remove message ttl.", self._remove_ttl),
        ]

    def _route(self, verb: str, path: str, summary: str, action: Any, **more: Any) -> Route:
        return Route(verb, path, summary, action, refusals=self._about, tag=self._tag, **more)

    # --- what they do -------------------------------------------------------------------------------------------

    async def _get_quotas(self, call: Call) -> BacklogQuotaMap:
        return quota_map((await self._policies(call)).backlog_quota)

    async def _set_quota(self, call: Call) -> None:
        kind, body = call.query["backlogQuotaType"], call.body
        if body is None:
            await self._remove_quota(call)
            return

        def changed(now: Policies) -> Policies:
            quota: BacklogQuota = with_quota(now.backlog_quota, kind, body)
            return replace(now, backlog_quota=quota)

        await self._change(call, changed)

    async def _remove_quota(self, call: Call) -> None:
        kind = call.query["backlogQuotaType"]
        await self._change(call, lambda now: replace(now, backlog_quota=without_quota(now.backlog_quota, kind)))

    async def _get_ttl(self, call: Call) -> int | None:
        return (await self._policies(call)).message_ttl_s

    async def _set_ttl(self, call: Call) -> None:
        where, seconds = self._where(call), call.query["messageTTL"]
        if seconds is None:
            raise RefusedError(412, "messageTTL is missing", hint="give it as a query parameter")
        natural(seconds)
        await self._context.registry.change_policies(where, lambda now: replace(now, message_ttl_s=seconds))

    async def _remove_ttl(self, call: Call) -> None:
        await self._change(call, lambda now: replace(now, message_ttl_s=None))

    # --- where they are -----------------------------------------------------------------------------------------

    async def _policies(self, call: Call) -> Policies:
        """What is said at this level, or what holds there."""
        where, registry = self._where(call), self._context.registry
        if isinstance(where, NamespaceName):
            said = registry.namespaces.get(where).policies
            return registry.policies(where) if call.query.get("applied") else said
        said = (await registry.topics.get(where)).policies
        return await registry.look_policies(where) if call.query.get("applied") else said

    async def _change(self, call: Call, change: Callable[[Policies], Policies]) -> None:
        await self._context.registry.change_policies(self._where(call), change)

    def _where(self, call: Call) -> NamespaceName | TopicName:
        where = topic_of(call.path) if self._topics else namespace_of(call.path)
        self._context.authoriser.check_admin(call.role, where)
        return where
