"""Policies of queues and exchanges: validation, matching, storage in the namespace record, and the effective rules
of a queue.

Also the queue declarations in topic records, and the limits of a namespace (RabbitMQ's vhost limits), stored as a
property of the namespace.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from weir.broker.api.queues import NamespaceExchanges
from weir.broker.api.security import Guard
from weir.broker.metadata.registry import Registry
from weir.broker.queues.queue_arguments import is_schedule, kind_of, max_age_ms, rules_of
from weir.model.errors import QueueArgumentError, WireError
from weir.model.policies import Policies, Retention
from weir.model.queues import (
    LIMITS_PROPERTY,
    MAX_CONNECTIONS,
    MAX_QUEUES,
    QUEUE_PROPERTY,
    Overflow,
    QueueDeclaration,
    QueueKind,
    QueueLimits,
    QueuePolicy,
    QueueRules,
    queue_of_topic,
    vhost_of,
)
from weir.model.registry import TopicRecord
from weir.model.topics import NamespaceName, TopicName
from weir.wire.exchanges import decode_declaration

#: The property of a namespace that has its policies, as JSON.
POLICIES_PROPERTY = "weir.policies"
ALTERNATE_EXCHANGE = "alternate-exchange"
_MOST_POLICIES = 1000
_MOST_PATTERN = 512
_QUEUES = ("queues", "all")
_APPLIES = {
    "all": (*QueueKind, None),
    "queues": tuple(QueueKind),
    "exchanges": (None,),
    "classic_queues": (QueueKind.CLASSIC,),
    "quorum_queues": (QueueKind.QUORUM,),
    "streams": (QueueKind.STREAM,),
}


# --- validation of definitions ---------------------------------------------------------------------------------


def _number(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _one_of(*known: str) -> Callable[[Any], bool]:
    return lambda value: value in known


#: The check of each key, and the description of a valid value for the error text.
_TERMS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    ALTERNATE_EXCHANGE: (_text, "a valid alternate exchange name"),
    "dead-letter-exchange": (_text, "a valid dead letter exchange name"),
    "dead-letter-routing-key": (_text, "a valid dead letter routing key"),
    "dead-letter-strategy": (_one_of("at-most-once", "at-least-once"), "a valid dead letter strategy"),
    "message-ttl": (_number(0), "a valid message TTL"),
    "expires": (_number(1), "a valid queue expiry"),
    "max-length": (_number(0), "a valid maximum length"),
    "max-length-bytes": (_number(0), "a valid maximum length in bytes"),
    "max-in-memory-length": (_number(0), "a valid maximum memory in bytes"),
    "max-in-memory-bytes": (_number(0), "a valid maximum memory in bytes"),
    "overflow": (_one_of(*(way.value for way in Overflow)), "a valid overflow value"),
    "delivery-limit": (_number(0), "a valid delivery limit"),
    "retry-schedule": (lambda value: _text(value) and is_schedule(value), "a valid retry schedule"),
    "queue-mode": (_one_of("default", "lazy"), "a valid queue-mode value"),
    "queue-version": (_one_of(1, 2), "a valid queue version"),  # type: ignore[arg-type]
    "max-age": (lambda value: _text(value) and max_age_ms(value) is not None, "a valid max age"),
    "stream-max-segment-size-bytes": (_number(0), "a valid segment size"),
    "queue-leader-locator": (_text, "a valid queue leader locator value"),
    "queue-master-locator": (_text, "a valid queue master locator"),
    "initial-cluster-size": (_number(0), "a valid cluster size"),
    "ha-mode": (_text, "a valid ha-mode value"),
    "ha-params": (lambda value: isinstance(value, int | list), "valid ha-params"),
    "ha-sync-mode": (_text, "a valid ha-sync-mode value"),
    "ha-sync-batch-size": (_number(1), "a valid ha-sync-batch-size value"),
    "ha-promote-on-shutdown": (_text, "a valid ha-promote-on-shutdown value"),
    "ha-promote-on-failure": (_text, "a valid ha-promote-on-failure value"),
    "federation-upstream": (_text, "a valid federation upstream name"),
    "federation-upstream-set": (_text, "a valid federation upstream set name"),
}
#: Keys of operator policies.
_OPERATORS = frozenset(
    (
        "expires",
        "message-ttl",
        "max-length",
        "max-length-bytes",
        "max-in-memory-length",
        "max-in-memory-bytes",
        "delivery-limit",
    )
)
_FOR_STREAMS = ("max-age", "stream-max-segment-size-bytes", "initial-cluster-size")
_FOR_CLASSIC = ("queue-mode", "queue-version", "queue-master-locator", *(n for n in _TERMS if n.startswith("ha-")))
#: A policy with one of these keys does not apply at all to queues of that type.
_NOT_FOR: Mapping[QueueKind | None, frozenset[str]] = {
    QueueKind.CLASSIC: frozenset(
        (*_FOR_STREAMS, "queue-leader-locator", "delivery-limit", "dead-letter-strategy")
    ),
    QueueKind.QUORUM: frozenset((*_FOR_STREAMS, *_FOR_CLASSIC)),
    QueueKind.STREAM: frozenset(
        (
            "expires",
            "message-ttl",
            "dead-letter-exchange",
            "dead-letter-routing-key",
            "max-length",
            "overflow",
            "max-in-memory-length",
            "max-in-memory-bytes",
            "delivery-limit",
            "retry-schedule",
            "dead-letter-strategy",
            *_FOR_CLASSIC,
        )
    ),
    None: frozenset(),
}


def check_policy(policy: QueuePolicy) -> None:
    """QueueArgumentError for an invalid policy."""
    if not policy.name:
        raise QueueArgumentError("a policy has a name")
    if policy.apply_to not in _APPLIES:
        raise QueueArgumentError(
            f"Validation failed\n\napply-to {policy.apply_to!r} is not known", hint=f"use {', '.join(_APPLIES)}"
        )
    if policy.operator and policy.apply_to not in (*_QUEUES, "classic_queues", "quorum_queues", "streams"):
        raise QueueArgumentError("an operator's policy is for queues")
    if isinstance(policy.priority, bool) or not isinstance(policy.priority, int):
        raise QueueArgumentError(
            f"Validation failed\n\npriority should be a number, actually was {policy.priority!r}"
        )
    _compiled(policy.pattern)
    if not policy.definition:
        raise QueueArgumentError("Validation failed\n\nno policy provided")
    for name, value in policy.definition.items():
        if name not in _TERMS or (policy.operator and name not in _OPERATORS):
            raise QueueArgumentError(
                f'Validation failed\n\n[{{<<"{name}">>,{_shown(value)}}}] are not recognised policy settings'
            )
        fits, what = _TERMS[name]
        if not fits(value):
            raise QueueArgumentError(f"Validation failed\n\n{_shown(value)} is not {what}")


def _shown(value: object) -> str:
    return f'<<"{value}">>' if isinstance(value, str) else json.dumps(value, default=str)


# --- matching --------------------------------------------------------------------------------------------------


class _Searched(Protocol):
    def search(self, text: str) -> object: ...


@lru_cache(1024)
def _compiled(pattern: str) -> _Searched:
    """Compile a pattern: with RE2 (linear time), or else with `re`, because RE2 lacks look-ahead and many policies
    use it to exclude `amq.`. QueueArgumentError for an invalid pattern."""
    import re2  # loaded when first needed

    if len(pattern) > _MOST_PATTERN:
        raise QueueArgumentError(f"a pattern has at most {_MOST_PATTERN} characters, not {len(pattern)}")
    options = re2.Options()
    options.log_errors = False
    try:
        found: _Searched = re2.compile(pattern, options)
        return found
    except re2.error:
        pass
    try:
        return re.compile(pattern)
    except re.error as bad:
        raise QueueArgumentError(
            f'Validation failed\n\npattern should be regular expression, actually was <<"{pattern}">> ({bad})'
        ) from None


class PolicyTable:
    """The policies of a namespace. Immutable."""

    def __init__(self, policies: Iterable[QueuePolicy] = ()) -> None:
        #: In matching order: the first match applies.
        self._sorted = sorted(policies, key=lambda policy: (-policy.priority, policy.name))

    @property
    def policies(self) -> Sequence[QueuePolicy]:
        return self._sorted

    def of_queue(self, name: str, kind: QueueKind, *, operator: bool = False) -> QueuePolicy | None:
        """The effective policy of a queue; `operator`: the effective operator policy."""
        return self._first(name, kind, operator=operator)

    def of_exchange(self, name: str) -> QueuePolicy | None:
        return self._first(name, None)

    def alternate_of(self, name: str) -> str | None:
        """The alternate exchange from an exchange's policy, for messages that match no binding."""
        policy = self.of_exchange(name)
        alternate = None if policy is None else policy.definition.get(ALTERNATE_EXCHANGE)
        return alternate if isinstance(alternate, str) else None

    def _first(self, name: str, kind: QueueKind | None, *, operator: bool = False) -> QueuePolicy | None:
        for policy in self._sorted:
            if (
                policy.operator is operator
                and kind in _APPLIES[policy.apply_to]
                and _NOT_FOR[kind].isdisjoint(policy.definition)
                and _compiled(policy.pattern).search(name)
            ):
                return policy
        return None

    def with_policy(self, policy: QueuePolicy) -> "PolicyTable":
        """A table with the policy added or replaced. QueueArgumentError."""
        check_policy(policy)
        others = [one for one in self._sorted if (one.name, one.operator) != (policy.name, policy.operator)]
        if len(others) >= _MOST_POLICIES:
            raise QueueArgumentError(f"a namespace has at most {_MOST_POLICIES} policies")
        return PolicyTable([*others, policy])

    def without(self, name: str, *, operator: bool = False) -> "PolicyTable":
        return PolicyTable(one for one in self._sorted if (one.name, one.operator) != (name, operator))

    # --- encoding ----------------------------------------------------------------------------------------------

    def encode(self) -> str:
        return json.dumps(
            [
                {
                    "name": one.name,
                    "pattern": one.pattern,
                    "definition": one.definition,
                    "priority": one.priority,
                    "apply-to": one.apply_to,
                    **({"operator": True} if one.operator else {}),
                }
                for one in self._sorted
            ],
            separators=(",", ":"),
        )

    @classmethod
    def decode(cls, text: str | None) -> "PolicyTable":
        """Decode a table; ignores unreadable policies, because a queue must open regardless."""
        try:
            rows = json.loads(text) if text else []
        except ValueError:
            return cls()
        return cls(_policies(rows))


