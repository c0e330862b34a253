"""Exchanges and bindings as values, and the rules for them that need no store.

An exchange takes messages and hands them to queues and other exchanges, by the bindings that name it as their
source. What is legal, and how two declarations compare, is as RabbitMQ has it; `docs/reference/exchanges.md`
names the reply
codes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from weir.model.errors import (
    ExchangeArgumentError,
    ExchangeRefusedError,
    InequivalentExchangeError,
    InvalidNameError,
    UnknownExchangeTypeError,
)

#: A value of a table of arguments or headers: None, bool, int, float, str, bytes, Decimal, datetime, a sequence of
#: these, or a mapping from str to these.
FieldValue: TypeAlias = Any
Fields: TypeAlias = Mapping[str, FieldValue]

#: The exchange without a name: it knows every queue by the queue's name, and has no bindings.
DEFAULT_EXCHANGE = ""
RESERVED_PREFIX = "amq."
#: An exchange's argument: where to send what matches none of its bindings.
ALTERNATE = "alternate-exchange"
#: An argument of `x-delayed-message`: as which type it routes what is due.
DELAYED_TYPE = "x-delayed-type"
#: A binding's argument: how a headers exchange compares.
X_MATCH = "x-match"

_MAX_NAME_BYTES = 255
_PLAIN = (str, int, float, bytes, type(None))


class ExchangeType(Enum):
    """How an exchange chooses among its bindings."""

    DIRECT = "direct"
    FANOUT = "fanout"
    TOPIC = "topic"
    HEADERS = "headers"
    #: As the type in its argument `x-delayed-type`, when the message's delay is over.
    DELAYED = "x-delayed-message"

    @classmethod
    def parse(cls, name: str) -> "ExchangeType":
        """UnknownExchangeTypeError."""
        try:
            return cls(name)
        except ValueError:
            raise UnknownExchangeTypeError(f"invalid exchange type {name[:80]!r}") from None


class HeadersMatch(Enum):
    """A headers binding's `x-match`: whether all or any of its arguments must match, and whether those whose names
    begin with `x-` count. `x-match` itself never does."""

    ALL = "all"
    ANY = "any"
    ALL_WITH_X = "all-with-x"
    ANY_WITH_X = "any-with-x"

    @property
    def any(self) -> bool:
        return self in (HeadersMatch.ANY, HeadersMatch.ANY_WITH_X)

    @property
    def counts_x(self) -> bool:
        return self in (HeadersMatch.ALL_WITH_X, HeadersMatch.ANY_WITH_X)

    @classmethod
    def of(cls, arguments: Fields) -> "HeadersMatch":
        """What a binding says; ALL if it says nothing. ExchangeArgumentError."""
        said = arguments.get(X_MATCH, cls.ALL.value)
        if not isinstance(said, str):
            raise ExchangeArgumentError(
                f"Invalid {X_MATCH} field type {_type_of(said)} (value {said}); expected longstr"
            )
        try:
            return cls(said)
        except ValueError:
            raise ExchangeArgumentError(
                f'Invalid {X_MATCH} field value <<"{said[:80]}">>; expected all, any, all-with-x, or any-with-x'
            ) from None


@dataclass(frozen=True, slots=True)
class Exchange:
    """As it was declared. `durable`: outlives the broker; `auto_delete`: goes with the last binding that it is the
    source of; `internal`: takes messages from other exchanges only."""

    name: str
    type: ExchangeType = ExchangeType.DIRECT
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Fields = field(default_factory=dict)

    @property
    def alternate(self) -> str | None:
        """The exchange that gets what matches no binding of this one."""
        return self.arguments.get(ALTERNATE)

    @property
    def routes_as(self) -> ExchangeType:
        """Its type; for one that delays, the type within."""
        return ExchangeType(self.arguments[DELAYED_TYPE]) if self.type is ExchangeType.DELAYED else self.type


class Destination(NamedTuple):
    """Where a binding leads: a queue, or an exchange."""

    name: str
    exchange: bool = False


@dataclass(frozen=True, slots=True)
class Binding:
    """What `source` hands on to `destination`. Two bindings that differ in anything are two bindings."""

    source: str
    destination: Destination
    routing_key: str = ""
    arguments: Fields = field(default_factory=dict)

    @property
    def identity(self) -> tuple[Any, ...]:
        """The same for equal bindings only, and hashable."""
        return (self.source, self.destination, self.routing_key, typed(self.arguments) if self.arguments else ())


#: In every namespace, from the beginning and for good.
PREDECLARED: Mapping[str, Exchange] = {
    exchange.name: exchange
    for exchange in (
        Exchange(DEFAULT_EXCHANGE, ExchangeType.DIRECT),
        Exchange("amq.direct", ExchangeType.DIRECT),
        Exchange("amq.fanout", ExchangeType.FANOUT),
        Exchange("amq.topic", ExchangeType.TOPIC),
        Exchange("amq.headers", ExchangeType.HEADERS),
        Exchange("amq.match", ExchangeType.HEADERS),
        # RabbitMQ's tracing publishes to it, once it is turned on; nothing does here.
        Exchange("amq.rabbitmq.trace", ExchangeType.TOPIC, internal=True),
    )
}


# --- rules --------------------------------------------------------------------------------------------------


def check_not_default(name: str) -> None:
    """ExchangeRefusedError: the default exchange cannot be declared, deleted, bound or unbound."""
    if name == DEFAULT_EXCHANGE:
        raise ExchangeRefusedError("operation not permitted on the default exchange", hint="name an exchange")


def check_new(exchange: Exchange) -> None:
    """Whether an exchange that does not exist may be made like this."""
    check_short(exchange.name, "an exchange's name")
    if exchange.name.startswith(RESERVED_PREFIX):
        raise ExchangeRefusedError(
            f"exchange name {exchange.name[:80]!r} contains reserved prefix '{RESERVED_PREFIX}*'",
            hint="use another name",
        )
    check_arguments(exchange)


def check_arguments(exchange: Exchange) -> None:
    """ExchangeArgumentError for what its type or every exchange gives a meaning to, and which has none."""
    alternate = exchange.arguments.get(ALTERNATE, "")
    if not isinstance(alternate, str):
        raise ExchangeArgumentError(
            f"invalid type '{_type_of(alternate)}' for arg {ALTERNATE!r} in exchange {exchange.name[:80]!r}",
            hint="name an exchange",
        )
    if exchange.type is ExchangeType.DELAYED:
        within = exchange.arguments.get(DELAYED_TYPE)
        if within not in [kind.value for kind in ExchangeType if kind is not ExchangeType.DELAYED]:
            raise ExchangeArgumentError(
                f"invalid argument, {DELAYED_TYPE!r} must be an existing exchange type",
                hint="use direct, fanout, topic or headers",
            )


def check_equivalent(there: Exchange, wanted: Exchange) -> None:
    """InequivalentExchangeError unless declaring `wanted` is the same as what is there. Of the arguments, those
    count that change where messages go."""
    for what, current, received in (
        ("type", there.type.value, wanted.type.value),
        ("durable", there.durable, wanted.durable),
        ("auto_delete", there.auto_delete, wanted.auto_delete),
        ("internal", there.internal, wanted.internal),
        (ALTERNATE, there.arguments.get(ALTERNATE), wanted.arguments.get(ALTERNATE)),
        (DELAYED_TYPE, there.arguments.get(DELAYED_TYPE), wanted.arguments.get(DELAYED_TYPE)),
    ):
        if current != received:
            both = current is not None and received is not None
            said = _said if both or what not in (ALTERNATE, DELAYED_TYPE) else _said_argument
            raise InequivalentExchangeError(
                f"inequivalent arg {what!r} for exchange {there.name!r}: "
                f"received {said(received)} but current is {said(current)}"
            )


def check_deletion(name: str) -> None:
    """ExchangeRefusedError for those that are there for good."""
    check_not_default(name)
    if name.startswith(RESERVED_PREFIX):
        raise ExchangeRefusedError(f"deletion of system exchange {name!r} not allowed", hint="delete your own")


def check_publishable(exchange: Exchange) -> None:
    """ExchangeRefusedError for one that takes messages from other exchanges only."""
    if exchange.internal:
        raise ExchangeRefusedError(
            f"cannot publish to internal exchange {exchange.name!r}", hint="publish to one that is bound to it"
        )


def check_binding(source: Exchange, binding: Binding) -> None:
    """Whether the source can make anything of it: a headers exchange must know how to compare."""
    check_short(binding.routing_key, "a routing key")
    check_short(binding.destination.name, "a name")
    if source.routes_as is ExchangeType.HEADERS:
        HeadersMatch.of(binding.arguments)


def check_short(text: str, what: str) -> None:
    """InvalidNameError for what no short string of AMQP can hold."""
    if len(text.encode("utf-8", "surrogatepass")) > _MAX_NAME_BYTES:
        raise InvalidNameError(f"{text[:80]!r} is too long for {what}", hint=f"at most {_MAX_NAME_BYTES} bytes")


def _said(value: object) -> str:
    if value is None:
        return "none"
    return f"'{value}'".lower() if isinstance(value, bool) else f"'{value}'"


def _said_argument(value: object) -> str:
    return "none" if value is None else f"the value {_said(value)} of type '{_type_of(value)}'"


def _type_of(value: object) -> str:
    """As RabbitMQ calls it; the width of a number is not known any more."""
    kinds = ((bool, "bool"), (int, "signedint"), (float, "double"), (str, "longstr"), (bytes, "binary"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "table")


# --- values of tables ---------------------------------------------------------------------------------------


def typed(value: FieldValue) -> Any:
    """Hashable, and equal for values of the same type and content only."""
    if isinstance(value, _PLAIN):
        return (type(value).__name__, value)
    if isinstance(value, Mapping):
        return ("F", tuple((name, typed(value[name])) for name in sorted(value)))
    if isinstance(value, Sequence):
        return ("A", tuple(typed(item) for item in value))
    if isinstance(value, Decimal):
        return ("D", value.as_tuple())
    return (type(value).__name__, value)


def comparable(value: FieldValue) -> Any:
    """Hashable, and equal where a headers exchange takes a message's value for a binding's: numbers by value,
    texts and bytes alike, a time as its seconds; true is no number."""
    kind = type(value)
    if kind is str or kind is int or kind is float:
        return value
    if isinstance(value, bool):
        return ("t", value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "surrogateescape")
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, str | int | float):
        return value
    return typed(value)


# --- as they are stored ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredExchange:
    """An exchange in the metadata. `id`: no other exchange has it, not even one of the same name later, so
    what a deleted one left is not taken for its successor's. `closing`: whoever finds nothing bound from it may
    delete it; whoever binds takes the mark off. `holder`: the life of the broker that a transient one goes
    with."""

    exchange: Exchange
    id: str
    closing: bool = False
    holder: str = ""


@dataclass(frozen=True, slots=True)
class StoredBinding:
    """A binding in the metadata. It holds while the exchanges with these ids are there; predeclared ones and
    queues have none. `holder`: the life of the broker that it goes with, if not both of its ends are durable."""

    binding: Binding
    source_id: str = ""
    destination_id: str = ""
    holder: str = ""


StoredRecord: TypeAlias = StoredExchange | StoredBinding
