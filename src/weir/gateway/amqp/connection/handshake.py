"""How a connection is opened: who the client is, what both sides can do, and its virtual host."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from weir import __version__
from weir.gateway.amqp.connection.credentials import login_of
from weir.gateway.amqp.connection.states import Event, State
from weir.gateway.amqp.connection.vhosts import open_vhost
from weir.gateway.amqp.errors import LoginRefused, refuse
from weir.model.errors import NotAuthenticatedError, WireError
from weir.wire.amqp.codes import ReplyCode
from weir.wire.amqp.frames import MIN_FRAME_MAX
from weir.wire.amqp.methods import Method, connection
from weir.wire.amqp.tables import Plain, Table

if TYPE_CHECKING:
    from weir.gateway.amqp.connection.session import Session

#: Clients ask for these by name before they use what is behind them.
_CAPABILITIES: dict[str, Plain] = dict.fromkeys(
    (
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ),
    True,
)
#: Clients know by these how the server behaves where RabbitMQ differs from the specification (basic.qos, say).
_PRODUCT, _VERSION = "RabbitMQ", "3.13.7"


class HandshakeError(WireError):
    """What ends a connection that is not open yet: as in RabbitMQ, without a word to whoever is not known."""


def start(session: "Session") -> connection.Start:
    """The first word."""
    properties: dict[str, Plain] = {
        "capabilities": _CAPABILITIES,
        "cluster_name": session.cluster_name,
        "copyright": "the authors of Weir",
        "information": "Weir serves RabbitMQ's clients",
        "platform": f"Weir {__version__}",
        "product": _PRODUCT,
        "version": _VERSION,
    }
    return connection.Start(
        server_properties=Table.of(properties),
        mechanisms=" ".join(session.credentials.mechanisms).encode(),
    )


async def _start_ok(session: "Session", method: connection.StartOk) -> None:
    session.client_properties = method.client_properties
    if method.mechanism not in session.credentials.mechanisms:
        raise HandshakeError(f"unknown authentication mechanism {method.mechanism[:40]!r}")
    await _prove(session, method.mechanism, method.response)


async def _secure_ok(session: "Session", method: connection.SecureOk) -> None:
    await _prove(session, session.credentials.mechanism, method.response)


async def _prove(session: "Session", mechanism: str, response: bytes) -> None:
    try:
        login = login_of(mechanism, response)
    except NotAuthenticatedError as malformed:
        raise HandshakeError(malformed.what) from None
    try:
        await session.credentials.prove(mechanism, login)
    except NotAuthenticatedError as refused:
        if not session.capable("authentication_failure_close"):
            raise HandshakeError(refused.what) from None
        session.log_refusal(refused)
        raise LoginRefused(
            f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile.",
            code=ReplyCode.ACCESS_REFUSED,
        ) from refused
    limits = session.limits
    session.move(Event.KNOWN)
    session.say(connection.Tune(limits.channel_max, limits.frame_max, limits.heartbeat_s))


async def _tune_ok(session: "Session", method: connection.TuneOk) -> None:
    limits = session.limits
    for name, wanted, least, most in (
        ("frame_max", method.frame_max, MIN_FRAME_MAX, limits.frame_max),
        ("channel_max", method.channel_max, 1, limits.channel_max),
    ):
        if not least <= wanted <= most:  # 0 is no limit, which is more than what was offered
            raise HandshakeError(f"negotiated {name} = {wanted} is not between {least} and {most}")
    session.tuned(method.frame_max, method.channel_max, method.heartbeat)
    session.move(Event.TUNED)


async def _open(session: "Session", method: connection.Open) -> None:
    services = session.services
    found = await open_vhost(method.virtual_host, services.exchanges, services.queues)
    if found is None:
        raise refuse(ReplyCode.NOT_ALLOWED, f"vhost {method.virtual_host} not found")
    most = found.queues.limits.connections
    if most is not None:
        there = [one for one in services.connections.all() if one.info.namespace == found.namespace]
        if len(there) >= most:
            who = f"access to vhost '{method.virtual_host}' refused for user '{session.user}'"
            raise refuse(ReplyCode.NOT_ALLOWED, f"{who}: connection limit ({most}) is reached")
    session.opened(found)
    session.move(Event.OPENED)
    session.say(connection.OpenOk())


#: What is expected in each state, and what it does. All else is out of place.
STEPS: dict[State, tuple[type[Method], Callable[["Session", Any], Coroutine[Any, Any, None]]]] = {
    State.START: (connection.StartOk, _start_ok),
    State.SECURE: (connection.SecureOk, _secure_ok),
    State.TUNE: (connection.TuneOk, _tune_ok),
    State.OPEN: (connection.Open, _open),
}