def _policies(rows: object) -> Iterable[QueuePolicy]:
    for row in rows if isinstance(rows, list) else ():
        try:
            policy = QueuePolicy(
                row["name"],
                row["pattern"],
                row["definition"],
                row.get("priority", 0),
                row.get("apply-to", "all"),
                row.get("operator", False),
            )
            check_policy(policy)
        except (KeyError, TypeError, AttributeError, QueueArgumentError):
            continue
        yield policy


_NONE = QueueLimits()


def limits_of(registry: Registry, namespace: NamespaceName) -> QueueLimits:
    """The limits of the namespace, from memory."""
    known = registry.namespaces.find(namespace)
    said = None if known is None else known.properties.get(LIMITS_PROPERTY)
    return _NONE if said is None else _decoded(said)


@lru_cache(1_000)
def _decoded(said: str) -> QueueLimits:
    """Decode limits; unreadable and negative values mean no limit."""
    try:
        found = json.loads(said)
        numbers = [found.get(name) for name in (MAX_CONNECTIONS, MAX_QUEUES)]
    except (ValueError, AttributeError):
        return _NONE
    return QueueLimits(*(one if isinstance(one, int) and one >= 0 else None for one in numbers))


_PLAIN = QueueRules()


def declaration_of(record: TopicRecord, topic: TopicName) -> QueueDeclaration | None:
    """The queue declaration of the topic; None if it has none, or if it is unreadable."""
    text = record.properties.get(QUEUE_PROPERTY)
    return None if text is None else _declaration(queue_of_topic(topic), text)


