"""Dead letters: a stored message as it goes on from the queue that has given it up, with `x-death` telling of it.

    x-death: an array of tables, the latest death first
    {count l, reason S, queue S, time T (seconds), exchange S, routing-keys A of S, [original-expiration S]}

Deaths of the same queue and reason are one entry, which moves to the front and counts. What is said, and in which
types, is RabbitMQ's. A message of another protocol has the same in headers, and stays what it is otherwise.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from weir.model.ids import value
from weir.model.messages import Message
from weir.wire.amqp.content import envelope, native_of, opened_envelope, split_native
from weir.wire.amqp.message import OMITTED, TYPED, message_of, properties_of
from weir.wire.amqp.methods import basic
from weir.wire.amqp.properties import PERSISTENT, Properties, decode_properties, encode_properties
from weir.wire.amqp.tables import NO_FIELDS, Field, Table, field_of, plain_fields, readable

DEATHS = "x-death"
FIRST_QUEUE, FIRST_REASON, FIRST_EXCHANGE = "x-first-death-queue", "x-first-death-reason", "x-first-death-exchange"
_OURS = (FIRST_REASON, FIRST_QUEUE, FIRST_EXCHANGE, DEATHS)
CARBON_COPY, BLIND_COPY = "CC", "BCC"
_EXPIRATION = "amqp-expiration"
#: Of a message of another protocol: what is more than a frame holds is told by headers alone.
_MOST_NATIVE_BYTES = 64 * 1024


class Reason(Enum):
    """Why a queue gave a message up."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAX_LENGTH = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"
    #: None of them: it waited there until it was due, and is routed now.
    DUE = "due"
    #: None of them: a dead letter that is put back where it came from.
    REDRIVEN = "redriven"


@value
class DeadLetter:
    """What goes on, and by what it is routed. `deaths`: the entries of `x-death`, this one first."""

    message: Message
    reason: Reason
    keys: tuple[str, ...]
    properties: Properties
    deaths: tuple[Field, ...]

    @property
    def headers(self) -> Mapping[str, Any]:
        """As exchanges compare them."""
        table = self.properties.headers
        return {} if table is None else plain_fields(table)

    @property
    def persistent(self) -> bool:
        """Whether it must outlive the broker; so must everything that did not come by AMQP."""
        mode = self.properties.delivery_mode
        return mode == PERSISTENT if split_native(self.message) is not None and mode is not None else True

    def cycles(self, queue: str) -> bool:
        """Whether the queue had it before, and nothing but the broker's own doing brought it back: it would go
        round for ever. Who rejects a message, and gets it again, means it."""
        if self.reason is Reason.REJECTED:
            return False
        for death in self.deaths:
            table = death.value
            if not isinstance(table, Table) or table.get("reason") == Reason.REJECTED.value:
                return False
            if table.get("queue") == queue:
                return True
        return False


