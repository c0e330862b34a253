"""A stored batch as the bytes of a Pulsar message: as it came, or translated, lazily, for whoever reads it."""

from weir.model.batch import Batch, BatchFormat
from weir.model.steps import STEP_MESSAGES
from weir.wire.pulsar.cutting import Part, cut_entry
from weir.wire.translation import PulsarEntry, pulsar_entry, pulsar_entry_in_steps

#: Half the cost of calling the class, which matters once per entry.
_new = tuple.__new__


def translate(batch: Batch) -> PulsarEntry:
    """The message from its magic on, as it follows a CommandMessage, and how many a client counts in it."""
    if batch.format is BatchFormat.PULSAR:
        return _new(PulsarEntry, (batch.payload, batch.count))
    return pulsar_entry(batch)


def cut(entry: PulsarEntry, batch: Batch, wanted: int, *, separate: bool) -> list[Part] | None:
    """Those of its messages that are wanted, neighbors as one entry, or each as its own if `separate`; None if it
    cannot be cut."""
    if entry.messages != batch.count:  # one message that stands for a batch which cannot be opened
        return None
    return cut_entry(entry.payload, batch.count, wanted, separate=separate)


def is_long(batch: Batch) -> bool:
    """Whether others should have their turn while the batch is translated."""
    return batch.format is not BatchFormat.PULSAR and batch.count > STEP_MESSAGES


translate_in_steps = pulsar_entry_in_steps