@lru_cache(maxsize=4096)
def _declaration(name: str, text: str) -> QueueDeclaration | None:
    try:
        return decode_declaration(name, text)
    except WireError:
        return None


@lru_cache(maxsize=256)
def _table(text: str | None) -> PolicyTable:
    return PolicyTable.decode(text)


def policies_of(registry: Registry, namespace: NamespaceName) -> PolicyTable:
    """The policies of a namespace, from memory; empty for a missing namespace."""
    found = registry.namespaces.find(namespace)
    return _table(None if found is None else found.properties.get(POLICIES_PROPERTY))


def policed(declaration: QueueDeclaration, table: PolicyTable, vhost: str = "/") -> QueueRules:
    """The effective rules from arguments and policies. QueueArgumentError."""
    if not table.policies:
        return rules_of(declaration, vhost=vhost)
    name, kind = declaration.name, kind_of(declaration, vhost)
    return rules_of(
        declaration, table.of_queue(name, kind), operator=table.of_queue(name, kind, operator=True), vhost=vhost
    )


@lru_cache(maxsize=4096)
def _rules(name: str, text: str | None, policies: str | None) -> QueueRules:
    declaration = QueueDeclaration(name) if text is None else _declaration(name, text)
    if declaration is None:
        return _PLAIN
    try:
        return policed(declaration, _table(policies))
    except QueueArgumentError:  # from a newer version of Weir
        return _PLAIN


