"""A stored batch as the bytes of a Pulsar message: as it came, or translated, lazily, for whoever reads it."""

from collections.abc import Sequence

from weir.broker.api import Delivery
from weir.model.batch import Batch, BatchFormat
from weir.wire.translation import PulsarEntry, pulsar_entry

#: Messages that are translated in one go; it takes some ten microseconds for each of them.
_TURN_MESSAGES = 1_000
#: Half the cost of calling the class, which matters once per entry.
_new = tuple.__new__


def translate(batch: Batch) -> PulsarEntry:
    """The message from its magic on, as it follows a CommandMessage, and how many a client counts in it."""
    if batch.format is BatchFormat.PULSAR:
        return _new(PulsarEntry, (batch.payload, batch.count))
    return pulsar_entry(batch)


def turn_of(deliveries: Sequence[Delivery]) -> int:
    """How many of the deliveries, from the first on, may be translated before others have their turn."""
    translated = 0
    for number, delivery in enumerate(deliveries):
        if translated >= _TURN_MESSAGES:
            return number
        if delivery.batch.format is not BatchFormat.PULSAR:
            translated += delivery.batch.count
    return len(deliveries)
