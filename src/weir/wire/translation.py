"""A stored batch of any protocol as messages, and as the bytes that the consumers of another protocol read.

A batch is opened only here, and only where it was written by another protocol than it is read by, or where a part
of it is no longer to be seen. Every message keeps its offset. What cannot be opened is not lost: it is one message
that stands for all, with the stored bytes and the reason in a header.
"""

from typing import NamedTuple

from weir.model.batch import Batch, BatchFlags, BatchFormat
from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.model.message import Message
from weir.wire.kafka import records
from weir.wire.kafka.records_build import build_batch
from weir.wire.kafka.records_drop import keep_records
from weir.wire.kafka.translation import messages_of_records, records_of_messages
from weir.wire.pulsar.compression import Compression
from weir.wire.pulsar.frames import MAX_MESSAGE_BYTES
from weir.wire.pulsar.translation import announced_size, entry_of_messages, messages_of_entry

#: Why a batch could not be opened.
UNREADABLE = "weir-unreadable"
#: Room for the metadata around the largest payload that Pulsar's clients take.
_MOST_BYTES = MAX_MESSAGE_BYTES - 64 * 1024
#: How a batch that is too large for Pulsar when opened is compressed again.
_COMPRESSIONS = {
    records.Compression.NONE: Compression.LZ4,
    records.Compression.GZIP: Compression.ZLIB,
    records.Compression.SNAPPY: Compression.SNAPPY,
    records.Compression.LZ4: Compression.LZ4,
    records.Compression.ZSTD: Compression.ZSTD,
}
#: Nearly every batch: an identity is cheaper than arithmetic on flags.
_PLAIN = BatchFlags.NONE


def messages_of(batch: Batch) -> list[Message]:
    """The messages of a batch, one for each of its offsets; or a single one that stands for all of them."""
    try:
        found = _opened(batch)
        if len(found) not in (1, batch.count):
            raise WireError(f"{len(found)} messages have {batch.count} offsets")
    except WireError as bad:
        reason = str(bad).encode()
        return [Message(None, batch.payload, [(UNREADABLE, reason)], publish_ms=batch.append_ms)]
    return found


def _opened(batch: Batch) -> list[Message]:
    if batch.format is BatchFormat.PULSAR:
        return messages_of_entry(batch.payload, batch.count)
    if batch.format is BatchFormat.KAFKA:
        return messages_of_records(batch.payload, batch.append_ms)
    raise WireError(f"messages in the form {batch.format.name} cannot be read yet")


class PulsarEntry(NamedTuple):
    """A batch as Pulsar's consumers read it. `messages`: how many they find in it."""

    payload: Buffer
    messages: int


def pulsar_entry(batch: Batch) -> PulsarEntry:
    """The batch from Pulsar's magic on, as it follows a CommandMessage; as it came if Pulsar wrote it."""
    if batch.format is BatchFormat.PULSAR:
        return PulsarEntry(batch.payload, batch.count)
    messages = messages_of(batch)
    stamp = batch.stamp
    payload = entry_of_messages(
        messages,
        producer=batch.format.name.lower()
        if stamp is None
        else f"{batch.format.name.lower()}-{stamp.producer_id}",
        sequence=batch.base_offset if stamp is None or stamp.sequence < 0 else stamp.sequence,
        most_bytes=_MOST_BYTES,
        compression=_compression(batch),
    )
    return PulsarEntry(payload, len(messages))


def _compression(batch: Batch) -> Compression:
    if batch.format is BatchFormat.KAFKA:
        try:
            return _COMPRESSIONS[records.parse_header(batch.payload).compression]
        except WireError:
            pass
    return Compression.LZ4


def opened_size(batch: Batch) -> int:
    """About how many bytes the batch has when it is opened, without opening it."""
    size = len(batch.payload)
    return max(size, announced_size(batch.payload)) if batch.format is BatchFormat.PULSAR else size


def kafka_records(batch: Batch, wanted: int | None = None) -> list[Buffer]:
    """The batch as Kafka's consumers read it, in pieces; as it came, at its offset, if Kafka wrote it. `wanted`: a
    bit per message that is to be seen (None: all); the offsets of the others stay empty."""
    if batch.flags is not _PLAIN and batch.flags & BatchFlags.HIDDEN:
        return [_empty(batch)]
    if batch.format is BatchFormat.KAFKA:
        return _own_records(batch, wanted)
    if batch.flags & BatchFlags.CONTROL or wanted == 0:
        return [_empty(batch)]
    messages = messages_of(batch)
    if len(messages) != batch.count:
        wanted = None  # it stands for all of them
    return [records_of_messages(messages, base_offset=batch.base_offset, count=batch.count, wanted=wanted)]


def _own_records(batch: Batch, wanted: int | None) -> list[Buffer]:
    if wanted is None or wanted == (1 << batch.count) - 1:
        return records.patched(batch.payload, batch.base_offset)
    if wanted == 0:
        return [_empty(batch)]
    try:
        return [keep_records(batch.payload, wanted, batch.base_offset)]
    except WireError:
        return records.patched(batch.payload, batch.base_offset)  # nobody can tell its records apart


def _empty(batch: Batch) -> bytes:
    """Its offsets without a record: a consumer goes on behind them."""
    return build_batch([], base_offset=batch.base_offset, last_offset_delta=batch.count - 1)
