"""Arguments of queues: validation by queue type, the effective rules from arguments and policies, and the
equivalence of two declarations.

Refusals and their texts match RabbitMQ 3.10, because users search for these texts.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from weir.model.errors import InequivalentQueueError, NotAllowedError, QueueArgumentError
from weir.model.exchanges import Fields, FieldValue, typed
from weir.model.queues import Overflow, QueueDeclaration, QueueKind, QueuePolicy, QueueRules, queue_in_vhost
from weir.model.retry import parse_schedule

EXPIRES = "x-expires"
MESSAGE_TTL = "x-message-ttl"
DEAD_LETTER_EXCHANGE = "x-dead-letter-exchange"
DEAD_LETTER_KEY = "x-dead-letter-routing-key"
MAX_LENGTH = "x-max-length"
MAX_BYTES = "x-max-length-bytes"
MAX_PRIORITY = "x-max-priority"
OVERFLOW = "x-overflow"
SINGLE_ACTIVE = "x-single-active-consumer"
DELIVERY_LIMIT = "x-delivery-limit"
#: Weir's own: the delays before redeliveries of a message.
RETRY_SCHEDULE = "x-retry-schedule"
MAX_AGE = "x-max-age"
QUEUE_TYPE = "x-queue-type"

#: Longest permitted time, as in RabbitMQ: 49 days.
MOST_MS = (1 << 32) - 1
#: Largest `x-max-priority`.
MOST_PRIORITY = 255
_MAX_AGE = re.compile(r"([0-9]{1,9})([YMDhms])")
_UNIT_MS = {
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "D": 86_400_000,
    "M": 30 * 86_400_000,
    "Y": 365 * 86_400_000,
}


_TYPES: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bool,), "bool"),
    ((float,), "double"),
    ((str,), "longstr"),
    ((bytes, bytearray, memoryview), "binary"),
    ((Decimal,), "decimal"),
    ((datetime,), "timestamp"),
    ((Mapping,), "table"),
    ((type(None),), "void"),
)


def type_of(value: object) -> str:
    """RabbitMQ's name for the type of a table value."""
    for types, name in _TYPES:
        if isinstance(value, types):
            return name
    if isinstance(value, int):
        return "signedint" if -(1 << 31) <= value < 1 << 31 else "long"
    return "array"


def max_age_ms(text: str) -> int | None:
    """A stream's `x-max-age`, such as `7D`, in milliseconds; None if it is invalid."""
    found = _MAX_AGE.fullmatch(text)
    return int(found[1]) * _UNIT_MS[found[2]] or None if found else None


# --- checks of values: return the fault in RabbitMQ's words, or None ---------------------------------------------

_Check = Callable[[Any, Fields], str | None]


def _number(value: Any, _: Fields) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return f'"expected integer, got {type_of(value)}"'
    return f"{{value_negative,{value}}}" if value < 0 else None


def _while(value: Any, others: Fields) -> str | None:
    return _number(value, others) or (f"{{value_too_large,{value}}}" if value > MOST_MS else None)


def _above_zero_while(value: Any, others: Fields) -> str | None:
    return _above_zero(value, others) or _while(value, others)


def _above_zero(value: Any, others: Fields) -> str | None:
    return _number(value, others) or ("{value_zero,0}" if value == 0 else None)


def _priority(value: Any, others: Fields) -> str | None:
    return _number(value, others) or (f"{{max_value_exceeded,{value}}}" if value > MOST_PRIORITY else None)


def _text(value: Any, _: Fields) -> str | None:
    return None if isinstance(value, str) else f"{{unacceptable_type,{type_of(value)}}}"


def _dead_letter_key(value: Any, others: Fields) -> str | None:
    fault = _text(value, others)
    if fault is None and DEAD_LETTER_EXCHANGE not in others:
        return "routing_key_but_no_dlx_defined"
    return fault


def _yes_or_no(value: Any, _: Fields) -> str | None:
    return None if isinstance(value, bool) else f"{{unacceptable_type,{type_of(value)}}}"


def _one_of(fault: str, *known: str) -> _Check:
    """Accept only the known values. `fault` may have a placeholder for the value."""

    def check(value: Any, others: Fields) -> str | None:
        return _text(value, others) or (None if value in known else fault.format(value))

    return check


def _max_age(value: Any, others: Fields) -> str | None:
    return _text(value, others) or (None if max_age_ms(value) else "invalid_max_age")


def is_schedule(text: str) -> bool:
    try:
        parse_schedule(text)
    except NotAllowedError:
        return False
    return True


def _schedule(value: Any, others: Fields) -> str | None:
    return _text(value, others) or (None if is_schedule(value) else "invalid_retry_schedule")


def _version(value: Any, others: Fields) -> str | None:
    return _number(value, others) or (None if value in (1, 2) else f"\"unsupported queue version '{value}'\"")


