"""Parcels: dead letters that leave a queue together, as the queue's state keeps them until they have arrived.

A parcel says which messages die, why, and where each goes, before anything is sent: whoever finds one sends the
same again. Its number makes it known where it arrives, so that there it is taken in once.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weir.model.batch import Stamp
from weir.model.bits import Run
from weir.model.errors import WireError
from weir.wire.amqp.death import Reason

#: Where a topic's state keeps the parcel under way, and the number of the last one.
PARCEL_KEY = "dead-letters"
#: Ids of queues as senders: far from those that coordinators give to producers.
FIRST_ID = 1 << 62
ID_BITS = 60
#: A stamp's epoch has 15 bits; an id is used for so many parcels, then the next one.
_EPOCH_BITS = 15


@dataclass(frozen=True, slots=True)
class Parcel:
    """`exchange`, `key`, `at_ms`: what the letters say; with these the same letters are made of the same messages.
    `targets`: the messages of each queue that they go to, by their offsets, ascending."""

    reason: Reason
    exchange: str
    key: str | None
    at_ms: int
    targets: Mapping[str, Sequence[Run]]


@dataclass(frozen=True, slots=True)
class Sent:
    """`sender`: the queue's id; `number`: of the last parcel. `parcel`: that one, while it is under way."""

    sender: int
    number: int
    parcel: Parcel | None = None

    @property
    def stamp(self) -> Stamp:
        """The same for no other parcel; of two parcels to one queue the later one has the higher epoch or id."""
        return Stamp(self.sender + (self.number >> _EPOCH_BITS), self.number & ((1 << _EPOCH_BITS) - 1), 0)

    def encode(self) -> bytes:
        fields: dict[str, object] = {"sender": self.sender, "number": self.number}
        if self.parcel is not None:
            fields["parcel"] = {
                "reason": self.parcel.reason.value,
                "exchange": self.parcel.exchange,
                "key": self.parcel.key,
                "at_ms": self.parcel.at_ms,
                "targets": {name: [list(run) for run in runs] for name, runs in self.parcel.targets.items()},
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
                key = found["key"]
                parcel = Parcel(
                    Reason(found["reason"]),
                    str(found["exchange"]),
                    None if key is None else str(key),
                    int(found["at_ms"]),
                    targets,
                )
            return cls(int(fields["sender"]), int(fields["number"]), parcel)
        except (ValueError, KeyError, TypeError, AttributeError) as bad:
            raise WireError(f"what a queue has sent is malformed: {bad!r}") from bad
