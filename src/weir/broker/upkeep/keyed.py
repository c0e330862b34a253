"""The messages of a batch as compaction sees them: key, and whether there is a value.

An empty value is none in Pulsar, and a value like any other in Kafka: each batch goes by its own protocol's word.
"""

from weir.model.batch import Batch
from weir.model.errors import WireError
from weir.stream.compaction import Keyed
from weir.wire.kafka.records_read import iter_records
from weir.wire.pulsar.batch import iter_batch, open_payload
from weir.wire.pulsar.message import is_batch, message_key, parse_metadata, split_message


def pulsar_keyed(batch: Batch) -> list[Keyed]:
    """Each message's key and whether it has a value; a batch that cannot be opened (it may be encrypted) goes by
    the key on its outside."""
    try:
        parts = split_message(memoryview(batch.payload), verify=False)
        metadata = parse_metadata(parts)
        outer = message_key(metadata)
    except WireError:
        return [(None, True)] * batch.count
    if not is_batch(metadata):
        return [(outer, len(parts.payload) > 0 and not metadata.null_value)] * batch.count
    try:
        payload = open_payload(metadata, parts.payload)
        return [
            (message_key(single.metadata), len(single.payload) > 0 and not single.metadata.null_value)
            for single in iter_batch(payload, batch.count)
        ]
    except WireError:
        return [(outer, True)] * batch.count


def kafka_keyed(batch: Batch) -> list[Keyed]:
    """The same for Kafka's records; of a batch that cannot be opened nothing is kept."""
    try:
        found = [
            (None if record.key is None else bytes(record.key), record.value is not None)
            for record in iter_records(batch.payload)
        ]
    except WireError:
        found = []
    return found if len(found) == batch.count else [(None, True)] * batch.count
