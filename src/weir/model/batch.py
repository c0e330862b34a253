"""A producer's batch as the log keeps it: opaque bytes with a few facts beside them.

Messages of a batch as the bits of one number, and as runs of neighbours; both ways in time linear in the batch.

By way of text: shifting a number of 100,000 bits once per bit takes time with the square of its length, which a
client's acknowledgement of every other message would cost the whole broker.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag

from weir.model.ids import Buffer, value


class BatchFormat(IntEnum):
    """Whose bytes the payload holds."""

    #: From a Pulsar send frame: magic, checksum, metadata size, MessageMetadata, payload, as they came.
    PULSAR = 1
    #: A Kafka record batch, version 2.
    KAFKA = 2
    #: Weir's own, for protocols that send one message at a time.
    MESSAGES = 3
    #: Weir's own, for the marker that decides a transaction.
    MARKER = 4


class BatchFlags(IntFlag):
    NONE = 0
    #: Waited in the holding area; `Batch.held` says under which id.
    RELEASED = 1
    #: Carries no messages for consumers (a transaction marker, a tombstone of the log itself).
    CONTROL = 2
    #: Part of a transaction; `Batch.stamp` says of whose. With CONTROL: the marker that decides it.
    TRANSACTIONAL = 4
    #: With CONTROL and TRANSACTIONAL: the transaction is aborted. A marker without it commits.
    ABORT = 8
    #: With TRANSACTIONAL: delayed messages, which nobody sees here. They are held when it is committed.
    HIDDEN = 16
    #: For one subscription alone: `Batch.origin` is `Addressed`. Not a bit of a stored batch: its origin says it.
    PRIVATE = 32
    #: With CONTROL: a stand-in for messages that are lost, because every copy of them is damaged. Never stored: it
    #: has no room in a stored batch's flags, so that storing one fails.
    LOST = 256
    #: Either of these: there is nothing in it for consumers.
    NOTHING = CONTROL | HIDDEN
    #: Or nothing for whoever reads the log: a subscription asks whether it is meant (`Screen`).
    UNSEEN = NOTHING | PRIVATE


#: Of a producer's name, as UTF-8.
MAX_PRODUCER_NAME_BYTES = 4096


@value
class Origin:
    """Who sent it, for deduplication: the highest sequence id in the batch of this producer."""

    producer: str
    sequence: int


@value
class MovedFrom:
    """Instead of a producer, the broker itself: the batch lay hidden at this offset of the same log until its
    transaction was committed. A type of its own, so that nothing a producer calls itself can equal it."""

    offset: int


@value
class Prepared:
    """Instead of a producer, a half message in the holding area: who can be asked what became of it, when it was
    prepared, and for how long nobody is."""

    group: str
    prepared_ms: int
    recovery_ms: int


@value
class Addressed:
    """Instead of a producer: the only subscription that gets the batch, though all others come past it."""

    subscription: str


@value
class Stamp:
    """An idempotent producer's mark: its id, which of its lives (`epoch`) sent the batch, and the sequence number
    of the first message (-1: none, as in a marker)."""

    producer_id: int
    epoch: int
    sequence: int = -1
    #: Of the bytes as the producer sent them: what repeats its numbers is the same batch only if this is the same.
    #: 0 where it is not known.
    checksum: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class HeldId:
    """A message's place in the holding area."""

    ledger: int
    entry: int


@value
class Batch:
    """`count` messages with dense offsets from `base_offset` on."""

    base_offset: int
    count: int
    format: BatchFormat
    append_ms: int
    payload: Buffer
    flags: BatchFlags = BatchFlags.NONE
    origin: Origin | MovedFrom | Prepared | Addressed | None = None
    held: HeldId | None = None
    stamp: Stamp | None = None

    @property
    def end_offset(self) -> int:
        """The offset after its last message."""
        return self.base_offset + self.count

    def __len__(self) -> int:
        return len(self.payload)


#: [first, end).
Run = tuple[int, int]

_ONES = re.compile("1+")


def runs_of(bits: int, base: int = 0) -> list[Run]:
    """The runs of bits that are set, `base` added to both ends; in ascending order."""
    return [(base + run.start(), base + run.end()) for run in _ONES.finditer(f"{bits:b}"[::-1])]


def bits_of_runs(runs: Iterable[Run], base: int = 0) -> int:
    """The number with these runs of bits set, counted from `base`; they ascend, and do not overlap."""
    parts: list[str] = []
    at = base
    for first, end in runs:
        parts.append("0" * (first - at))
        parts.append("1" * (end - first))
        at = end
    return int("".join(parts)[::-1] or "0", 2)


def bits_at(indices: Iterable[int], count: int) -> int:
    """The number with these bits set, of `count` that there are."""
    digits = bytearray(b"0") * count
    for index in indices:
        digits[index] = 0x31
    digits.reverse()
    return int(digits or b"0", 2)


def indices_of(bits: int) -> list[int]:
    """Which bits are set, in ascending order."""
    return [index for first, end in runs_of(bits) for index in range(first, end)]
