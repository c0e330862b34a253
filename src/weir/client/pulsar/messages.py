"""Messages as a program sends and receives them."""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from weir.model.ids import Buffer
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.batch import iter_batch, open_payload
from weir.wire.pulsar.ids import MessageId, bits_from_ack_set, id_from_wire, unacknowledged
from weir.wire.pulsar.message import is_batch, message_key, parse_broker_entry, parse_metadata, split_message


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send. `deliver_at_ms`: not to be seen before that moment."""

    payload: Buffer
    key: str | bytes | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    event_ms: int = 0
    deliver_at_ms: int | None = None
    #: It has no value, rather than an empty one: on a compacted topic it removes its key.
    null: bool = False

    def single(self, sequence: int) -> api.SingleMessageMetadata:
        """Its metadata within a batch."""
        metadata = api.SingleMessageMetadata(payload_size=len(self.payload), sequence_id=sequence)
        self._describe(metadata)
        return metadata

    def whole(self, producer: str, sequence: int, now_ms: int) -> api.MessageMetadata:
        """Its metadata when it is sent alone."""
        metadata = api.MessageMetadata(producer_name=producer, sequence_id=sequence, publish_time=now_ms)
        self._describe(metadata)
        if self.deliver_at_ms is not None:
            metadata.deliver_at_time = self.deliver_at_ms
        return metadata

    def _describe(self, metadata: api.MessageMetadata | api.SingleMessageMetadata) -> None:
        if isinstance(self.key, bytes):
            metadata.partition_key = base64.b64encode(self.key).decode()
            metadata.partition_key_b64_encoded = True
        elif self.key is not None:
            metadata.partition_key = self.key
        for name, value in self.properties.items():
            metadata.properties.add(key=name, value=value)
        if self.event_ms:
            metadata.event_time = self.event_ms
        if self.null:
            metadata.null_value = True


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message that was received. `part`: which of the consumer's partitions it came by."""

    id: MessageId
    payload: bytes
    key: bytes | None
    properties: Mapping[str, str]
    publish_ms: int
    event_ms: int
    producer: str
    redelivered: int
    batch_size: int
    part: int = 0
    #: The payload is as the producer's encryption left it.
    encrypted: bool = False
    #: It has no value, rather than an empty one.
    null: bool = False
    #: Its place among the messages of its partition; -1 if the broker does not say.
    offset: int = -1


def incoming(command: api.CommandMessage, stored: Buffer, *, part: int) -> Iterator[Incoming | None]:
    """The messages of a delivered entry; None for each that its ack set, or compaction, says is done."""
    at = id_from_wire(command.message_id)
    parts = split_message(memoryview(stored))
    metadata = parse_metadata(parts)
    common = Incoming(
        id=at,
        payload=b"",
        key=None,
        properties={},
        publish_ms=metadata.publish_time,
        event_ms=0,
        producer=metadata.producer_name,
        redelivered=command.redelivery_count,
        batch_size=0,
        part=part,
        encrypted=bool(metadata.encryption_keys),
    )
    told = parse_broker_entry(parts)
    if common.encrypted or not is_batch(metadata):
        # What is encrypted may be a batch as well: it has as many offsets.
        behind = max(1, metadata.num_messages_in_batch) - 1
        common = replace(common, offset=-1 if told is None else told.index - behind)
        payload = parts.payload if common.encrypted else open_payload(metadata, parts.payload)
        yield _filled(common, metadata, payload)
        return
    count = metadata.num_messages_in_batch
    wanted = bits_from_ack_set(command.ack_set) if command.ack_set else unacknowledged(count)
    for index, single in enumerate(iter_batch(open_payload(metadata, parts.payload), count)):
        if wanted >> index & 1 and not single.metadata.compacted_out:
            offset = -1 if told is None else told.index - count + 1 + index
            place = replace(common, id=at._replace(batch_index=index), batch_size=count, offset=offset)
            yield _filled(place, single.metadata, single.payload)
        else:
            yield None


def _filled(common: Incoming, own: api.MessageMetadata | api.SingleMessageMetadata, payload: Buffer) -> Incoming:
    return replace(
        common,
        payload=bytes(payload),
        key=message_key(own),
        properties={pair.key: pair.value for pair in own.properties},
        event_ms=own.event_time,
        null=own.null_value,
    )