def dead_letter(
    message: Message, reason: Reason, *, queue: str, exchange: str, key: str | None, now_ms: int
) -> DeadLetter:
    """The message as the queue hands it to the dead letter exchange: by `key`, or by its own keys if that is None.
    It does not expire any more, or it would do so again and again. WireError if what was stored is damaged."""
    native = split_native(message)
    if native is None:
        came_by, own = "", queue
        said = properties_of(message)
    else:
        came_by, own = opened_envelope(native[0])
        said = decode_properties(native[1])
    table = NO_FIELDS if said.headers is None else said.headers
    copies = tuple(_copies(table))
    death: dict[str, Any] = {
        "count": Field("l", 1),
        "reason": reason.value,
        "queue": queue,
        "time": Field("T", max(0, now_ms) // 1000),
        "exchange": came_by,
        "routing-keys": [own, *copies],
    }
    if said.expiration is not None:
        death["original-expiration"] = said.expiration
    deaths = _deaths(table, Table.of(death), queue, reason)
    fields = [*table.without(DEATHS, *((CARBON_COPY,) if key is not None else ())).fields]
    if DEATHS not in table:
        fields = [field for field in fields if field[0] not in _OURS]
        fields += [
            (FIRST_REASON, Field("S", reason.value)),
            (FIRST_QUEUE, Field("S", queue)),
            (FIRST_EXCHANGE, Field("S", came_by)),
        ]
    fields.append((DEATHS, Field("A", deaths)))
    said = replace(said, headers=Table.of(fields), expiration=None)
    onward = basic.Publish(exchange, own if key is None else key)
    body = b"" if message.value is None else message.value
    made = message_of(onward, said, body, message.publish_ms)
    if native is None:
        made = _foreign(message, made, said, onward)
    return DeadLetter(made, reason, (own, *copies) if key is None else (key,), said, deaths)


def due_message(message: Message) -> DeadLetter:
    """A message that waited until it was due, as its exchange routes it now: as it was published, and by all the
    keys that it was published with. WireError if what was stored is damaged."""
    native = split_native(message)
    if native is None:
        said = properties_of(message)
        return DeadLetter(message, Reason.DUE, ("",), said, ())
    exchange, own = opened_envelope(native[0])
    said = decode_properties(native[1])
    table = NO_FIELDS if said.headers is None else said.headers
    keys = (own, *_copies(table))
    if BLIND_COPY in table:
        said = replace(said, headers=table.without(BLIND_COPY))
        body = b"" if message.value is None else message.value
        message = message_of(basic.Publish(exchange, own), said, body, message.publish_ms)
    return DeadLetter(message, Reason.DUE, keys, said, ())


def _deaths(table: Table, death: Table, queue: str, reason: Reason) -> tuple[Field, ...]:
    """With the new one; what was no array was a client's, and counts for nothing."""
    known = table.get(DEATHS)
    if not isinstance(known, tuple):
        return (field_of(death),)
    there = [entry for entry in known if isinstance(entry, Field)]
    same = [entry.value for entry in there if _is_of(entry.value, queue, reason)]
    if same and isinstance(same[0], Table):
        before = same[0].get("count")
        count = before + 1 if isinstance(before, int) else 1
        death = Table.of([("count", Field("l", count)), *same[0].without("count").fields])
    return (field_of(death), *(entry for entry in there if not _is_of(entry.value, queue, reason)))


def _is_of(entry: object, queue: str, reason: Reason) -> bool:
    return isinstance(entry, Table) and entry.get("queue") == queue and entry.get("reason") == reason.value


def _copies(table: Table) -> Iterator[str]:
    """Keys that its publisher named besides the first."""
    for name in (CARBON_COPY, BLIND_COPY):
        found = table.get(name)
        for entry in found if isinstance(found, tuple) else ():
            if isinstance(entry, Field) and isinstance(entry.value, str):
                yield entry.value


def _foreign(message: Message, made: Message, said: Properties, onward: basic.Publish) -> Message:
    """A message of another protocol with its own headers as they were, and those that tell of its death."""
    told = NO_FIELDS if said.headers is None else said.headers
    gone = {TYPED, _EXPIRATION, *_OURS, *(() if CARBON_COPY in told else (CARBON_COPY,))}
    headers = [header for header in message.headers if header[0] not in gone]
    headers += [(name, readable(field)) for name, field in told.fields if name in _OURS]
    headers += [header for header in made.headers if header[0] == TYPED]
    native = message.native
    if native is None:
        properties = encode_properties(said)
        if len(properties) <= _MOST_NATIVE_BYTES and OMITTED not in told:
            native = native_of(envelope(onward.exchange, onward.routing_key), properties)
    return replace(message, headers=headers, native=native)


# --- dead letters of subscriptions, and the way back -----------------------------------------------------------


def with_fields(message: Message, headers: Sequence[tuple[str, bytes | None]]) -> Message:
    """A message with more headers, which consumers of AMQP see, too. WireError if what was stored is damaged."""
    native = split_native(message)
    if native is not None:
        said = decode_properties(native[1])
        table = (NO_FIELDS if said.headers is None else said.headers).without(*(name for name, _ in headers))
        more = [(name, Field("S", (value or b"").decode(errors="replace"))) for name, value in headers]
        told = replace(said, headers=Table.of([*table.fields, *more]))
        message = replace(message, native=native_of(native[0], encode_properties(told)))
    return replace(message, headers=[*message.headers, *headers])


def revived(message: Message, *gone: str) -> Message:
    """A dead letter as it was published, by the exchange and key of that time, without the headers `gone`; what
    `x-death` tells stays. WireError if what was stored is damaged."""
    native = split_native(message)
    headers = [header for header in message.headers if header[0] not in gone]
    if native is None:
        return replace(message, headers=headers)
    came_by = native[0]
    said = decode_properties(native[1])
    table = NO_FIELDS if said.headers is None else said.headers
    deaths = table.get(DEATHS)
    last = deaths[0].value if isinstance(deaths, tuple) and deaths and isinstance(deaths[0], Field) else None
    if isinstance(last, Table):
        exchange, keys = last.get("exchange"), last.get("routing-keys")
        first = keys[0].value if isinstance(keys, tuple) and keys and isinstance(keys[0], Field) else None
        if isinstance(exchange, str) and isinstance(first, str):
            came_by = envelope(exchange, first)
    said = replace(said, headers=table.without(*gone) if said.headers is not None else None)
    return replace(message, headers=headers, native=native_of(came_by, encode_properties(said)))
