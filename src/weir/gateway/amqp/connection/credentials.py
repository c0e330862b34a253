"""Who a session's client is, and for how long: by PLAIN, AMQPLAIN or its certificate."""

import logging
from collections.abc import Callable

from weir.broker.api import Broker, Identity
from weir.model.errors import AmqpError, NotAuthenticatedError
from weir.runtime.interfaces import Clock, Timer
from weir.wire.amqp.tables import Table

log = logging.getLogger(__name__)

PLAIN, AMQPLAIN, EXTERNAL = "PLAIN", "AMQPLAIN", "EXTERNAL"
_PLAIN_PARTS = 3
#: A name and a password.
Login = tuple[bytes, bytes]


class Credentials:
    """The identity of one session: nobody until it has proved who it is. `on_expiry` is called when that ends."""

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
        #: The client's name: what it has proved, or what it calls itself where nobody need prove anything.
        self.user = ""
        self.mechanism = ""

    @property
    def role(self) -> str:
        return "" if self._identity is None else self._identity.role

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """What is offered."""
        return (PLAIN, AMQPLAIN) if self._certificate is None else (PLAIN, AMQPLAIN, EXTERNAL)

    async def prove(self, mechanism: str, login: Login | None) -> None:
        """NotAuthenticatedError. A mechanism that is offered; the name and password, unless it is EXTERNAL."""
        self.mechanism = mechanism
        if login is None:
            identity = await self._broker.authenticate("tls", b"", certificate=self._certificate)
            self._take(identity, identity.role)
            return
        self._name, password = login
        identity = await self._broker.authenticate("password", self._name + b"\0" + password)
        self._take(identity, await self._known_as(identity))

    async def _known_as(self, identity: Identity) -> str:
        """Where nobody must say who they are, as the client says; else as it has proved."""
        try:
            nobody = await self._broker.authenticate("none", b"")
        except NotAuthenticatedError:
            return identity.role
        return self._name.decode("utf-8", "replace") if identity.role == nobody.role else identity.role

    async def renew(self, secret: bytes) -> None:
        """A newer password or token of the same role; NotAuthenticatedError."""
        identity = await self._broker.authenticate("password", self._name + b"\0" + secret)
        if identity.role != self.role:
            raise NotAuthenticatedError("a connection's role does not change; make a new one")
        self._take(identity, self.user)

    def vouches_for(self, user_id: str) -> bool:
        """Whether a message may say that this user published it."""
        return user_id == self.user

    def forget(self) -> None:
        """Watch the clock no more."""
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
    """What a response says; None of EXTERNAL. NotAuthenticatedError if it cannot be read."""
    if mechanism == EXTERNAL:
        return None
    return _plain(response) if mechanism == PLAIN else _amqplain(response)


def _plain(response: bytes) -> tuple[bytes, bytes]:
    """Out of `authorization id NUL user NUL password`."""
    parts = response.split(b"\0", _PLAIN_PARTS - 1)
    if len(parts) != _PLAIN_PARTS:
        raise NotAuthenticatedError("the response of PLAIN is malformed")
    return parts[1], parts[2]


def _amqplain(response: bytes) -> tuple[bytes, bytes]:
    """Out of a table with LOGIN and PASSWORD."""
    try:
        table = Table(response)
    except AmqpError as bad:
        raise NotAuthenticatedError(f"the response of AMQPLAIN is malformed: {bad.what}") from None
    user, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(user, str) or not isinstance(password, str):
        raise NotAuthenticatedError("AMQPLAIN needs LOGIN and PASSWORD")
    return user.encode("utf-8", "surrogateescape"), password.encode("utf-8", "surrogateescape")
