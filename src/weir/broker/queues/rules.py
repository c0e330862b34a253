"""What holds for a queue, by its arguments and policies, and whether two declarations are of the same queue."""

from collections.abc import Mapping
from datetime import datetime

from weir.broker.queues import arguments as named
from weir.model.errors import InequivalentQueueError
from weir.model.exchanges import FieldValue, typed
from weir.model.queues import (
    Overflow,
    QueueDeclaration,
    QueueKind,
    QueuePolicy,
    QueueRules,
    queue_in_vhost,
)

Definition = Mapping[str, object]
_NOTHING: Definition = {}


def rules_of(
    declaration: QueueDeclaration,
    policy: QueuePolicy | None = None,
    *,
    operator: QueuePolicy | None = None,
    vhost: str = "/",
) -> QueueRules:
    """What its arguments say, and its policy. Of two numbers the lower one holds; of anything else the argument.
    `operator`: the operator's policy, whose numbers nobody can exceed. QueueArgumentError for arguments that
    cannot be; a policy was checked when it was set."""
    kind = named.check_arguments(declaration, vhost)
    said = declaration.arguments
    more = merged(_NOTHING if policy is None else policy.definition, operator)
    overflow = _text(said.get(named.OVERFLOW), more.get("overflow"))
    age = _text(said.get(named.MAX_AGE), more.get("max-age"))
    return QueueRules(
        kind=kind,
        message_ttl_ms=_lower(said.get(named.MESSAGE_TTL), more.get("message-ttl")),
        expires_ms=_lower(said.get(named.EXPIRES), more.get("expires")),
        max_length=_lower(said.get(named.MAX_LENGTH), more.get("max-length")),
        max_bytes=_lower(said.get(named.MAX_BYTES), more.get("max-length-bytes")),
        overflow=Overflow.DROP_HEAD if overflow is None else Overflow(overflow),
        dead_letter_exchange=_text(said.get(named.DEAD_LETTER_EXCHANGE), more.get("dead-letter-exchange")),
        dead_letter_key=_text(said.get(named.DEAD_LETTER_KEY), more.get("dead-letter-routing-key")),
        max_priority=said.get(named.MAX_PRIORITY, 0),
        single_active=said.get(named.SINGLE_ACTIVE, False),
        delivery_limit=_lower(said.get(named.DELIVERY_LIMIT), more.get("delivery-limit")),
        max_age_ms=None if age is None else named.max_age_ms(age),
        retry_schedule=_text(said.get(named.RETRY_SCHEDULE), more.get("retry-schedule")),
    )


def merged(definition: Definition, operator: QueuePolicy | None) -> Definition:
    """A policy's definition with the operator's: the lower of two numbers, else the operator's word."""
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


def _text(one: object, other: object) -> str | None:
    """The argument's word before the policy's."""
    return one if isinstance(one, str) else other if isinstance(other, str) else None


# --- whether a queue is the one that is declared ------------------------------------------------------------


def check_equivalent(there: QueueDeclaration, wanted: QueueDeclaration, vhost: str = "/") -> None:
    """InequivalentQueueError unless declaring `wanted` is the same as what is there. Whose it is (`exclusive`) is
    not looked at: another connection's is locked, whatever it says. Of the arguments those count that queues of
    its kind have; numbers are equal by value, whatever their size on the wire."""
    for what, current, received in (
        ("durable", there.durable, wanted.durable),
        ("auto_delete", there.auto_delete, wanted.auto_delete),
    ):
        if current != received:
            raise _inequivalent(there, vhost, what, _flag(current), _flag(received))
    kind = named.kind_of(there, vhost)
    for name, argument in named.KNOWN.items():
        if kind not in argument.kinds:
            continue
        now, then = there.arguments.get(name), wanted.arguments.get(name)
        if _comparable(name, now) != _comparable(name, then):
            both = now is not None and then is not None
            raise _inequivalent(there, vhost, name, _value(now, alone=not both), _value(then, alone=not both))


def _comparable(name: str, value: FieldValue) -> object:
    """No word on its kind is the word for a classic one."""
    if value is None and name == named.QUEUE_TYPE:
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
    """`alone`: the other one says nothing."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, datetime):
        text = str(int(value.timestamp()))
    else:
        text = str(value)
    return f"the value '{text[:200]}' of type '{named.type_of(value)}'" if alone else f"'{text[:200]}'"
