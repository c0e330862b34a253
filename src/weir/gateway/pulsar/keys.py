"""The key of a stored Pulsar message, which decides its consumer on a key-shared subscription."""

from weir.model.batch import Batch
from weir.model.errors import WireError
from weir.wire.pulsar.message import parse_metadata, split_message, sticky_key


def keys_of(batch: Batch) -> bytes | None:
    """One key for the whole batch, as in Pulsar: consumers acknowledge whole batches, so a batch is not cut up.
    Producers for key-shared subscriptions batch by key."""
    try:
        return sticky_key(parse_metadata(split_message(memoryview(batch.payload), verify=False)))
    except WireError:
        return None