_KIND = _one_of("\"unsupported queue type '{}'\"", *(kind.value for kind in QueueKind))


class _Argument(NamedTuple):
    check: _Check
    kinds: frozenset[QueueKind]


_CLASSIC, _QUORUM, _STREAM = (frozenset((kind,)) for kind in QueueKind)
_NO_STREAM = _CLASSIC | _QUORUM
_LOCATORS = ("client-local", "least-leaders", "random", "balanced", "min-masters")
#: In the order of the checks.
KNOWN: Mapping[str, _Argument] = {
    EXPIRES: _Argument(_above_zero_while, _NO_STREAM),
    MESSAGE_TTL: _Argument(_while, _NO_STREAM),
    DEAD_LETTER_EXCHANGE: _Argument(_text, _NO_STREAM),
    DEAD_LETTER_KEY: _Argument(_dead_letter_key, _NO_STREAM),
    "x-dead-letter-strategy": _Argument(_one_of("invalid_dlx_strategy", "at-most-once", "at-least-once"), _QUORUM),
    MAX_LENGTH: _Argument(_number, _NO_STREAM),
    MAX_BYTES: _Argument(_number, frozenset(QueueKind)),
    "x-max-in-memory-length": _Argument(_number, _NO_STREAM),
    "x-max-in-memory-bytes": _Argument(_number, _NO_STREAM),
    MAX_PRIORITY: _Argument(_priority, _CLASSIC),
    OVERFLOW: _Argument(_one_of("invalid_overflow", *(way.value for way in Overflow)), _NO_STREAM),
    "x-queue-mode": _Argument(_one_of("\"unsupported queue mode '{}'\"", "default", "lazy"), _CLASSIC),
    "x-queue-version": _Argument(_version, _CLASSIC),
    SINGLE_ACTIVE: _Argument(_yes_or_no, _NO_STREAM),
    QUEUE_TYPE: _Argument(_KIND, frozenset(QueueKind)),
    DELIVERY_LIMIT: _Argument(_number, _QUORUM),
    RETRY_SCHEDULE: _Argument(_schedule, _NO_STREAM),
    "x-quorum-initial-group-size": _Argument(_above_zero, _QUORUM),
    MAX_AGE: _Argument(_max_age, _STREAM),
    "x-stream-max-segment-size-bytes": _Argument(_number, _STREAM),
    "x-initial-cluster-size": _Argument(_above_zero, _STREAM),
    "x-queue-leader-locator": _Argument(_one_of("invalid_queue_locator_arg", *_LOCATORS), _QUORUM | _STREAM),
    "x-queue-master-locator": _Argument(_text, _CLASSIC),
}
_MODULES = {kind: f"rabbit_{kind.value}_queue" for kind in QueueKind}


def kind_of(declaration: QueueDeclaration, vhost: str = "/") -> QueueKind:
    """The queue type; QueueArgumentError if it is unknown."""
    said = declaration.arguments.get(QUEUE_TYPE, QueueKind.CLASSIC.value)
    fault = _KIND(said, declaration.arguments)
    if fault is not None:
        raise _invalid(declaration, vhost, QUEUE_TYPE, fault)
    return QueueKind(said)


def check_arguments(declaration: QueueDeclaration, vhost: str = "/") -> QueueKind:
    """QueueArgumentError for invalid arguments; unknown names are ignored. Returns the queue type."""
    kind, arguments = kind_of(declaration, vhost), declaration.arguments
    known = [(name, KNOWN[name]) for name in KNOWN if name in arguments]
    for name, argument in known:
        fault = argument.check(arguments[name], arguments) if kind in argument.kinds else None
        if fault is not None:
            raise _invalid(declaration, vhost, name, fault)
    for name, argument in known:
        if kind not in argument.kinds:
            here = queue_in_vhost(declaration.name, vhost)
            raise QueueArgumentError(f"invalid arg '{name}' for {here} of queue type {_MODULES[kind]}")
    if kind is not QueueKind.CLASSIC:
        _check_lasting(declaration, vhost)
    return kind


def _check_lasting(declaration: QueueDeclaration, vhost: str) -> None:
    """Refuse exclusive, auto-delete and transient for quorum queues and streams."""
    for wrong, name in (
        (declaration.auto_delete, "auto-delete"),
        (declaration.exclusive, "exclusive-owner"),
        (not declaration.durable, "non-durable"),
    ):
        if wrong:
            raise QueueArgumentError(
                f"invalid property '{name}' for {queue_in_vhost(declaration.name, vhost)}",
                hint="quorum queues and streams are durable, not exclusive and not auto-delete",
            )


def _invalid(declaration: QueueDeclaration, vhost: str, name: str, fault: str) -> QueueArgumentError:
    here = queue_in_vhost(declaration.name, vhost)
    if name == DEAD_LETTER_EXCHANGE:
        said = type_of(declaration.arguments[name])
        return QueueArgumentError(f"invalid type '{said}' for arg '{name}' in {here}")
    return QueueArgumentError(f"invalid arg '{name}' for {here}: {fault}")


