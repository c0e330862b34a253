"""Policies of namespaces and topics: for each, get, set and remove, from one table."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from weir.admin import bodies_policies as b
from weir.admin import policies_map as to
from weir.admin.context import AdminContext
from weir.admin.dead_letters import check_dead_letters
from weir.admin.names import ABOUT_NAMESPACE, ABOUT_TOPIC, CONFLICT, NAMESPACE, namespace_of, topic_of, topic_path
from weir.admin.routing import Call, Int, Long, Query, RefusedError, Route
from weir.model.policies import BacklogQuota, Policies
from weir.model.retry import RetryPolicy
from weir.model.topics import Domain, NamespaceName, TopicName

_APPLIED = Query("applied", bool, "what holds, from all levels, instead of what is said here", False)
_QUOTA_TYPE = Query("backlogQuotaType", b.QuotaType, "which limit", "destination_storage")


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
    of: Callable[[Any], Any] = to.same
    shown: Callable[[Any], Any] = to.same
    #: What is answered where nothing was said; None: nothing (204).
    unsaid: Any = None


def _both(field: str, body: Any, word: str, **more: Any) -> Policy:
    return Policy(field, body, Level(word), Level(word), **more)


def _bound(field: str, namespace: str | None, topic: str | None) -> Policy:
    return Policy(
        field, Int, Level(namespace) if namespace else None, Level(topic) if topic else None, of=to.natural
    )


_DISPATCH = {"of": to.dispatch_rate_of, "shown": to.dispatch_rate_body}

POLICIES = (
    _both("retention", b.RetentionPolicies, "retention", of=to.retention_of, shown=to.retention_body),
    _both("publish_rate", b.PublishRate, "publishRate", of=to.publish_rate_of, shown=to.publish_rate_body),
    _both("dispatch_rate", b.DispatchRate, "dispatchRate", **_DISPATCH),
    _both("subscription_dispatch_rate", b.DispatchRate, "subscriptionDispatchRate", **_DISPATCH),
    Policy("deduplication", bool, Level("deduplication"), Level("deduplicationEnabled")),
    Policy(
        "compaction_threshold",
        Long,
        Level("compactionThreshold", "PUT"),
        Level("compactionThreshold"),
        of=to.natural,
    ),
    _both(
        "delayed_delivery",
        b.DelayedDeliveryPolicies,
        "delayedDelivery",
        of=to.delayed_of,
        shown=to.delayed_body,
    ),
    _bound("message_ttl_s", "messageTTL", None),
    _bound("max_unacked_per_consumer", "maxUnackedMessagesPerConsumer", "maxUnackedMessagesOnConsumer"),
    _bound(
        "max_unacked_per_subscription", "maxUnackedMessagesPerSubscription", "maxUnackedMessagesOnSubscription"
    ),
    _bound("max_producers", "maxProducersPerTopic", "maxProducers"),
    _bound("max_consumers", "maxConsumersPerTopic", "maxConsumers"),
    _bound("max_subscriptions", "maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic"),
    _bound("max_message_bytes", None, "maxMessageSize"),
    _both("key_index", bool, "keyIndex"),
    _both("trace_ppm", b.TraceRate, "traceRate", of=to.ppm_of, shown=to.rate_of_ppm),
    _bound("subscription_expiry_min", "subscriptionExpirationTime", None),
    Policy(
        "schema_compatibility",
        b.Strategy,
        Level("schemaCompatibilityStrategy", "PUT", removable=False),
        Level("schemaCompatibilityStrategy", "PUT"),
        of=to.strategy_of,
        shown=to.strategy_body,
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
        b.AutoTopicCreationOverride,
        Level("autoTopicCreation"),
        None,
        of=to.auto_topic_of,
        shown=to.auto_topic_body,
    ),
    _both(
        "auto_subscription_creation",
        b.AutoSubscriptionCreationOverride,
        "autoSubscriptionCreation",
        of=to.auto_subscription_of,
        shown=to.auto_subscription_body,
    ),
    _both("retry", b.RetryBody, "retry", of=to.retry_of_body, shown=to.retry_body),
    _both("priority", b.PriorityBody, "priority", of=to.priority_of, shown=to.priority_body),
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
                check_dead_letters(self._context, call.role, near, value)
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
                answer=b.BacklogQuotaMap,
                query=(_APPLIED,),
            ),
            self._route(
                "POST",
                quota,
                "Set a backlog quota.",
                self._set_quota,
                body=b.BacklogQuotaBody,
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

    async def _get_quotas(self, call: Call) -> b.BacklogQuotaMap:
        return to.quota_map((await self._policies(call)).backlog_quota)

    async def _set_quota(self, call: Call) -> None:
        kind, body = call.query["backlogQuotaType"], call.body
        if body is None:
            await self._remove_quota(call)
            return

        def changed(now: Policies) -> Policies:
            quota: BacklogQuota = to.with_quota(now.backlog_quota, kind, body)
            return replace(now, backlog_quota=quota)

        await self._change(call, changed)

    async def _remove_quota(self, call: Call) -> None:
        kind = call.query["backlogQuotaType"]
        await self._change(call, lambda now: replace(now, backlog_quota=to.without_quota(now.backlog_quota, kind)))

    async def _get_ttl(self, call: Call) -> int | None:
        return (await self._policies(call)).message_ttl_s

    async def _set_ttl(self, call: Call) -> None:
        where, seconds = self._where(call), call.query["messageTTL"]
        if seconds is None:
            raise RefusedError(412, "messageTTL is missing", hint="give it as a query parameter")
        to.natural(seconds)
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
