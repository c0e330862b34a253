"""Class basic except publish: qos, consume, cancel, get, recover, ack, nack, reject."""

import base64
from collections.abc import Coroutine, Mapping
from typing import Any

from weir.broker.api.queues import ConsumeRequest
from weir.gateway.amqp.channel import Channel
from weir.gateway.amqp.consumers import MOST_PROPERTY_BYTES, ConsumerLink
from weir.gateway.amqp.errors import precondition_failed, refuse, unsupported
from weir.gateway.amqp.handlers.queue import meant
from weir.gateway.amqp.method_table import handles
from weir.gateway.amqp.opened_messages import marked, opened
from weir.gateway.amqp.publish_properties import REPLY_TO, type_name
from weir.gateway.amqp.unacked import Pending, Taken
from weir.model.batch import runs_of
from weir.model.errors import ConsumerClosedError, TooManyError
from weir.model.queues import QueueKind, queue_in_vhost
from weir.model.subscriptions import MessageFilter
from weir.wire.amqp.content import get_ok
from weir.wire.amqp.frames import ReplyCode
from weir.wire.amqp.methods import Method, basic
from weir.wire.amqp.tables import plain_fields

ACK, REQUEUE, REJECT = "ack", "requeue", "reject"


@handles(basic.Ack)
def ack(channel: Channel, method: basic.Ack) -> None:
    channel.session.acknowledges = True
    _settled(channel, method.delivery_tag, ACK, multiple=method.multiple)


@handles(basic.Nack)
def nack(channel: Channel, method: basic.Nack) -> None:
    _settled(channel, method.delivery_tag, REQUEUE if method.requeue else REJECT, multiple=method.multiple)


@handles(basic.Reject)
def reject(channel: Channel, method: basic.Reject) -> None:
    _settled(channel, method.delivery_tag, REQUEUE if method.requeue else REJECT, multiple=False)


def _settled(channel: Channel, tag: int, how: str, *, multiple: bool) -> None:
    taken = channel.unacked.take(tag, multiple=multiple)
    if how != ACK:
        _check_refusable(channel, taken)
    if channel.transaction is not None:
        channel.transaction.settle(taken, how)
    else:
        settle(channel, taken, how)


def _check_refusable(channel: Channel, taken: list[tuple[int, Pending]]) -> None:
    """Refuse nack and reject for messages of a stream, as RabbitMQ does."""
    for _, (source, _offset) in taken:
        if isinstance(source, ConsumerLink) and source.queue.rules.kind is QueueKind.STREAM:
            raise unsupported(source.queue, "basic.nack and basic.reject", channel.session.vhost.name)


def settle(channel: Channel, taken: list[tuple[int, Pending]], how: str) -> None:
    """Settle messages with their consumers or getters; acks reach the queues at the end of the turn."""
    session = channel.session
    touched: dict[Taken, None] = {}
    for _, (source, offset) in taken:
        if how == ACK:
            source.ack(offset)
            channel.acked += 1
        elif how == REQUEUE:
            source.requeue(offset)
        else:
            source.reject(offset)
        if isinstance(source, ConsumerLink):
            channel.prefetched -= 1
        touched[source] = None
    session.settling.setdefault(channel, {}).update(touched)
    if how != ACK:
        session.settle()


_Later = Coroutine[Any, Any, Method | None]
_TAG_BYTES = 16
_PRIORITY, _STREAM_OFFSET = "x-priority", "x-stream-offset"
_FILTER, _TAGS = "x-weir-filter", "x-weir-filter-tags"


