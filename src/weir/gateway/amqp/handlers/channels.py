"""Class channel, and the tickets of class access."""

from weir.gateway.amqp.channel.channel import Channel
from weir.gateway.amqp.errors import refuse
from weir.gateway.amqp.registry import handles
from weir.wire.amqp.codes import ReplyCode
from weir.wire.amqp.methods import Method, access
from weir.wire.amqp.methods import channel as methods


@handles(methods.Open)
def open_again(_channel: Channel, _method: methods.Open) -> None:
    raise refuse(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")


@handles(methods.Close)
async def close(channel: Channel, _method: methods.Close) -> Method:
    """All that was published on it is stored, and all that it had is requeued, before the client is told."""
    await channel.close()
    channel.session.forget_channel(channel)
    return methods.CloseOk()


@handles(methods.CloseOk)
def close_ok(_channel: Channel, _method: methods.CloseOk) -> None:
    """Of a close that crossed the client's own."""


@handles(methods.Flow)
def flow(_channel: Channel, method: methods.Flow) -> Method:
    if not method.active:
        raise refuse(ReplyCode.NOT_IMPLEMENTED, "active=false")
    return methods.FlowOk(True)


@handles(methods.FlowOk)
def flow_ok(_channel: Channel, _method: methods.FlowOk) -> None:
    """Nobody was asked to pause."""


@handles(access.Request)
def ticket(_channel: Channel, _method: access.Request) -> Method:
    return access.RequestOk(1)
