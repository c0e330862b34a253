"""Class basic, what becomes of delivered messages: ack, nack, reject."""

from weir.gateway.amqp.channel.channel import Channel
from weir.gateway.amqp.channel.taken import Taken
from weir.gateway.amqp.channel.unacked import Pending
from weir.gateway.amqp.consume.consuming import ConsumerLink
from weir.gateway.amqp.consume.kinds import unsupported
from weir.gateway.amqp.registry import handles
from weir.model.queues import QueueKind
from weir.wire.amqp.methods import basic

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
    """Nothing goes back to a stream; who means to is told, as RabbitMQ does."""
    for _, (source, _offset) in taken:
        if isinstance(source, ConsumerLink) and source.queue.rules.kind is QueueKind.STREAM:
            raise unsupported(source.queue, "basic.nack and basic.reject", channel.session.vhost.name)


def settle(channel: Channel, taken: list[tuple[int, Pending]], how: str) -> None:
    """Tell those that the messages came from, at the end of the turn."""
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
