"""Every format in which batches are stored, and batches of one translated for readers of another.

A batch is opened only here, and only where it was written by another protocol than it is read by, or where a part
of it is no longer to be seen. Every message keeps its offset. What cannot be opened is not lost: it is one message
that stands for all, with the stored bytes and the reason in a header.

A stored batch as the bytes that Pulsar's and Kafka's consumers read (`weir.wire.formats`).
"""

from collections.abc import Mapping
from typing import NamedTuple

from weir.model.batch import Batch, BatchFlags, BatchFormat
from weir.model.check import STEP_MESSAGES, Steps, finish
from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.model.messages import Message
from weir.wire.formats.format import Format, Keyed, Keys, Translated
from weir.wire.formats.kafka import KafkaFormat, empty_records
from weir.wire.formats.marker import MarkerFormat
from weir.wire.formats.messages import MessagesFormat
from weir.wire.formats.pulsar import PulsarFormat

__all__ = [
    "FORMATS",
    "UNREADABLE",
    "Format",
    "Keyed",
    "Keys",
    "Translated",
    "messages_of",
    "opening",
    "translated",
    "translation",
]

#: Why a batch could not be opened.
UNREADABLE = "weir-unreadable"

_ALL: tuple[Format, ...] = (PulsarFormat(), KafkaFormat(), MessagesFormat(), MarkerFormat())
FORMATS: Mapping[BatchFormat, Format] = {known.tag: known for known in _ALL}


def messages_of(batch: Batch) -> list[Message]:
    """The messages of a batch, one for each of its offsets; or a single one that stands for all of them."""
    return finish(opening(batch))


def opening(batch: Batch) -> Steps[list[Message]]:
    """The same in steps."""
    found: list[Message] = []
    try:
        for message in FORMATS[batch.format].split(batch):
            found.append(message)
            if not len(found) % STEP_MESSAGES:
                yield STEP_MESSAGES
        if len(found) not in (1, batch.count):
            raise WireError(f"{len(found)} messages have {batch.count} offsets")
    except WireError as bad:
        reason = str(bad).encode()
        return [Message(None, batch.payload, [(UNREADABLE, reason)], publish_ms=batch.append_ms)]
    return found


def translated(batch: Batch, into: BatchFormat, wanted: int | None = None) -> Translated:
    """The batch for readers of a format; as it came if it is of that format. `wanted`: a bit per message that is
    to be seen (None: all)."""
    return finish(translation(batch, into, wanted))


def translation(batch: Batch, into: BatchFormat, wanted: int | None = None) -> Steps[Translated]:
    """The same in steps: a batch may have hundreds of thousands of messages."""
    reader = FORMATS[into]
    if batch.format is into:
        return reader.own(batch, wanted)
    messages = yield from opening(batch)
    return (yield from reader.join(batch, messages, wanted))


#: Nearly every batch: an identity is cheaper than arithmetic on flags.
_PLAIN = BatchFlags.NONE


class PulsarEntry(NamedTuple):
    """A batch as Pulsar's consumers read it. `messages`: how many they find in it."""

    payload: Buffer
    messages: int


def pulsar_entry(batch: Batch) -> PulsarEntry:
    """The batch from Pulsar's magic on, as it follows a CommandMessage; as it came if Pulsar wrote it."""
    return finish(pulsar_entry_in_steps(batch))


def pulsar_entry_in_steps(batch: Batch) -> Steps[PulsarEntry]:
    (payload,), messages = yield from translation(batch, BatchFormat.PULSAR)
    return PulsarEntry(payload, messages)


def opened_size(batch: Batch) -> int:
    """About how many bytes the batch has when it is opened, without opening it."""
    return FORMATS[batch.format].opened_size(batch)


def kafka_records(batch: Batch, wanted: int | None = None) -> list[Buffer]:
    """The batch as Kafka's consumers read it, in pieces; as it came, at its offset, if Kafka wrote it. `wanted`: a
    bit per message that is to be seen (None: all); the offsets of the others stay empty."""
    return finish(kafka_records_in_steps(batch, wanted))


def kafka_records_in_steps(batch: Batch, wanted: int | None = None) -> Steps[list[Buffer]]:
    if batch.flags is not _PLAIN:
        hidden = batch.flags & (BatchFlags.HIDDEN | BatchFlags.PRIVATE)
        if hidden or (batch.flags & BatchFlags.CONTROL and batch.format is not BatchFormat.KAFKA):
            return [empty_records(batch)]
    return (yield from translation(batch, BatchFormat.KAFKA, wanted)).pieces
