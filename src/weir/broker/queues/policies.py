"""Policies: what they may say, and which one holds for a queue or an exchange."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from weir.broker.queues.arguments import is_schedule, max_age_ms
from weir.model.errors import QueueArgumentError
from weir.model.queues import Overflow, QueueKind, QueuePolicy

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
