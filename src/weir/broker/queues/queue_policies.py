"""Policies: what they may say, and which one holds for a queue or an exchange.

How topics are declared as queues, from their records; and what follows from that.

The policies of one namespace: kept in its record, so that they come and go with it.

Limits of a namespace, as its property has them: RabbitMQ's limits of a vhost.

Queues that have something to do by themselves are opened by whichever broker has them, or can have them.

What waits in a queue for its time to be over must not wait for a client, too: after a start, and when topics have
moved, queues with such rules are looked for. Only namespaces that ever had one are looked through.
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


# --- what a definition may say ---------------------------------------------------------------------------------


def _number(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _one_of(*known: str) -> Callable[[Any], bool]:
    return lambda value: value in known


#: What each may say, and what a value that it cannot have is not.
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
#: What an operator's policy may limit.
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
#: A policy that says one of these does not hold for queues of that kind, as a whole.
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
    """QueueArgumentError for what cannot be."""
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


# --- which one holds -------------------------------------------------------------------------------------------


class _Searched(Protocol):
    def search(self, text: str) -> object: ...


@lru_cache(1024)
def _compiled(pattern: str) -> _Searched:
    """In linear time if RE2 knows the pattern; it knows no look-ahead, which many policies have that are not for
    `amq.`. QueueArgumentError if it is none."""
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
    """The policies of a namespace. Never changed."""

    def __init__(self, policies: Iterable[QueuePolicy] = ()) -> None:
        #: As they are asked for: the first that matches holds.
        self._sorted = sorted(policies, key=lambda policy: (-policy.priority, policy.name))

    @property
    def policies(self) -> Sequence[QueuePolicy]:
        return self._sorted

    def of_queue(self, name: str, kind: QueueKind, *, operator: bool = False) -> QueuePolicy | None:
        """The one that holds for a queue; or the operator's."""
        return self._first(name, kind, operator=operator)

    def of_exchange(self, name: str) -> QueuePolicy | None:
        return self._first(name, None)

    def alternate_of(self, name: str) -> str | None:
        """Where an exchange's policy sends what matches none of its bindings."""
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
        """In place of one of the same name. QueueArgumentError."""
        check_policy(policy)
        others = [one for one in self._sorted if (one.name, one.operator) != (policy.name, policy.operator)]
        if len(others) >= _MOST_POLICIES:
            raise QueueArgumentError(f"a namespace has at most {_MOST_POLICIES} policies")
        return PolicyTable([*others, policy])

    def without(self, name: str, *, operator: bool = False) -> "PolicyTable":
        return PolicyTable(one for one in self._sorted if (one.name, one.operator) != (name, operator))

    # --- as it is stored ---------------------------------------------------------------------------------------

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
        """What cannot be read says nothing: a queue must open all the same."""
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
    """From memory."""
    known = registry.namespaces.find(namespace)
    said = None if known is None else known.properties.get(LIMITS_PROPERTY)
    return _NONE if said is None else _decoded(said)


@lru_cache(1_000)
def _decoded(said: str) -> QueueLimits:
    """What cannot be read is no limit; below 0 is none, either."""
    try:
        found = json.loads(said)
        numbers = [found.get(name) for name in (MAX_CONNECTIONS, MAX_QUEUES)]
    except (ValueError, AttributeError):
        return _NONE
    return QueueLimits(*(one if isinstance(one, int) and one >= 0 else None for one in numbers))


_PLAIN = QueueRules()


def declaration_of(record: TopicRecord, topic: TopicName) -> QueueDeclaration | None:
    """As the topic was declared; None if nobody did, or if it cannot be read."""
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
    """From memory; none of a namespace that there is not."""
    found = registry.namespaces.find(namespace)
    return _table(None if found is None else found.properties.get(POLICIES_PROPERTY))


def policed(declaration: QueueDeclaration, table: PolicyTable, vhost: str = "/") -> QueueRules:
    """What arguments and policies say. QueueArgumentError."""
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
    except QueueArgumentError:  # of a newer Weir
        return _PLAIN


class DeclaredRules:
    """Fills `ports.QueueRulesSource`: from the records of topics that are loaded, and of their namespaces."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def of(self, topic: TopicName) -> QueueRules:
        record = self._registry.topics.find(topic)
        text = None if record is None else record.properties.get(QUEUE_PROPERTY)
        namespace = self._registry.namespaces.find(topic.namespace)
        policies = None if namespace is None else namespace.properties.get(POLICIES_PROPERTY)
        return _PLAIN if text is None and policies is None else _rules(queue_of_topic(topic), text, policies)


def kept_by(wanted: QueueDeclaration) -> Policies:
    """A stream keeps what it has, as far as it says; a queue what nobody has acknowledged."""
    rules = rules_of(wanted)
    if rules.kind is not QueueKind.STREAM:
        return Policies()
    age_ms, most_bytes = rules.max_age_ms, rules.max_bytes
    return Policies(
        retention=Retention.exactly(-1 if age_ms is None else age_ms, -1 if most_bytes is None else most_bytes)
    )


class PolicedExchanges(NamespaceExchanges, Protocol):
    """Exchanges that can be told what policies say of them."""

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
        """The one that holds for a queue."""
        table = self.table
        return table.of_queue(declaration.name, kind_of(declaration)) if table.policies else None

    def rules_of(self, declaration: QueueDeclaration) -> QueueRules:
        """What its arguments and policies say. QueueArgumentError."""
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


#: The property of a namespace that has, or had, such queues.
WATCHED_PROPERTY = "weir.queues"
WATCHED = "watched"


async def watch_namespace(registry: Registry, namespace: NamespaceName, declaration: QueueDeclaration) -> None:
    """Have its queues looked for from now on, if this one has something to do by itself."""
    if not rules_of(declaration).acts_by_itself:
        return
    found = registry.namespaces.find(namespace)
    if found is None or WATCHED_PROPERTY not in found.properties:
        await registry.change_properties(namespace, lambda now: {**now, WATCHED_PROPERTY: WATCHED})
