"""AMQP connection handshake: the state table, authentication, tuning, and the virtual host.

Clients authenticate with PLAIN, AMQPLAIN or a certificate (EXTERNAL). A virtual host is a namespace.
"""

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from weir import __version__
from weir.broker.api.broker import Broker
from weir.broker.api.queues import Exchanges, NamespaceExchanges, NamespaceQueues, Queues
from weir.broker.api.security import Identity
from weir.gateway.amqp.errors import LoginRefused, refuse
from weir.model.errors import (
    AmqpError,
    InvalidNameError,
    NamespaceNotFoundError,
    NotAuthenticatedError,
    TenantNotFoundError,
    WireError,
)
from weir.model.topics import DEFAULT_NAMESPACE, NamespaceName
from weir.runtime.interfaces import Clock, Timer
from weir.wire.amqp.frames import MIN_FRAME_MAX, ReplyCode
from weir.wire.amqp.methods import Method, connection
from weir.wire.amqp.tables import Plain, Table

if TYPE_CHECKING:
    from weir.gateway.amqp.session import Session


log = logging.getLogger(__name__)

PLAIN, AMQPLAIN, EXTERNAL = "PLAIN", "AMQPLAIN", "EXTERNAL"
_PLAIN_PARTS = 3
#: A name and a password.
Login = tuple[bytes, bytes]


