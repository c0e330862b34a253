"""The keys of stored Kafka records, which decide their consumers on a key-shared subscription."""

from collections.abc import Sequence

from weir.model.batch import Batch
from weir.model.errors import WireError
from weir.wire.kafka.translation import sticky_keys


def keys_of(batch: Batch) -> Sequence[bytes | None] | None:
    """One key for each record: Kafka's producers batch by partition, not by key. None if it cannot be opened."""
    try:
        keys = sticky_keys(batch.payload)
    except WireError:
        return None
    return keys if len(keys) == batch.count else None
