"""ReceiveMessage: long polling for messages of a consumer group."""

import asyncio
from collections.abc import Sequence
from typing import Any

from weir.broker.api.broker import Owner
from weir.gateway.rocketmq.call import Call, calls
from weir.gateway.rocketmq.errors import MOVED, Refused, ok
from weir.gateway.rocketmq.group_topic import GroupTopic, Received, Want, receive_any
from weir.gateway.rocketmq.names import filter_of, group_of, lite_topic_of, topic_of
from weir.gateway.rocketmq.remote_receive import Receiving
from weir.model.errors import TopicNotFoundError
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.wire.rocketmq import rocketmq_pb2 as api
from weir.wire.rocketmq.message import outgoing_of
from weir.wire.rocketmq.proto import ms_of, set_ms

#: Maximum wait of a poll, and the minimum time between its answer and the client's deadline.
_LONG_POLLING_S = 20.0
_MARGIN_S = 0.2
#: Request timeout of clients whose settings have none: the default of the Java and other clients.
_REQUEST_TIMEOUT_S = 3.0
#: Invisible duration in the handles of auto-renewed messages.
_RENEWED_MS = 60_000
_MAX_INVISIBLE_MS = 12 * 3_600_000


@calls("ReceiveMessage", api.ReceiveMessageRequest, api.ReceiveMessageResponse, streams=True)
async def receive_message(call: Call, request: Any) -> None:
    topic, group = topic_of(request.message_queue.topic), group_of(request.group)
    if request.batch_size <= 0:
        raise Refused(api.Code.BAD_REQUEST, "the batch size must be positive")
    services = call.session.services
    services.guard.check(call.role, topic, Action.CONSUME, subscription=group)
    invisible_ms, client = _invisible(call, request)
    if call.session.http2.unsent_bytes > call.session.limits.http2.max_unsent_bytes:
        raise Refused(api.Code.TOO_MANY_REQUESTS, "the client has not read messages sent before")
    wanted = min(request.batch_size, call.session.limits.max_receive_messages)
    want = Want(call.role, wanted, invisible_ms, client, filter_of(request.filter_expression))
    found = await _found(call, request, topic, group, want)
    if not call.handed_on:
        services.metrics.received += len(found)
    if not found:
        call.send(
            api.ReceiveMessageResponse(
                status=api.Status(code=api.Code.MESSAGE_NOT_FOUND, message="no new message")
            )
        )
    else:
        call.send(api.ReceiveMessageResponse(status=ok()), *found)
    last = api.ReceiveMessageResponse()
    set_ms(last.delivery_timestamp, call.session.clock.wall_ms())
    call.send(last)
    call.finish()


async def _found(call: Call, request: Any, topic: TopicName, group: str, want: Want) -> list[Any]:
    """Receive messages, as answer messages."""
    services = call.session.services
    wait_s, resource = _wait_s(call, request), request.message_queue.topic
    receiving = Receiving(call, request, topic, group)
    if (
        call.about
        or services.clients.is_lite(call.client_id)
        or services.clients.lite_topics(call.client_id, topic, group)
    ):
        lite = _LiteTopics(call, topic, group, want, resource)
        return await receiving.of_parts(lite.find, lite.receive, wait_s)
    number, known = request.message_queue.id, services.groups.of(topic, group)

    async def here(seconds: float) -> list[Any]:
        return _told(await known.receive(want, seconds), resource)

    if call.handed_on or known.has_queue(number):
        try:
            return await here(wait_s)
        except MOVED:
            if call.handed_on:
                raise
    return await receiving.of_queue(lambda: _place(call, topic, number), here, wait_s)


async def _place(call: Call, topic: TopicName, number: int) -> Owner:
    """The owner of a queue. For queue -1 (any): this broker if it owns a queue, else a random owner."""
    broker = call.session.services.broker
    partitions = await broker.partitions(topic, role=call.role)
    if not partitions:
        return await broker.owner(topic, role=call.role)
    if 0 <= number < partitions:
        return await broker.owner(topic.at(number), role=call.role)
    owners = broker.owners_now(topic, range(partitions))
    here = [owner for owner in owners if owner.here]
    return here[0] if here else call.session.services.runtime.rng.choice(list(owners))