Definition = Mapping[str, object]
_NOTHING: Definition = {}


def rules_of(
    declaration: QueueDeclaration,
    policy: QueuePolicy | None = None,
    *,
    operator: QueuePolicy | None = None,
    vhost: str = "/",
) -> QueueRules:
    """The effective rules from arguments and policy. The lower of two numbers applies; otherwise the argument
    takes precedence. `operator`: the operator policy, an upper bound for numbers. QueueArgumentError for invalid
    arguments; policies are validated when they are set."""
    kind = check_arguments(declaration, vhost)
    said = declaration.arguments
    more = merged(_NOTHING if policy is None else policy.definition, operator)
    overflow = _rules_text(said.get(OVERFLOW), more.get("overflow"))
    age = _rules_text(said.get(MAX_AGE), more.get("max-age"))
    return QueueRules(
        kind=kind,
        message_ttl_ms=_lower(said.get(MESSAGE_TTL), more.get("message-ttl")),
        expires_ms=_lower(said.get(EXPIRES), more.get("expires")),
        max_length=_lower(said.get(MAX_LENGTH), more.get("max-length")),
        max_bytes=_lower(said.get(MAX_BYTES), more.get("max-length-bytes")),
        overflow=Overflow.DROP_HEAD if overflow is None else Overflow(overflow),
        dead_letter_exchange=_rules_text(said.get(DEAD_LETTER_EXCHANGE), more.get("dead-letter-exchange")),
        dead_letter_key=_rules_text(said.get(DEAD_LETTER_KEY), more.get("dead-letter-routing-key")),
        max_priority=said.get(MAX_PRIORITY, 0),
        single_active=said.get(SINGLE_ACTIVE, False),
        delivery_limit=_lower(said.get(DELIVERY_LIMIT), more.get("delivery-limit")),
        max_age_ms=None if age is None else max_age_ms(age),
        retry_schedule=_rules_text(said.get(RETRY_SCHEDULE), more.get("retry-schedule")),
    )


def merged(definition: Definition, operator: QueuePolicy | None) -> Definition:
    """Merge a policy's definition with the operator policy: the lower of two numbers, else the operator's
    value."""
    if operator is None:
        return definition
    found = dict(definition)
    for name, value in operator.definition.items():
        lower = _lower(value, found.get(name))
        found[name] = value if lower is None else lower
    return found


def _lower(one: object, other: object) -> int | None:
    numbers = [number for number in (one, other) if isinstance(number, int) and not isinstance(number, bool)]
    return min(numbers, default=None)


def _rules_text(one: object, other: object) -> str | None:
    """The argument, or else the policy's value."""
    return one if isinstance(one, str) else other if isinstance(other, str) else None


# --- equivalence of declarations ----------------------------------------------------------------------------


def check_equivalent(there: QueueDeclaration, wanted: QueueDeclaration, vhost: str = "/") -> None:
    """InequivalentQueueError unless `wanted` is equivalent to the existing declaration. The check ignores
    `exclusive`: a queue of another connection is locked in any case. It compares the arguments that the queue's
    type supports; numbers are equal by value, regardless of their size on the wire."""
    for what, current, received in (
        ("durable", there.durable, wanted.durable),
        ("auto_delete", there.auto_delete, wanted.auto_delete),
    ):
        if current != received:
            raise _inequivalent(there, vhost, what, _flag(current), _flag(received))
    kind = kind_of(there, vhost)
    for name, argument in KNOWN.items():
        if kind not in argument.kinds:
            continue
        now, then = there.arguments.get(name), wanted.arguments.get(name)
        if _comparable(name, now) != _comparable(name, then):
            both = now is not None and then is not None
            raise _inequivalent(there, vhost, name, _value(now, alone=not both), _value(then, alone=not both))


def _comparable(name: str, value: FieldValue) -> object:
    """The value for a comparison; a missing queue type means classic."""
    if value is None and name == QUEUE_TYPE:
        value = QueueKind.CLASSIC.value
    return typed(value)


def _inequivalent(
    there: QueueDeclaration, vhost: str, what: str, current: str, received: str
) -> InequivalentQueueError:
    return InequivalentQueueError(
        f"inequivalent arg '{what}' for {queue_in_vhost(there.name, vhost)}: "
        f"received {received} but current is {current}"
    )


def _flag(value: bool) -> str:
    return f"'{str(value).lower()}'"


def _value(value: FieldValue, *, alone: bool) -> str:
    """The value in RabbitMQ's words. `alone`: the other declaration lacks the argument."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, datetime):
        text = str(int(value.timestamp()))
    else:
        text = str(value)
    return f"the value '{text[:200]}' of type '{type_of(value)}'" if alone else f"'{text[:200]}'"