class DeclaredRules:
    """Implements `ports.QueueRulesSource` from the records of loaded topics and their namespaces."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def of(self, topic: TopicName) -> QueueRules:
        record = self._registry.topics.find(topic)
        text = None if record is None else record.properties.get(QUEUE_PROPERTY)
        namespace = self._registry.namespaces.find(topic.namespace)
        policies = None if namespace is None else namespace.properties.get(POLICIES_PROPERTY)
        return _PLAIN if text is None and policies is None else _rules(queue_of_topic(topic), text, policies)


def kept_by(wanted: QueueDeclaration) -> Policies:
    """The retention policies for a declaration: a stream retains messages by its limits, a queue only
    unacknowledged ones."""
    rules = rules_of(wanted)
    if rules.kind is not QueueKind.STREAM:
        return Policies()
    age_ms, most_bytes = rules.max_age_ms, rules.max_bytes
    return Policies(
        retention=Retention.exactly(-1 if age_ms is None else age_ms, -1 if most_bytes is None else most_bytes)
    )


class PolicedExchanges(NamespaceExchanges, Protocol):
    """Exchanges that accept policies."""

    def police(self, alternate_of: Callable[[str], str | None]) -> None: ...


class NamespacePolicies:
    def __init__(self, namespace: NamespaceName, registry: Registry, guard: Guard) -> None:
        self._namespace = namespace
        self._vhost = vhost_of(namespace)
        self._registry = registry
        self._guard = guard

    @property
    def table(self) -> PolicyTable:
        return policies_of(self._registry, self._namespace)

    def policy_of(self, declaration: QueueDeclaration) -> QueuePolicy | None:
        """The effective policy of a queue."""
        table = self.table
        return table.of_queue(declaration.name, kind_of(declaration)) if table.policies else None

    def rules_of(self, declaration: QueueDeclaration) -> QueueRules:
        """The effective rules from its arguments and policies. QueueArgumentError."""
        return policed(declaration, self.table, self._vhost)

    async def set(self, role: str, policy: QueuePolicy) -> None:
        """NotAuthorisedError, QueueArgumentError."""
        check_policy(policy)
        await self._change(role, lambda table: table.with_policy(policy), operator=policy.operator)

    async def clear(self, role: str, name: str, *, operator: bool) -> None:
        await self._change(role, lambda table: table.without(name, operator=operator), operator=operator)

    async def _change(self, role: str, change: Callable[[PolicyTable], PolicyTable], *, operator: bool) -> None:
        if operator:
            self._guard.check_admin(role, self._namespace)
        else:
            self._guard.check_policies(role, self._namespace)

        def changed(properties: Mapping[str, str]) -> Mapping[str, str]:
            table = change(PolicyTable.decode(properties.get(POLICIES_PROPERTY)))
            others = {name: text for name, text in properties.items() if name != POLICIES_PROPERTY}
            return {**others, POLICIES_PROPERTY: table.encode()} if table.policies else others

        await self._registry.change_properties(self._namespace, changed)


#: Property of a namespace that has, or had, queues with timers.
WATCHED_PROPERTY = "weir.queues"
WATCHED = "watched"


async def watch_namespace(registry: Registry, namespace: NamespaceName, declaration: QueueDeclaration) -> None:
    """Include the namespace in the search of `QueueWatch`, if the queue acts by itself (timers)."""
    if not rules_of(declaration).acts_by_itself:
        return
    found = registry.namespaces.find(namespace)
    if found is None or WATCHED_PROPERTY not in found.properties:
        await registry.change_properties(namespace, lambda now: {**now, WATCHED_PROPERTY: WATCHED})