class Credentials:
    """The identity of one session, empty before authentication. Calls `on_expiry` when the credentials expire."""

    def __init__(
        self, broker: Broker, clock: Clock, certificate: bytes | None, on_expiry: Callable[[], None]
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._certificate = certificate
        self._on_expiry = on_expiry
        self._identity: Identity | None = None
        self._timer: Timer | None = None
        self._name = b""
        #: The user name: the authenticated role, or the client's own claim if authentication is off.
        self.user = ""
        self.mechanism = ""

    @property
    def role(self) -> str:
        return "" if self._identity is None else self._identity.role

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms that the server offers."""
        return (PLAIN, AMQPLAIN) if self._certificate is None else (PLAIN, AMQPLAIN, EXTERNAL)

    async def prove(self, mechanism: str, login: Login | None) -> None:
        """Authenticate with an offered mechanism; `login` is None for EXTERNAL. Raises NotAuthenticatedError."""
        self.mechanism = mechanism
        if login is None:
            identity = await self._broker.authenticate("tls", b"", certificate=self._certificate)
            self._take(identity, identity.role)
            return
        self._name, password = login
        identity = await self._broker.authenticate("password", self._name + b"\0" + password)
        self._take(identity, await self._known_as(identity))

    async def _known_as(self, identity: Identity) -> str:
        """The user name: the client's claim if authentication is off, else the authenticated role."""
        try:
            nobody = await self._broker.authenticate("none", b"")
        except NotAuthenticatedError:
            return identity.role
        return self._name.decode("utf-8", "replace") if identity.role == nobody.role else identity.role

    async def renew(self, secret: bytes) -> None:
        """Replace the credentials with a newer password or token of the same role; NotAuthenticatedError."""
        identity = await self._broker.authenticate("password", self._name + b"\0" + secret)
        if identity.role != self.role:
            raise NotAuthenticatedError("a connection cannot change its role; open a new connection")
        self._take(identity, self.user)

    def vouches_for(self, user_id: str) -> bool:
        """Whether a message of this session may have this user_id."""
        return user_id == self.user

    def forget(self) -> None:
        """Stop the expiry timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take(self, identity: Identity, user: str) -> None:
        self.forget()
        self._identity, self.user = identity, user
        if identity.expires_ms is not None:
            left_s = max(0.0, (identity.expires_ms - self._clock.wall_ms()) / 1000)
            self._timer = self._clock.call_later(left_s, self._on_expiry)


def login_of(mechanism: str, response: bytes) -> Login | None:
    """Parse a SASL response; None for EXTERNAL. NotAuthenticatedError if it is malformed."""
    if mechanism == EXTERNAL:
        return None
    return _plain(response) if mechanism == PLAIN else _amqplain(response)


def _plain(response: bytes) -> tuple[bytes, bytes]:
    """Parse `authorization id NUL user NUL password`."""
    parts = response.split(b"\0", _PLAIN_PARTS - 1)
    if len(parts) != _PLAIN_PARTS:
        raise NotAuthenticatedError("the response of PLAIN is malformed")
    return parts[1], parts[2]


def _amqplain(response: bytes) -> tuple[bytes, bytes]:
    """Parse a table with LOGIN and PASSWORD."""
    try:
        table = Table(response)
    except AmqpError as bad:
        raise NotAuthenticatedError(f"the response of AMQPLAIN is malformed: {bad.what}") from None
    user, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(user, str) or not isinstance(password, str):
        raise NotAuthenticatedError("AMQPLAIN needs LOGIN and PASSWORD")
    return user.encode("utf-8", "surrogateescape"), password.encode("utf-8", "surrogateescape")


class State(Enum):
    HEADER = "expects the protocol header"
    START = "expects start-ok"
    SECURE = "expects secure-ok"
    TUNE = "expects tune-ok"
    OPEN = "expects open"
    SERVING = "accepts commands"
    LEAVING = "finishes accepted commands after the client's close"
    CLOSING = "accepts no commands, and sends a close with the reason"
    CLOSED = "closed"


class Event(Enum):
    GREETED = "the client sent the protocol header"
    CHALLENGED = "authentication needs another response"
    KNOWN = "the client is authenticated"
    TUNED = "the limits are negotiated"
    OPENED = "the virtual host is open"
    LEFT = "the client closes the connection"
    ENDING = "bad input, expired credentials, or server shutdown"
    GONE = "the client disconnected, or the close is complete"


_END = {Event.ENDING: State.CLOSING, Event.GONE: State.CLOSED, Event.LEFT: State.LEAVING}
#: All legal transitions; a missing one is a bug.
NEXT: dict[State, dict[Event, State]] = {
    State.HEADER: {Event.GREETED: State.START, **_END},
    State.START: {Event.CHALLENGED: State.SECURE, Event.KNOWN: State.TUNE, **_END},
    State.SECURE: {Event.KNOWN: State.TUNE, **_END},
    State.TUNE: {Event.TUNED: State.OPEN, **_END},
    State.OPEN: {Event.OPENED: State.SERVING, **_END},
    State.SERVING: _END,
    State.LEAVING: {Event.ENDING: State.LEAVING, Event.GONE: State.CLOSED, Event.LEFT: State.LEAVING},
    State.CLOSING: {Event.ENDING: State.CLOSING, Event.GONE: State.CLOSED, Event.LEFT: State.CLOSING},
    State.CLOSED: dict.fromkeys(Event, State.CLOSED),
}
#: States in which the session accepts commands.
READING = frozenset({State.HEADER, State.START, State.SECURE, State.TUNE, State.OPEN, State.SERVING})
#: States before the connection is open.
OPENING = READING - {State.SERVING}

DEFAULT_VHOST = "/"


@dataclass(frozen=True, slots=True)
class VirtualHost:
    """The virtual host that a connection has opened."""

    name: str
    namespace: NamespaceName
    exchanges: NamespaceExchanges
    queues: NamespaceQueues


def namespace_of(vhost: str) -> NamespaceName:
    """The namespace of a vhost: `/` is public/default, `a/b` is a/b, any other `c` public/c. InvalidNameError."""
    if vhost == DEFAULT_VHOST:
        return DEFAULT_NAMESPACE
    return NamespaceName.parse(vhost if "/" in vhost else f"{DEFAULT_NAMESPACE.tenant}/{vhost}")


async def open_vhost(name: str, exchanges: Exchanges, queues: Queues) -> VirtualHost | None:
    """Open a virtual host; None if its namespace does not exist."""
    try:
        namespace = namespace_of(name)
        return VirtualHost(name, namespace, await exchanges.open(namespace), await queues.open(namespace))
    except (InvalidNameError, NamespaceNotFoundError, TenantNotFoundError):
        return None


#: Clients check these capabilities before they use the features.
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
#: From these, clients infer behavior in which RabbitMQ differs from the specification (for example basic.qos).
_PRODUCT, _VERSION = "RabbitMQ", "3.13.7"


class HandshakeError(WireError):
    """Ends a connection during the handshake; as in RabbitMQ, an unauthenticated client receives no close."""


def start(session: "Session") -> connection.Start:
    """The server's connection.start method."""
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
        if not least <= wanted <= most:  # 0 means no limit, which is more than the offer
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


#: The expected method of each handshake state, and its handler. All other methods are errors.
STEPS: dict[State, tuple[type[Method], Callable[["Session", Any], Coroutine[Any, Any, None]]]] = {
    State.START: (connection.StartOk, _start_ok),
    State.SECURE: (connection.SecureOk, _secure_ok),
    State.TUNE: (connection.TuneOk, _tune_ok),
    State.OPEN: (connection.Open, _open),
}
