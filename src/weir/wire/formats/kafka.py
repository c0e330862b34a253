"""Kafka's record batches as a stored format.

An empty value is a value like any other in Kafka: compaction goes by each protocol's own word.

Kafka's records as messages, and messages as Kafka's records.
"""

from collections.abc import Iterable, Iterator, Sequence

from weir.model.batch import Batch, BatchFormat, indices_of
from weir.model.check import STEP_MESSAGES, Steps
from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.model.messages import DELAY_ID, Message, delay_id_in
from weir.wire.formats.format import Keyed, Translated, unkeyed
from weir.wire.kafka import record_batch
from weir.wire.kafka.record_batch import NO_STAMP, NO_TIMESTAMP, ORIGIN_SHIFT, Compression, parse_header, sealed
from weir.wire.kafka.records import Header, Record, build_batch, encode_record, iter_records, keep_records

#: A header that is the message's ordering key, which Kafka knows nothing of.
ORDERING_KEY = "weir-ordering-key"
#: Pulsar's times have a bit more.
_MAX_TIME = (1 << 63) - 1


def messages_of_records(batch: Buffer, append_ms: int) -> Iterator[Message]:
    """The messages of a record batch, `append_ms` for those without a time; WireError if it cannot be opened."""
    by_producer = not parse_header(batch).log_append_time
    return (_message(record, append_ms, by_producer) for record in iter_records(batch))


def _message(record: Record, append_ms: int, by_producer: bool) -> Message:
    moment = record.timestamp
    headers: list[tuple[str, bytes | None]] = []
    ordering_key = None
    for raw, content in record.headers:
        name = str(raw, "utf-8", "replace")
        value = None if content is None else bytes(content)
        if name == ORDERING_KEY and value is not None and ordering_key is None:
            ordering_key = value
        else:
            headers.append((name, value))
    return Message(
        key=None if record.key is None else bytes(record.key),
        value=record.value,
        headers=headers,
        event_ms=moment if by_producer and moment >= 0 else None,
        publish_ms=moment if moment >= 0 else append_ms,
        ordering_key=ordering_key,
    )


def sticky_keys(batch: Buffer) -> list[bytes | None]:
    """What decides, for each record, which consumer of a key-shared subscription gets it."""
    ordering = ORDERING_KEY.encode()
    keys: list[bytes | None] = []
    for record in iter_records(batch):
        key = record.key
        for name, value in record.headers:
            if name == ordering and value is not None:
                key = value
                break
        keys.append(None if key is None else bytes(key))
    return keys


def records_of_messages(
    messages: Sequence[Message], *, base_offset: int, count: int, wanted: int | None = None, origin: int = 0
) -> Steps[bytes]:
    """A record batch on `count` offsets, with the messages whose bits are set in `wanted` (None: all). `origin`:
    the place among `records.ORIGINS` of the protocol that they were written by."""
    seen = range(len(messages)) if wanted is None else [at for at in indices_of(wanted) if at < len(messages)]
    moments = [_moment(messages[delta]) for delta in seen]
    first_ms = moments[0] if moments else NO_TIMESTAMP
    body: list[bytes] = []
    for start in range(0, len(seen), STEP_MESSAGES):
        some = seen[start : start + STEP_MESSAGES]
        body.append(b"".join([encode_record(_record(delta, messages[delta]), first_ms) for delta in some]))
        yield len(some)
    return sealed(
        b"".join(body),
        base_offset=base_offset,
        attributes=Compression.NONE | origin << ORIGIN_SHIFT,
        last_offset_delta=count - 1,
        times=(first_ms, max(moments, default=NO_TIMESTAMP)),
        stamp=NO_STAMP,
        records=len(seen),
    )


def _moment(message: Message) -> int:
    return min(message.publish_ms if message.event_ms is None else message.event_ms, _MAX_TIME)


def _record(delta: int, message: Message) -> Record:
    headers: list[Header] = [(name.encode(), value) for name, value in message.headers]
    if message.ordering_key is not None:
        headers.append((ORDERING_KEY.encode(), message.ordering_key))
    return Record(delta, _moment(message), message.key, message.value, headers)


class KafkaFormat:
    tag = BatchFormat.KAFKA

    def split(self, batch: Batch) -> Iterable[Message]:
        return messages_of_records(batch.payload, batch.append_ms)

    def keys(self, batch: Batch) -> Sequence[bytes | None] | None:
        """One key for each record: Kafka's producers batch by partition, not by key."""
        try:
            keys = sticky_keys(batch.payload)
        except WireError:
            return None
        return keys if len(keys) == batch.count else None

    def keyed(self, batch: Batch) -> list[Keyed]:
        try:
            found = [
                (None if record.key is None else bytes(record.key), record.value is not None)
                for record in iter_records(batch.payload)
            ]
        except WireError:
            found = []
        return found if len(found) == batch.count else unkeyed(batch)

    def delay_id(self, batch: Batch) -> str | None:
        payload = bytes(batch.payload)
        if DELAY_ID not in payload:  # nearly every batch; one with this header is stored uncompressed
            return None
        try:
            found = list(iter_records(payload))
        except WireError:
            return None
        return delay_id_in(found[0].headers) if len(found) == 1 else None

    def opened_size(self, batch: Batch) -> int:
        return len(batch.payload)

    def own(self, batch: Batch, wanted: int | None) -> Translated:
        """At its offset. The offsets of what is not wanted stay empty."""
        return Translated(_own_records(batch, wanted), batch.count)

    def join(self, batch: Batch, messages: list[Message], wanted: int | None) -> Steps[Translated]:
        if wanted == 0:
            return Translated([empty_records(batch)], 0)
        if len(messages) != batch.count:
            wanted = None  # it stands for all of them
        made = yield from records_of_messages(
            messages,
            base_offset=batch.base_offset,
            count=batch.count,
            wanted=wanted,
            origin=_origin(batch, messages),
        )
        return Translated([made], len(messages))


def _origin(batch: Batch, messages: Sequence[Message]) -> int:
    """By which protocol it was written. Messages one at a time are AMQP's, unless they say otherwise."""
    if batch.format is not BatchFormat.MESSAGES:
        return record_batch.ORIGINS.index("pulsar") if batch.format is BatchFormat.PULSAR else 0
    native = messages[0].native if messages else None
    name = "amqp" if native is None else native[0]
    return record_batch.ORIGINS.index(name) if name in record_batch.ORIGINS else 0


def _own_records(batch: Batch, wanted: int | None) -> list[Buffer]:
    if wanted is None or wanted == (1 << batch.count) - 1:
        return record_batch.patched(batch.payload, batch.base_offset)
    if wanted == 0:
        return [empty_records(batch)]
    try:
        return [keep_records(batch.payload, wanted, batch.base_offset)]
    except WireError:
        return record_batch.patched(batch.payload, batch.base_offset)  # nobody can tell its records apart


def empty_records(batch: Batch) -> bytes:
    """Its offsets without a record: a consumer goes on behind them."""
    return build_batch([], base_offset=batch.base_offset, last_offset_delta=batch.count - 1)