class _LiteTopics:
    """Lite topics of a client and their owners; the set may change during a receive."""

    def __init__(self, call: Call, topic: TopicName, group: str, want: Want, resource: Any) -> None:
        self._call = call
        self._topic = topic
        self._group = group
        self._want = want
        self._resource = resource
        self._here: set[str] = set()

    def _names(self) -> set[str]:
        clients = self._call.session.services.clients
        return set(self._call.about) or clients.lite_topics(self._call.client_id, self._topic, self._group)

    async def find(self) -> tuple[bool, dict[str, Sequence[str]]]:
        """Whether this broker owns some of the lite topics, and the names of those that each other broker owns."""
        broker, elsewhere = self._call.session.services.broker, dict[str, list[str]]()
        self._here = set()
        for name in sorted(self._names()):
            owner = await broker.owner(lite_topic_of(self._topic, name), role=self._call.role)
            if owner.here or self._call.handed_on:
                self._here.add(name)
            elif owner.broker_id:
                elsewhere.setdefault(owner.broker_id, []).append(name)
        return bool(self._here) or not elsewhere, dict(elsewhere)

    async def receive(self, wait_s: float) -> list[Any]:
        """Receive from lite topics of this broker; returns [] early if the client's subscriptions change."""
        call, before = self._call, self._names()
        clients = call.session.services.clients
        topics = await _lite_topics(call, self._topic, self._group, self._here)
        if before != self._names():
            return []  # one of them was deleted
        changed = asyncio.Event()
        with clients.watching_lite(call.client_id, self._topic, self._group, changed):
            timer = call.session.clock.call_later(wait_s, changed.set)
            try:
                return _told(await receive_any(topics, self._want, wait_s, changed), self._resource)
            finally:
                timer.cancel()


async def _lite_topics(call: Call, topic: TopicName, group: str, names: set[str]) -> list[GroupTopic]:
    """The lite topics to receive from; clients are notified about deleted ones."""
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


def _told(found: Sequence[Received], topic: Any) -> list[Any]:
    return [api.ReceiveMessageResponse(message=delivered(one, topic)) for one in found]


def delivered(one: Received, topic: Any) -> Any:
    """The message with the properties of this delivery."""
    message = outgoing_of(one.message, topic, partition=one.partition, offset=one.offset)
    said = message.system_properties
    said.receipt_handle = one.handle.encode()
    said.delivery_attempt = one.attempt
    set_ms(said.store_timestamp, one.stored_ms)
    return message


def _invisible(call: Call, request: Any) -> tuple[int, str]:
    """The invisible duration, and the client ID if messages are auto-renewed while it is connected, else ""."""
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
    asked_s = ms_of(request.long_polling_timeout) / 1000 if request.HasField("long_polling_timeout") else None
    return polling_s(asked_s, call.remaining_s, _request_timeout_s(call))


def _request_timeout_s(call: Call) -> float:
    """The request timeout in the client's settings, or the default."""
    client = call.session.services.clients.find(call.client_id)
    if client is None or not client.settings.HasField("request_timeout"):
        return _REQUEST_TIMEOUT_S
    return max(0.0, ms_of(client.settings.request_timeout) / 1000)


def polling_s(asked_s: float | None, remaining_s: float | None, request_timeout_s: float) -> float:
    """How long a poll waits. Clients that send no polling timeout add their request timeout to their wait and send
    the sum as deadline. As in RocketMQ's proxy, half of the request timeout is reserved for the answer."""
    if remaining_s is not None and remaining_s < _MARGIN_S:
        raise Refused(
            api.Code.ILLEGAL_POLLING_TIME,
            "The deadline time remaining is not enough for polling, please check network condition",
        )
    wait_s = _LONG_POLLING_S if asked_s is None else min(asked_s, _LONG_POLLING_S)
    if remaining_s is None:
        return wait_s
    if asked_s is None:
        return min(wait_s, max(0.0, remaining_s - max(_MARGIN_S, request_timeout_s / 2)))
    return min(wait_s, remaining_s - _MARGIN_S)
