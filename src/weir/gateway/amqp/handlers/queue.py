"""Class queue. The name "" means the queue that the channel declared last."""

from contextlib import suppress

from weir.broker.api.queues import Queue
from weir.gateway.amqp.channel import Channel
from weir.gateway.amqp.context import check_dead_letters, check_exchange, check_key, check_queue
from weir.gateway.amqp.errors import refuse, unsupported
from weir.gateway.amqp.method_table import handles, without_line_breaks
from weir.gateway.amqp.publish_properties import REPLY_TO, expected_name, is_reply_name
from weir.model.errors import ExchangeNotFoundError, QueueNotFoundError, TopicNotFoundError
from weir.model.exchanges import Binding, Destination, check_not_default
from weir.model.queues import QueueDeclaration, QueueKind
from weir.model.registry import Action
from weir.wire.amqp.frames import ReplyCode
from weir.wire.amqp.methods import Method, queue
from weir.wire.amqp.tables import plain_fields


def meant(channel: Channel, name: str) -> str:
    """The queue name in a method; "" resolves to the channel's last declared queue."""
    found = name or channel.last_queue
    if not found:
        raise refuse(ReplyCode.NOT_FOUND, "no previously declared queue")
    return found


@handles(queue.Declare)
async def declare(channel: Channel, method: queue.Declare) -> Method | None:
    session = channel.session
    method = without_line_breaks(method)
    if method.queue == REPLY_TO or is_reply_name(method.queue):
        return await _declared_reply(channel, method)
    await session.publishing.settled()
    found: Queue
    if method.passive:
        found = await session.get_queue(method.queue)
    else:
        wanted = QueueDeclaration(
            method.queue, method.durable, method.exclusive, method.auto_delete, plain_fields(method.arguments)
        )
        check_dead_letters(session, wanted.name, dict(wanted.arguments))
        found = await session.vhost.queues.declare(session.role, wanted, connection=session.id)
    name = found.declaration.name
    channel.last_queue = name
    if method.no_wait:
        return None
    counts = await found.counts(use=True)
    return queue.DeclareOk(name, counts.ready, counts.consumers)


async def _declared_reply(channel: Channel, method: queue.Declare) -> Method | None:
    """Declare a direct reply-to pseudo queue, which exists while its client waits for replies."""
    replies = channel.session.services.replies
    if method.queue != REPLY_TO and not await replies.expected(expected_name(method.queue)):
        raise QueueNotFoundError(f"no queue {method.queue!r}")
    return None if method.no_wait else queue.DeclareOk(method.queue, 0, 1)


@handles(queue.Bind)
async def bind(channel: Channel, method: queue.Bind) -> Method | None:
    session = channel.session
    method = without_line_breaks(method)
    check_not_default(method.exchange)
    name = meant(channel, method.queue)
    found = await session.get_queue(name)
    if session.vhost.exchanges.find(method.exchange) is None:
        raise ExchangeNotFoundError(f"no exchange {method.exchange!r}")
    check_queue(session, name, Action.PRODUCE)
    check_exchange(session, method.exchange, Action.CONSUME)
    key = method.routing_key if method.queue or method.routing_key else name
    check_key(session, session.vhost.exchanges.find(method.exchange), key, Action.CONSUME)
    binding = Binding(method.exchange, Destination(name), key, plain_fields(method.arguments))
    await session.vhost.exchanges.bind(session.role, binding, durable=not found.declaration.in_memory)
    return None if method.no_wait else queue.BindOk()


@handles(queue.Unbind)
async def unbind(channel: Channel, method: queue.Unbind) -> Method:
    """Remove a binding; succeeds if the queue, exchange or binding does not exist."""
    session = channel.session
    method = without_line_breaks(method)
    check_not_default(method.exchange)
    name = meant(channel, method.queue)
    check_queue(session, name, Action.PRODUCE)
    check_exchange(session, method.exchange, Action.CONSUME)
    key = method.routing_key if method.queue or method.routing_key else name
    check_key(session, session.vhost.exchanges.find(method.exchange), key, Action.CONSUME)
    binding = Binding(method.exchange, Destination(name), key, plain_fields(method.arguments))
    exchanges = session.vhost.exchanges
    if binding in exchanges.bindings(source=method.exchange, queue=name):
        with suppress(QueueNotFoundError, TopicNotFoundError):
            await session.get_queue(name)  # QueueLockedError if another connection owns it
    await exchanges.unbind(session.role, binding)
    return queue.UnbindOk()


@handles(queue.Purge)
async def purge(channel: Channel, method: queue.Purge) -> Method | None:
    await channel.session.publishing.settled()
    name = meant(channel, method.queue)
    found = await channel.session.get_queue(name)
    check_queue(channel.session, name, Action.CONSUME)
    if found.rules.kind is QueueKind.STREAM:
        raise unsupported(found, "queue.purge", channel.session.vhost.name)
    count = await found.purge()
    return None if method.no_wait else queue.PurgeOk(count)


@handles(queue.Delete)
async def delete(channel: Channel, method: queue.Delete) -> Method | None:
    session = channel.session
    method = without_line_breaks(method)
    await session.publishing.settled()
    count = await session.vhost.queues.delete(
        session.role,
        meant(channel, method.queue),
        if_unused=method.if_unused,
        if_empty=method.if_empty,
        connection=session.id,
    )
    return None if method.no_wait else queue.DeleteOk(count)
