"""A stored batch as the bytes that Pulsar's and Kafka's consumers read (`weir.wire.formats`)."""

from typing import NamedTuple

from weir.model.batch import Batch, BatchFlags, BatchFormat
from weir.model.ids import Buffer
from weir.model.steps import Steps, finish
from weir.wire.formats import FORMATS, translation
from weir.wire.formats.kafka import empty_records

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