@handles(basic.Qos)
def qos(channel: Channel, method: basic.Qos) -> Method:
    if method.prefetch_size:
        raise refuse(ReplyCode.NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
    if method.global_:
        channel.global_prefetch = method.prefetch_count
        channel.wake()
    else:  # as in RabbitMQ, the two prefetch kinds exclude each other
        channel.global_prefetch = 0
        channel.prefetch = method.prefetch_count
        channel.wake()
    return basic.QosOk()


@handles(basic.Consume)
def consume(channel: Channel, method: basic.Consume) -> Method | _Later | None:
    session = channel.session
    tag = method.consumer_tag or f"amq.ctag-{_random(channel)}"
    if tag in channel.consumers or channel.has_reply_tag(tag):
        raise refuse(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    if method.queue == REPLY_TO:
        if not method.no_ack:
            raise precondition_failed("reply consumer cannot acknowledge")
        channel.expect_replies(tag)
        return None if method.no_wait else basic.ConsumeOk(tag)
    if session.consumer_count >= session.limits.max_consumers:
        session.services.metrics.over_limit += 1
        raise TooManyError(f"this connection has {session.consumer_count} consumers, which is its limit")
    arguments = plain_fields(method.arguments)
    name = meant(channel, method.queue)
    priority = arguments.get(_PRIORITY, 0)
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise precondition_failed(
            f"invalid arg '{_PRIORITY}' for {queue_in_vhost(name, session.vhost.name)}: "
            f'"expected integer, got {type_name(method.arguments.field(_PRIORITY))}"'
        )
    request = ConsumeRequest(
        session.role,
        tag,
        method.exclusive,
        priority,
        method.no_ack,
        channel.prefetch,
        session.peer,
        arguments,
        arguments.get(_STREAM_OFFSET),
        _filter_in(arguments, name, session.vhost.name),
    )
    return _consume(channel, name, request, method.no_wait)


def _filter_in(arguments: Mapping[str, Any], queue: str, vhost: str) -> MessageFilter | None:
    """The message filter in the consumer arguments, or None."""
    said: list[str] = []
    for name in (_FILTER, _TAGS):
        text = arguments.get(name, "")
        if not isinstance(text, str):
            raise precondition_failed(
                f"invalid arg '{name}' for {queue_in_vhost(queue, vhost)}: expected a string"
            )
        said.append(text)
    return MessageFilter(*said) or None


async def _consume(channel: Channel, name: str, request: ConsumeRequest, no_wait: bool) -> Method | None:
    link = await channel.session.consume(channel, name, request)
    channel.consumers[request.tag] = link
    channel.session.services.metrics.consumers += 1
    if not no_wait:
        channel.say(basic.ConsumeOk(request.tag))
    link.start()
    return None


@handles(basic.Cancel)
def cancel(channel: Channel, method: basic.Cancel) -> Method | None:
    link = channel.consumers.pop(method.consumer_tag, None)
    if link is not None:
        link.retire()
    else:
        channel.cancel_replies(method.consumer_tag)
    return None if method.no_wait else basic.CancelOk(method.consumer_tag)


@handles(basic.CancelOk)
def cancel_ok(_channel: Channel, _method: basic.CancelOk) -> None:
    """The client's answer to the broker's cancel."""


@handles(basic.Get)
async def get(channel: Channel, method: basic.Get) -> Method | None:
    session = channel.session
    if len(channel.unacked) >= session.limits.max_unacked:
        raise TooManyError(f"this channel has {len(channel.unacked)} unacknowledged messages, which is its limit")
    await session.publishing.settled()
    queue = await session.get_queue(meant(channel, method.queue))
    if queue.rules.kind is QueueKind.STREAM:
        raise unsupported(queue, "basic.get", session.vhost.name)
    getter = await channel.getters.of(queue)
    try:
        delivery = await getter.consumer.take()
    except ConsumerClosedError:  # the queue moved since the last get
        await channel.getters.drop(queue)
        queue = await session.get_queue(meant(channel, method.queue))
        getter = await channel.getters.of(queue)
        delivery = await getter.consumer.take()
    if delivery is None:
        return basic.GetEmpty()
    batch = delivery.batch
    offset = batch.base_offset if delivery.wanted is None else runs_of(delivery.wanted, batch.base_offset)[0][0]
    found = session.services.decoded.find(batch)
    if found is None:
        found = opened(batch, queue.declaration.name, MOST_PROPERTY_BYTES)
        session.services.decoded.keep(batch, found)
    message = marked(found[offset - batch.base_offset], queue.rules.kind, offset, delivery.redelivered)
    if method.no_ack:
        tag = channel.unacked.next_tag()
        getter.consumer.ack([(offset, offset + 1)])
    else:
        getter.unacked += 1
        tag = channel.unacked.add(getter, offset)
    again = delivery.redelivered > 0
    channel.delivered += 1
    channel.redelivered += again
    session.services.metrics.delivered += 1
    left = (await queue.counts()).ready
    session.outbox.say_all(get_ok(channel.number, tag, again, message, left=left, frame_max=session.frame_max))
    return None


@handles(basic.Recover)
def recover(channel: Channel, method: basic.Recover) -> Method:
    _recover(channel, requeue=method.requeue)
    return basic.RecoverOk()


@handles(basic.RecoverAsync)
def recover_async(channel: Channel, method: basic.RecoverAsync) -> None:
    _recover(channel, requeue=method.requeue)


def _recover(channel: Channel, *, requeue: bool) -> None:
    if not requeue:
        raise refuse(ReplyCode.NOT_IMPLEMENTED, "requeue=false")
    settle(channel, channel.unacked.take_all(), "requeue")


def _random(channel: Channel) -> str:
    made = channel.session.services.runtime.rng.randbytes(_TAG_BYTES)
    return base64.urlsafe_b64encode(made).decode().rstrip("=")
