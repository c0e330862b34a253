"""Handlers of SUBSCRIBE, UNSUBSCRIBE and CLOSE_CONSUMER."""

from weir.broker.api.consumers import KeyShared, StartAt, SubscribeRequest, SubscriptionType
from weir.broker.api.topics import Topic
from weir.gateway.pulsar.command_table import later
from weir.gateway.pulsar.consumers import ConsumerLink
from weir.gateway.pulsar.errors import pairs, place_of, schema_from_wire
from weir.gateway.pulsar.links import Opening
from weir.gateway.pulsar.session import Session
from weir.model.errors import (
    ConsumerClosedError,
    InvalidNameError,
    StreamBusyError,
)
from weir.model.topics import TopicName
from weir.runtime.tasks import OPEN_UNITS
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.ids import LATEST

_TYPES = {
    api.CommandSubscribe.Exclusive: SubscriptionType.EXCLUSIVE,
    api.CommandSubscribe.Shared: SubscriptionType.SHARED,
    api.CommandSubscribe.Failover: SubscriptionType.FAILOVER,
    api.CommandSubscribe.Key_Shared: SubscriptionType.KEY_SHARED,
}
_MAX_SUBSCRIPTION_BYTES = 512


@later(api.CommandSubscribe)
async def subscribe(session: Session, command: api.CommandSubscribe) -> api.CommandSuccess | None:
    there = session.consumers.get(command.consumer_id)
    if isinstance(there, Opening):
        raise StreamBusyError(f"the creation of consumer {command.consumer_id} is in progress")
    success = api.CommandSuccess(request_id=command.request_id)
    if there is not None:  # the client missed the response and repeats the request
        return success
    opening = session.consumers.begin(command.consumer_id)
    try:
        link = await _subscribe(session, command)
    except BaseException:
        session.consumers.end(command.consumer_id, opening)
        raise
    if not session.consumers.put(command.consumer_id, opening, link):
        await link.close()
        raise ConsumerClosedError("the client closed the consumer during its creation")
    session.answer(success)  # before the first message
    link.start()
    return None


async def _subscribe(session: Session, command: api.CommandSubscribe) -> ConsumerLink:
    if not 0 < len(command.subscription.encode()) <= _MAX_SUBSCRIPTION_BYTES:
        raise InvalidNameError(f"a subscription name must have 1 to {_MAX_SUBSCRIPTION_BYTES} bytes")
    topic = await session.broker.topic(
        TopicName.parse(command.topic), role=session.role, create=command.force_topic_creation
    )
    await session.turns.pause(OPEN_UNITS)  # thousands may have waited for the topic
    kind = _TYPES[command.subType]
    request = SubscribeRequest(
        role=session.role,
        subscription=command.subscription,
        type=kind,
        consumer_name=command.consumer_name,
        priority=command.priority_level,
        durable=command.durable,
        start=await _start(session, topic, command),
        read_compacted=command.read_compacted,
        key_shared=_key_shared(command) if kind is SubscriptionType.KEY_SHARED else None,
        schema=schema_from_wire(command.schema) if command.HasField("schema") else None,
        properties=pairs(command.metadata),
        subscription_properties=pairs(command.subscription_properties),
        address=session.peer,
        client_version=session.client_version,
    )
    consumer = await topic.subscribe(request, delivery_share=session.delivery_share)
    epoch = command.consumer_epoch if command.HasField("consumer_epoch") else None
    return ConsumerLink(session, command.consumer_id, topic, consumer, kind=kind, epoch=epoch)


async def _start(session: Session, topic: Topic, command: api.CommandSubscribe) -> StartAt:
    """The start position of a new subscription. At a message id it starts with the message's whole batch: the
    client skips unwanted messages, and only it knows whether to include the message itself."""
    if command.start_message_rollback_duration_sec:
        moment_ms = session.clock.wall_ms() - 1000 * command.start_message_rollback_duration_sec
        return StartAt(offset=await topic.offset_at(moment_ms))
    if command.HasField("start_message_id"):
        place = place_of(command.start_message_id)
        return StartAt(latest=True) if place == LATEST[:2] else StartAt(offset=topic.offset_of(*place))
    return StartAt(latest=command.initialPosition == api.CommandSubscribe.Latest)


def _key_shared(command: api.CommandSubscribe) -> KeyShared:
    meta = command.keySharedMeta
    return KeyShared(
        sticky=meta.keySharedMode == api.STICKY,
        ranges=[(span.start, span.end) for span in meta.hashRanges],
        allow_out_of_order=meta.allowOutOfOrderDelivery,
    )


@later(api.CommandUnsubscribe)
async def unsubscribe(session: Session, command: api.CommandUnsubscribe) -> api.CommandSuccess:
    link = session.consumers.live(command.consumer_id)
    link.ending = True  # no CLOSE_CONSUMER: the client requested the end
    try:
        await link.consumer.unsubscribe(force=command.force)
    except BaseException:
        link.ending = False
        if link.over:  # closed meanwhile for another reason; notify the client now
            await link.shut()
        raise
    session.consumers.end(command.consumer_id, link)
    await link.close()
    return api.CommandSuccess(request_id=command.request_id)


@later(api.CommandCloseConsumer)
async def close_consumer(session: Session, command: api.CommandCloseConsumer) -> api.CommandSuccess:
    link = session.consumers.get(command.consumer_id)
    if isinstance(link, Opening):
        link.abandoned = True
        session.consumers.end(command.consumer_id, link)
    elif link is not None and session.consumers.end(command.consumer_id, link):
        await link.close()
    return api.CommandSuccess(request_id=command.request_id)
