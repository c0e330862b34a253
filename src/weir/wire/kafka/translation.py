"""Kafka's records as messages, and messages as Kafka's records."""

from collections.abc import Iterator, Sequence

from weir.model.bits import indices_of
from weir.model.ids import Buffer
from weir.model.message import Message
from weir.model.steps import STEP_MESSAGES, Steps
from weir.wire.kafka.records import NO_STAMP, NO_TIMESTAMP, ORIGIN_SHIFT, Compression, parse_header, sealed
from weir.wire.kafka.records_build import Header, Record, encode_record
from weir.wire.kafka.records_read import iter_records

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
