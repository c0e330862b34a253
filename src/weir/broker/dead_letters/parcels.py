"""Parcels: dead letters that leave a subscription together, as its topic's state keeps them until they arrived.

A parcel says which messages die, why, and where each goes, before anything is sent: whoever finds one sends the
same again. Its number makes it known where it arrives, so that there it is taken in once.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weir.model.batch import Stamp
from weir.model.bits import Run
from weir.model.errors import WireError
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.wire.amqp.death import Reason

#: Where a topic's state keeps the parcel under way of the queue that it is, and the number of the last one.
PARCEL_KEY = "dead-letters"
#: Ids of subscriptions as senders: far from those that coordinators give to producers.
FIRST_ID = 1 << 62
ID_BITS = 60
#: A stamp's epoch has 15 bits; an id is used for so many parcels, then the next one.
_EPOCH_BITS = 15


def parcel_key(subscription: str) -> str:
    """Where a topic's state keeps those of a subscription."""
    return PARCEL_KEY if subscription == QUEUE_SUBSCRIPTION else f"{PARCEL_KEY}/{subscription}"


@dataclass(frozen=True, slots=True)
class Destination:
    """Where dead letters go: to an exchange, by `key` or their own keys if that is None; or to a topic; or, if it
    is neither, back to the topics that they came from, or to `back_to` instead of those."""

    exchange: str | None = None
    key: str | None = None
    topic: str | None = None
    back_to: str | None = None

    @property
    def is_back(self) -> bool:
        return self.exchange is None and self.topic is None


@dataclass(frozen=True, slots=True)
class Parcel:
    """`reason`, `to`, `at_ms`, `deliveries`: what the letters say; with these the same letters are made of the
    same messages. `targets`: the messages of each queue, or topic, that they go to, by their offsets, ascending.
    `deliveries`: how often those were delivered that were, by their offsets."""

    reason: Reason
    to: Destination
    at_ms: int
    targets: Mapping[str, Sequence[Run]]
    deliveries: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sent:
    """`sender`: the subscription's id; `number`: of the last parcel. `parcel`: that one, while it is under way."""

    sender: int
    number: int
    parcel: Parcel | None = None

    @property
    def stamp(self) -> Stamp:
        """The same for no other parcel; of two parcels to one queue the later one has the higher epoch or id."""
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
        """WireError if it is none."""
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
                parcel = Parcel(Reason(found["reason"]), to, int(found["at_ms"]), targets, deliveries)
            return cls(int(fields["sender"]), int(fields["number"]), parcel)
        except (ValueError, KeyError, TypeError, AttributeError) as bad:
            raise WireError(f"what a subscription has sent is malformed: {bad!r}") from bad


def _text(found: object) -> str | None:
    return None if found is None else str(found)
