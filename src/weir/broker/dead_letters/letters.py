"""Dead letters and parcels: conversion of messages to dead letters and back, and the record of a sent batch.

A parcel is a batch of dead letters that the broker sends together; the topic's state stores it until it has
arrived. It records messages, reason and destinations before the broker sends anything: a broker that loads the
topic sends the same letters again. The destination deduplicates parcels by their number.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pyroaring import BitMap64

from weir.broker.log.log_feed import Source
from weir.model.batch import BatchFlags, Run, Stamp
from weir.model.errors import OffsetTrimmedError, WireError
from weir.model.messages import NAMES, Death, Message, death_in
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import Turns
from weir.wire.amqp.dead_letter import DeadLetter, Reason, dead_letter, due_message, revived, with_fields
from weir.wire.formats.table import opening

#: State key of the pending parcel of a topic's queue, and of the number of its last parcel.
PARCEL_KEY = "dead-letters"
#: Sender ids of subscriptions: outside of the range that coordinators assign to producers.
FIRST_ID = 1 << 62
ID_BITS = 60
#: A stamp's epoch has 15 bits: a sender id is good for 2^15 parcels, then the next id follows.
_EPOCH_BITS = 15


def parcel_key(subscription: str) -> str:
    """The state key of a subscription's parcels."""
    return PARCEL_KEY if subscription == QUEUE_SUBSCRIPTION else f"{PARCEL_KEY}/{subscription}"


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of dead letters: an exchange (routed by `key`, or by their own keys if that is None), a
    topic, or, if neither is set, the topics of their origin or `back_to` instead (redrive)."""

    exchange: str | None = None
    key: str | None = None
    topic: str | None = None
    back_to: str | None = None

    @property
    def is_back(self) -> bool:
        return self.exchange is None and self.topic is None


@dataclass(frozen=True, slots=True)
class DeadLetterBatch:
    """`reason`, `to`, `at_ms` and `deliveries` are the contents of the letters: they make the same letters from
    the same messages. `targets`: ascending offsets of the messages for each queue or topic. `deliveries`: delivery
    counts above 0 by offset."""

    reason: Reason
    to: Destination
    at_ms: int
    targets: Mapping[str, Sequence[Run]]
    deliveries: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sent:
    """`sender`: the subscription's sender id. `number`: number of the last parcel. `parcel`: that parcel while
    pending."""

    sender: int
    number: int
    parcel: DeadLetterBatch | None = None

    @property
    def stamp(self) -> Stamp:
        """A stamp that is unique to the parcel; a later parcel to the same queue has a higher epoch or id."""
        return Stamp(self.sender + (self.number >> _EPOCH_BITS), self.number & ((1 << _EPOCH_BITS) - 1), 0)

    def encode(self) -> bytes:
        fields: dict[str, object] = {"sender": self.sender, "number": self.number}
        parcel = self.parcel
        if parcel is not None:
            fields["parcel"] = {
                "reason": parcel.reason.value,
                "exchange": parcel.to.exchange,
                "key": parcel.to.key,
                "topic": parcel.to.topic,
                "back_to": parcel.to.back_to,
                "at_ms": parcel.at_ms,
                "targets": {name: [list(run) for run in runs] for name, runs in parcel.targets.items()},
                "deliveries": [list(one) for one in parcel.deliveries.items()],
            }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Sent":
        """Raises WireError if the data is malformed."""
        try:
            fields = json.loads(data)
            found = fields.get("parcel")
            parcel = None
            if found is not None:
                targets = {
                    str(name): tuple((int(first), int(end)) for first, end in runs)
                    for name, runs in found["targets"].items()
                }
                names = (found["exchange"], found["key"], found.get("topic"), found.get("back_to"))
                to = Destination(*map(_text, names))
                deliveries = {int(offset): int(count) for offset, count in found.get("deliveries", ())}
                parcel = DeadLetterBatch(Reason(found["reason"]), to, int(found["at_ms"]), targets, deliveries)
            return cls(int(fields["sender"]), int(fields["number"]), parcel)
        except (ValueError, KeyError, TypeError, AttributeError) as bad:
            raise WireError(f"the dead letter record of the subscription is malformed: {bad!r}") from bad


def _text(found: object) -> str | None:
    return None if found is None else str(found)


log = logging.getLogger(__name__)

#: Limit of the bytes of a parcel, which its last letter may exceed.
_MOST_BYTES = 512 * 1024
#: Letters per turn of the event loop.
_AT_ONCE = 32


class Origin(NamedTuple):
    """The source of dead letters. `queue`: its name for AMQP clients. `topic`: None for an in-memory queue."""

    queue: str
    topic: TopicName | None
    subscription: str


class Letter(NamedTuple):
    """`routed`: routing data if the destination is an exchange. `back`: the topic of origin if the letter
    returns."""

    message: Message
    routed: DeadLetter | None = None
    back: TopicName | None = None

    @property
    def persistent(self) -> bool:
        return self.routed is None or self.routed.persistent


class Deaths:
    """Messages with the same reason and destination. `deliveries`: delivery counts above 0 by offset."""

    __slots__ = ("at_ms", "deliveries", "offsets", "reason", "to")

    def __init__(
        self,
        offsets: BitMap64,
        reason: Reason,
        to: Destination,
        at_ms: int,
        deliveries: Mapping[int, int] | None = None,
    ) -> None:
        self.offsets = offsets
        self.reason = reason
        self.to = to
        self.at_ms = at_ms
        self.deliveries = deliveries or {}

    def like(self, other: "Deaths") -> bool:
        """Whether one parcel can contain both. Times are compared in seconds."""
        return (self.reason, self.to, self.at_ms // 1000) == (other.reason, other.to, other.at_ms // 1000)


class LetterMaker:
    """Makes the letters of one subscription, deterministically: same messages and deaths, same letters."""

    def __init__(self, origin: Origin, source: Source, clock: Clock) -> None:
        self._origin = origin
        self._source = source
        self._turns = Turns(clock)
        #: The last decoded batch: its base offset, append time and messages.
        self._opened: tuple[int, int, list[Message]] | None = None

    async def letters(self, offsets: BitMap64, deaths: Deaths) -> "dict[int, Letter | None]":
        """Make letters for the first messages, up to the size of a parcel, by offset; None for a message that was
        trimmed or cannot be decoded."""
        found: dict[int, Letter | None] = {}
        size = 0
        for offset in offsets:
            stored = await self._message(offset)
            found[offset] = None if stored is None else self.letter(stored[0], deaths, offset, stored[1])
            size += 0 if stored is None else len(stored[0].value or b"")
            if size >= _MOST_BYTES:
                break
            if not len(found) % _AT_ONCE:
                await self._turns.next()
        return found

    def letter(
        self, message: Message, deaths: Deaths, offset: int | None = None, stored_ms: int = 0
    ) -> Letter | None:
        """`offset`: None for a message that was never in the log."""
        try:
            if deaths.to.is_back:
                return _sent_back(message, deaths.to.back_to)
            if deaths.reason is Reason.DUE:
                due = due_message(message)
                return Letter(due.message, due)
            death = self._death(deaths, offset, stored_ms)
            plain = _without_deaths(message)
            if deaths.to.exchange is None:
                return Letter(with_fields(plain, death))
            made = dead_letter(
                plain,
                deaths.reason,
                queue=self._origin.queue,
                exchange=deaths.to.exchange,
                key=deaths.to.key,
                now_ms=deaths.at_ms,
            )
        except WireError as bad:
            log.error("%s: message dropped, it cannot be decoded: %s", self._origin.queue, bad)
            return None
        # RabbitMQ's headers are in the message that AMQP consumers get; other protocols and redrive use Weir's
        # headers.
        return Letter(replace(made.message, headers=[*made.message.headers, *death]), made)

    def _death(self, deaths: Deaths, offset: int | None, stored_ms: int) -> list[tuple[str, bytes | None]]:
        """Headers that describe the death; none for a message that was never in a topic."""
        topic = self._origin.topic
        if offset is None or topic is None:
            return []
        deliveries, subscription = deaths.deliveries.get(offset, 0), self._origin.subscription
        return Death(
            deaths.reason.value, deliveries, topic, offset, subscription, stored_ms, deaths.at_ms
        ).headers()

    async def _message(self, offset: int) -> tuple[Message, int] | None:
        if self._opened is not None:
            base, stored_ms, messages = self._opened
            if base <= offset < base + len(messages):
                return messages[offset - base], stored_ms
        try:
            batches = await self._source.read(max(offset, self._source.start_offset), 1)
        except OffsetTrimmedError:
            return None
        batch = batches[0] if batches else None
        if batch is None or not batch.base_offset <= offset < batch.end_offset or batch.flags & BatchFlags.NOTHING:
            return None
        messages = await self._turns.through(opening(batch))
        if len(messages) != batch.count:  # opaque: one message represents the batch
            return (messages[0], batch.append_ms) if offset == batch.base_offset else None
        self._opened = (batch.base_offset, batch.append_ms, messages)
        return messages[offset - batch.base_offset], batch.append_ms


def _without_deaths(message: Message) -> Message:
    if not any(name in NAMES for name, _ in message.headers):
        return message
    return replace(message, headers=[header for header in message.headers if header[0] not in NAMES])


def _sent_back(letter: Message, to: str | None) -> Letter | None:
    """The original message. `to`: replaces the topic of origin; None if neither names a topic."""
    death = death_in(letter.headers)
    if to is None and death is None:
        return None
    back = TopicName.parse(to) if to is not None else death.topic if death is not None else None
    return Letter(revived(letter, *(NAMES if death is None else death.names)), back=back)
