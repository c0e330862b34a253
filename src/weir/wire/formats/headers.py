"""What stands around the payloads of a stored batch: key and headers of each message, and no payload opened.

A batch that is compressed as a whole has to be decompressed, up to a limit, since its messages' headers are in it.
One message that is compressed, encrypted or a part of a larger one has its headers outside.
"""

from collections.abc import Iterator

from weir.model.batch import Batch, BatchFormat
from weir.model.check import STEP_MESSAGES, Steps, finish
from weir.model.errors import WireError
from weir.wire.formats.format import Format
from weir.wire.formats.messages import MessagesFormat
from weir.wire.kafka.records import iter_records
from weir.wire.pulsar.batch import iter_batch, open_payload
from weir.wire.pulsar.message import is_batch, message_key, parse_metadata, split_message
from weir.wire.pulsar.translation import headers_of

#: Key and headers.
RawHead = tuple[bytes | None, list[tuple[str, bytes | None]]]
#: Of a batch when it is decompressed, in bytes: nobody needs more to be filtered.
MAX_OPENED_BYTES = 32 * 1024 * 1024


def heads_of(batch: Batch) -> list[RawHead] | None:
    """One for each offset; None if the batch cannot be looked into."""
    return finish(reading_heads(batch))


def reading_heads(batch: Batch) -> Steps[list[RawHead] | None]:
    """The same in steps: a batch may have hundreds of thousands of messages."""
    found: list[RawHead] = []
    try:
        for head in _heads(batch):
            found.append(head)
            if not len(found) % STEP_MESSAGES:
                yield STEP_MESSAGES
    except WireError:
        return None
    if len(found) == batch.count:
        return found
    return found * batch.count if len(found) == 1 else None


def _heads(batch: Batch) -> Iterator[RawHead]:
    match batch.format:
        case BatchFormat.PULSAR:
            yield from _pulsar(batch)
        case BatchFormat.KAFKA:
            yield from _kafka(batch)
        case _:
            yield from _split(MessagesFormat(), batch)


def _pulsar(batch: Batch) -> Iterator[RawHead]:
    parts = split_message(memoryview(batch.payload), verify=False)
    metadata = parse_metadata(parts)
    if not is_batch(metadata):
        yield message_key(metadata), headers_of(metadata.properties)
        return
    payload = open_payload(metadata, parts.payload, MAX_OPENED_BYTES)
    for single in iter_batch(payload, batch.count):
        properties = single.metadata.properties
        yield message_key(single.metadata), headers_of(properties) if properties else []


def _kafka(batch: Batch) -> Iterator[RawHead]:
    """Where compaction dropped some records, their offsets have nothing."""
    at = 0
    for record in iter_records(batch.payload, MAX_OPENED_BYTES):
        while at < record.offset_delta:
            at += 1
            yield None, []
        at += 1
        headers: list[tuple[str, bytes | None]] = [
            (bytes(name).decode("utf-8", "replace"), None if text is None else bytes(text))
            for name, text in record.headers
        ]
        yield None if record.key is None else bytes(record.key), headers
    while at < batch.count:
        at += 1
        yield None, []


def _split(form: Format, batch: Batch) -> Iterator[RawHead]:
    for message in form.split(batch):
        yield message.key, list(message.headers)
