"""SEEK and GET_LAST_MESSAGE_ID: where a subscription stands, and where it shall."""

from weir.broker.api import Position, Topic
from weir.gateway.pulsar.registry import later
from weir.gateway.pulsar.session import Session
from weir.gateway.pulsar.values import place_of
from weir.model.errors import NotAllowedError
from weir.wire.pulsar.ids import MessageId, bits_from_ack_set, id_to_wire
from weir.wire.pulsar.proto import api


@later(api.CommandSeek)
async def seek(session: Session, command: api.CommandSeek) -> api.CommandSuccess:
    link = session.consumers.live(command.consumer_id)
    if command.HasField("message_id"):
        offset = _offset_of(link.topic, command.message_id)
    elif command.HasField("message_publish_time"):
        offset = await link.topic.offset_at(command.message_publish_time)
    else:
        raise NotAllowedError("a seek names a message or a moment")
    await link.consumer.seek(offset)
    await link.shut()  # the client must know that before it takes the next message for one after the seek
    return api.CommandSuccess(request_id=command.request_id)


def _offset_of(topic: Topic, at: api.MessageIdData) -> int:
    """Of a message, be it within a batch: its index, or what it would leave unacknowledged, says where."""
    if at.HasField("first_chunk_message_id"):
        at = at.first_chunk_message_id
    base = topic.offset_of(*place_of(at))
    if at.ack_set:
        bits = bits_from_ack_set(at.ack_set)
        return base + max((bits & -bits).bit_length() - 1, 0)
    return base + max(at.batch_index, 0)


@later(api.CommandGetLastMessageId)
async def last_message_id(
    session: Session, command: api.CommandGetLastMessageId
) -> api.CommandGetLastMessageIdResponse:
    link = session.consumers.live(command.consumer_id)
    last = await link.topic.last_position()
    partition = link.topic.name.partition
    at = MessageId(last.ledger, last.entry, -1 if partition is None else partition, last.batch_index)
    return api.CommandGetLastMessageIdResponse(
        request_id=command.request_id,
        last_message_id=id_to_wire(at),
        consumer_mark_delete_position=id_to_wire(_mark_delete(link.topic, link.consumer.mark_delete, last)),
    )


def _mark_delete(topic: Topic, offset: int, last: Position) -> MessageId:
    """The last entry that is acknowledged whole. Clients compare it with the last message's, entry by entry."""
    if offset < topic.start_offset or last.ledger < 0:
        return MessageId(-1, -1)
    first = topic.offset_of(last.ledger, last.entry)
    if offset >= first + max(last.batch_index, 0):
        return MessageId(last.ledger, last.entry)
    offset = min(offset, first - 1)
    ledger, entry = topic.position_of(offset)
    return MessageId(ledger, entry)
