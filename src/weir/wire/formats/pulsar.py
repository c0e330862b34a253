"""Pulsar's entries as a stored format.

An empty value is none in Pulsar: compaction goes by each protocol's own word.
"""

from collections.abc import Iterable

from weir.model.batch import Batch, BatchFormat
from weir.model.check import Steps
from weir.model.errors import WireError
from weir.model.messages import Message
from weir.wire.formats.format import Keyed, Translated, unkeyed
from weir.wire.kafka import record_batch
from weir.wire.pulsar.batch import Compression, iter_batch, open_payload
from weir.wire.pulsar.frames import MAX_MESSAGE_BYTES
from weir.wire.pulsar.message import is_batch, message_key, parse_metadata, split_message, sticky_key
from weir.wire.pulsar.translation import announced_size, entry_of_messages, messages_of_entry

#: Room for the metadata around the largest payload that Pulsar's clients take.
_MOST_BYTES = MAX_MESSAGE_BYTES - 64 * 1024
#: How a batch that is too large for Pulsar when opened is compressed again.
_COMPRESSIONS = {
    record_batch.Compression.NONE: Compression.LZ4,
    record_batch.Compression.GZIP: Compression.ZLIB,
    record_batch.Compression.SNAPPY: Compression.SNAPPY,
    record_batch.Compression.LZ4: Compression.LZ4,
    record_batch.Compression.ZSTD: Compression.ZSTD,
}


class PulsarFormat:
    tag = BatchFormat.PULSAR

    def split(self, batch: Batch) -> Iterable[Message]:
        return messages_of_entry(batch.payload, batch.count)

    def keys(self, batch: Batch) -> bytes | None:
        """One key for the whole batch, as in Pulsar: consumers acknowledge whole batches, so a batch is not cut
        up. Producers for key-shared subscriptions batch by key."""
        try:
            return sticky_key(parse_metadata(split_message(memoryview(batch.payload), verify=False)))
        except WireError:
            return None

    def keyed(self, batch: Batch) -> list[Keyed]:
        """A batch that cannot be opened (it may be encrypted) goes by the key on its outside."""
        try:
            parts = split_message(memoryview(batch.payload), verify=False)
            metadata = parse_metadata(parts)
            outer = message_key(metadata)
        except WireError:
            return unkeyed(batch)
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

    def delay_id(self, batch: Batch) -> str | None:
        return None

    def opened_size(self, batch: Batch) -> int:
        return max(len(batch.payload), announced_size(batch.payload))

    def own(self, batch: Batch, wanted: int | None) -> Translated:
        """Which messages are wanted is said beside the entry, which is never cut up."""
        return Translated([batch.payload], batch.count)

    def join(self, batch: Batch, messages: list[Message], wanted: int | None) -> Steps[Translated]:
        stamp, protocol = batch.stamp, batch.format.name.lower()
        payload = yield from entry_of_messages(
            messages,
            producer=protocol if stamp is None else f"{protocol}-{stamp.producer_id}",
            sequence=batch.base_offset if stamp is None or stamp.sequence < 0 else stamp.sequence,
            most_bytes=_MOST_BYTES,
            compression=_compression(batch),
        )
        return Translated([payload], len(messages))


def _compression(batch: Batch) -> Compression:
    if batch.format is BatchFormat.KAFKA:
        try:
            return _COMPRESSIONS[record_batch.parse_header(batch.payload).compression]
        except WireError:
            pass
    return Compression.LZ4
