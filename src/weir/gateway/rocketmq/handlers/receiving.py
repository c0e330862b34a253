"""ReceiveMessage: what is ready for a group, or comes while the client waits."""

import asyncio
from typing import Any

from weir.gateway.rocketmq.connection.calls import Call
from weir.gateway.rocketmq.consume.links import Received
from weir.gateway.rocketmq.consume.receiving import GroupTopic, Want, receive_any
from weir.gateway.rocketmq.errors import Refused, ok
from weir.gateway.rocketmq.names import group_of, lite_topic_of, topic_of
from weir.gateway.rocketmq.registry import calls
from weir.model.errors import TopicNotFoundError
from weir.model.filters import ALL_TAGS, MessageFilter
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.wire.rocketmq.message import outgoing_of
from weir.wire.rocketmq.proto import api, ms_of, set_ms

#: What a poll waits for if the client does not say; and so much earlier than the client gives up it is answered.
_LONG_POLLING_S = 20.0
_MARGIN_S = 0.2
#: Of what a client holds while it lives: what it is told.
_RENEWED_MS = 60_000
_MAX_INVISIBLE_MS = 12 * 3_600_000
_LITE = (api.ClientType.LITE_PUSH_CONSUMER, api.ClientType.LITE_SIMPLE_CONSUMER)


@calls("ReceiveMessage", api.ReceiveMessageRequest, api.ReceiveMessageResponse, streams=True)
async def receive_message(call: Call, request: Any) -> None:
    topic, group = topic_of(request.message_queue.topic), group_of(request.group)
    if request.batch_size <= 0:
        raise Refused(api.Code.BAD_REQUEST, "the batch size must be positive")
    services = call.session.services
    services.guard.check(call.role, topic, Action.CONSUME, subscription=group)
    invisible_ms, client = _invisible(call, request)
    if call.session.http2.unsent_bytes > call.session.limits.http2.max_unsent_bytes:
        raise Refused(api.Code.TOO_MANY_REQUESTS, "messages that were sent before are not read")
    wanted = min(request.batch_size, call.session.limits.max_receive_messages)
    want = Want(call.role, wanted, invisible_ms, client, _filter(request))
    found = await _found(call, topic, group, want, _wait_s(call, request))
    services.metrics.received += len(found)
    if not found:
        call.send(
            api.ReceiveMessageResponse(
                status=api.Status(code=api.Code.MESSAGE_NOT_FOUND, message="no new message")
            )
        )
    else:
        answers = [api.ReceiveMessageResponse(status=ok())]
        for one in found:
            message = delivered(one, request.message_queue.topic)
            answers.append(api.ReceiveMessageResponse(message=message))
        call.send(*answers)
    last = api.ReceiveMessageResponse()
    set_ms(last.delivery_timestamp, call.session.clock.wall_ms())
    call.send(last)
    call.finish()


async def _found(call: Call, topic: TopicName, group: str, want: Want, wait_s: float) -> list[Received]:
    groups, clients = call.session.services.groups, call.session.services.clients
    known = clients.find(call.client_id)
    if not clients.lite_topics(call.client_id, topic, group) and (
        known is None or known.settings.client_type not in _LITE
    ):
        return await groups.of(topic, group).receive(want, wait_s)
    return await _found_lite(call, topic, group, want, wait_s)


async def _found_lite(call: Call, topic: TopicName, group: str, want: Want, wait_s: float) -> list[Received]:
    """Of the lite topics that the client wants, which may be others while it waits."""
    clients, clock = call.session.services.clients, call.session.clock
    end_s = clock.monotonic() + wait_s
    while True:
        names = clients.lite_topics(call.client_id, topic, group)
        topics = await _lite_topics(call, topic, group, names)
        if names != clients.lite_topics(call.client_id, topic, group):
            continue  # one of them is no more
        left_s = end_s - clock.monotonic()
        changed = asyncio.Event()
        with clients.watching_lite(call.client_id, topic, group, changed):
            timer = clock.call_later(max(0.0, left_s), changed.set)
            try:
                found = await receive_any(topics, want, max(0.0, left_s), changed)
            finally:
                timer.cancel()
        if found or left_s <= 0:
            return found


async def _lite_topics(call: Call, topic: TopicName, group: str, names: set[str]) -> list[GroupTopic]:
    """What is received from for a client; of what was deleted it is told."""
    services = call.session.services
    topics: list[GroupTopic] = []
    for name in sorted(names):
        found = services.groups.of(lite_topic_of(topic, name), group)
        if found.lost and await _deleted(call, found.topic):
            services.clients.take_lite_topics("", topic, group, {name})
            await services.groups.forget(found.topic, group)
        else:
            topics.append(found)
    return topics


async def _deleted(call: Call, topic: TopicName) -> bool:
    try:
        await call.session.services.broker.partitions(topic, role=call.role, create=False)
    except TopicNotFoundError:
        return True
    return False


def _filter(request: Any) -> MessageFilter:
    """Nothing, and `*`, is everything."""
    expression = request.filter_expression
    match expression.type:
        case api.FilterType.SQL:
            return MessageFilter(sql=expression.expression)
        case _:
            return MessageFilter(tags=expression.expression or ALL_TAGS)


def delivered(one: Received, topic: Any) -> Any:
    """With what is said of one delivery."""
    message = outgoing_of(one.message, topic, partition=one.partition, offset=one.offset)
    said = message.system_properties
    said.receipt_handle = one.handle.encode()
    said.delivery_attempt = one.attempt
    set_ms(said.store_timestamp, one.stored_ms)
    return message


def _invisible(call: Call, request: Any) -> tuple[int, str]:
    """How long, and whether it is the client that holds what it gets."""
    if request.auto_renew:
        return _RENEWED_MS, call.client_id
    invisible_ms = ms_of(request.invisible_duration)
    if invisible_ms <= 0:
        raise Refused(api.Code.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too small. min is 1")
    if invisible_ms > _MAX_INVISIBLE_MS:
        raise Refused(
            api.Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {_MAX_INVISIBLE_MS}"
        )
    return invisible_ms, ""


def _wait_s(call: Call, request: Any) -> float:
    """How long the poll may take: as the client wants it, and less than its deadline."""
    wait_s = _LONG_POLLING_S
    if request.HasField("long_polling_timeout"):
        wait_s = min(wait_s, ms_of(request.long_polling_timeout) / 1000)
    remaining_s = call.remaining_s
    if remaining_s is not None:
        if remaining_s < _MARGIN_S:
            raise Refused(
                api.Code.ILLEGAL_POLLING_TIME,
                "The deadline time remaining is not enough for polling, please check network condition",
            )
        wait_s = min(wait_s, remaining_s - _MARGIN_S)
    return wait_s
