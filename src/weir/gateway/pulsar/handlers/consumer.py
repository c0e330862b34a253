"""Handlers of an open consumer: FLOW, ACK, REDELIVER_UNACKNOWLEDGED_MESSAGES, SEEK, GET_LAST_MESSAGE_ID and
CONSUMER_STATS."""

from weir.broker.api.consumers import SubscriptionType
from weir.broker.api.topics import Position, Topic
from weir.gateway.pulsar.acknowledgments import Range
from weir.gateway.pulsar.command_table import at_once, later
from weir.gateway.pulsar.consumers import ConsumerLink
from weir.gateway.pulsar.errors import place_of
from weir.gateway.pulsar.session import Session
from weir.model.errors import NotAllowedError
from weir.runtime.tasks import UNIT_ELEMENTS, UNITS, Work
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.ids import MessageId, bits_from_ack_set, id_to_wire

#: Ids, or ranges of offsets, between two checks whether to yield.
_AT_A_TIME = 512


@at_once(api.CommandFlow)
def flow(session: Session, command: api.CommandFlow) -> None:
    link = session.consumers.get(command.consumer_id)
    if isinstance(link, ConsumerLink):  # otherwise it was closed, and the client gets notified
        link.flow(command.messagePermits)


@at_once(api.CommandAck)
def ack(session: Session, command: api.CommandAck) -> Work | None:
    if session.consumers.retired(command.consumer_id) and not command.HasField("request_id"):
        return None
    return session.consumers.live(command.consumer_id).acking.take(command)


@at_once(api.CommandRedeliverUnacknowledgedMessages)
def redeliver(session: Session, command: api.CommandRedeliverUnacknowledgedMessages) -> Work | None:
    link = session.consumers.get(command.consumer_id)
    if not isinstance(link, ConsumerLink):
        return None
    if command.HasField("consumer_epoch"):
        link.epoch = command.consumer_epoch
    if command.message_ids:
        return _redeliver(link, command)
    link.unacked.clear()
    link.consumer.redeliver()
    return None


def _redeliver(link: ConsumerLink, command: api.CommandRedeliverUnacknowledgedMessages) -> Work:
    ranges: list[Range] = []
    for number, at in enumerate(command.message_ids, 1):
        ranges += link.unacked.give_back(place_of(at))
        if not number % _AT_A_TIME:
            yield _AT_A_TIME // UNIT_ELEMENTS
    if link.alone:  # an ordered subscription redelivers everything, whichever messages the client names
        del ranges[1:]
    for start in range(0, len(ranges), _AT_A_TIME):
        if link.over:
            return
        link.consumer.redeliver(ranges[start : start + _AT_A_TIME])
        yield UNITS  # the redelivery costs much more than the request


@later(api.CommandSeek)
async def seek(session: Session, command: api.CommandSeek) -> api.CommandSuccess:
    link = session.consumers.live(command.consumer_id)
    if command.HasField("message_id"):
        offset = _offset_of(link.topic, command.message_id)
    elif command.HasField("message_publish_time"):
        offset = await link.topic.offset_at(command.message_publish_time)
    else:
        raise NotAllowedError("a seek needs a message id or a publish time")
    await link.consumer.seek(offset)
    await link.shut()  # the client must not take a message from before the seek for one after it
    return api.CommandSuccess(request_id=command.request_id)


def _offset_of(topic: Topic, at: api.MessageIdData) -> int:
    """The offset of a message. Within a batch, its index or the first bit of its ack set determines it."""
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
    """The last entry that is completely acknowledged. Clients compare it with the last message id by entry."""
    if offset < topic.start_offset or last.ledger < 0:
        return MessageId(-1, -1)
    first = topic.offset_of(last.ledger, last.entry)
    if offset >= first + max(last.batch_index, 0):
        return MessageId(last.ledger, last.entry)
    offset = min(offset, first - 1)
    ledger, entry = topic.position_of(offset)
    return MessageId(ledger, entry)


_TYPES = {
    SubscriptionType.EXCLUSIVE: "Exclusive",
    SubscriptionType.SHARED: "Shared",
    SubscriptionType.FAILOVER: "Failover",
    SubscriptionType.KEY_SHARED: "Key_Shared",
}


@at_once(api.CommandConsumerStats)
def consumer_stats(session: Session, command: api.CommandConsumerStats) -> api.CommandConsumerStatsResponse:
    link = session.consumers.live(command.consumer_id)
    now_ms = session.clock.wall_ms()
    seconds = max((now_ms - link.connected_ms) / 1000, 1.0)
    return api.CommandConsumerStatsResponse(
        request_id=command.request_id,
        msgRateOut=link.messages_out / seconds,
        msgThroughputOut=link.bytes_out / seconds,
        consumerName=link.consumer.name,
        availablePermits=max(link.credit, 0),
        unackedMessages=link.unacked.messages,
        address=session.peer,
        connectedSince=str(link.connected_ms),
        type=_TYPES[link.kind],
        msgBacklog=link.consumer.backlog,
    )
