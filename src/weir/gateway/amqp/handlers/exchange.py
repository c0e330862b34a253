"""Class exchange: declare, delete, bind, unbind."""

from collections.abc import Coroutine
from typing import Any

from weir.gateway.amqp.channel import Channel
from weir.gateway.amqp.context import check_alternate, check_exchange, check_key
from weir.gateway.amqp.method_table import handles, without_line_breaks
from weir.model.errors import ExchangeNotFoundError
from weir.model.exchanges import Binding, Destination, Exchange, ExchangeType, check_not_default
from weir.model.registry import Action
from weir.wire.amqp.methods import Method, exchange
from weir.wire.amqp.tables import plain_fields

_Later = Coroutine[Any, Any, Method | None]


@handles(exchange.Declare)
def declare(channel: Channel, method: exchange.Declare) -> Method | _Later | None:
    method = without_line_breaks(method)
    if method.passive:
        check_not_default(method.exchange)
        channel.session.vhost.exchanges.get(method.exchange)
        return None if method.no_wait else exchange.DeclareOk()
    wanted = Exchange(
        method.exchange,
        ExchangeType.parse(method.type),
        method.durable,
        method.auto_delete,
        method.internal,
        plain_fields(method.arguments),
    )
    check_alternate(channel.session, wanted.name, dict(wanted.arguments))
    return _declare(channel, wanted, method.no_wait)


async def _declare(channel: Channel, wanted: Exchange, no_wait: bool) -> Method | None:
    await channel.session.vhost.exchanges.declare(channel.session.role, wanted)
    return None if no_wait else exchange.DeclareOk()


@handles(exchange.Delete)
async def delete(channel: Channel, method: exchange.Delete) -> Method | None:
    exchanges, role = channel.session.vhost.exchanges, channel.session.role
    method = without_line_breaks(method)
    there = exchanges.find(method.exchange)
    await exchanges.delete(role, method.exchange, if_unused=method.if_unused)
    if there is not None and there.type is ExchangeType.DELAYED:
        await channel.session.vhost.queues.forget_delayed(method.exchange)
    return None if method.no_wait else exchange.DeleteOk()


@handles(exchange.Bind)
async def bind(channel: Channel, method: exchange.Bind) -> Method | None:
    exchanges = channel.session.vhost.exchanges
    method = without_line_breaks(method)
    for name in (method.source, method.destination):
        check_not_default(name)
        if exchanges.find(name) is None:
            raise ExchangeNotFoundError(f"no exchange {name!r}")
    _check_binding(channel, method)
    await exchanges.bind(channel.session.role, _binding(method), durable=True)
    return None if method.no_wait else exchange.BindOk()


@handles(exchange.Unbind)
async def unbind(channel: Channel, method: exchange.Unbind) -> Method | None:
    """Remove a binding; succeeds if the exchange or binding does not exist."""
    method = without_line_breaks(method)
    _check_binding(channel, method)
    await channel.session.vhost.exchanges.unbind(channel.session.role, _binding(method))
    return None if method.no_wait else exchange.UnbindOk()


def _check_binding(channel: Channel, method: exchange.Bind | exchange.Unbind) -> None:
    check_exchange(channel.session, method.destination, Action.PRODUCE)
    check_exchange(channel.session, method.source, Action.CONSUME)
    source = channel.session.vhost.exchanges.find(method.source)
    check_key(channel.session, source, method.routing_key, Action.CONSUME)


def _binding(method: exchange.Bind | exchange.Unbind) -> Binding:
    to = Destination(method.destination, exchange=True)
    return Binding(method.source, to, method.routing_key, plain_fields(method.arguments))
