"""Authentication of a session: SASL PLAIN with a password or a token, a client certificate, or anonymous."""

import logging

from weir.broker.api.broker import Broker
from weir.broker.api.security import Identity
from weir.model.errors import NotAuthenticatedError
from weir.model.ids import Buffer
from weir.runtime.interfaces import Clock, Timer

log = logging.getLogger(__name__)

MECHANISMS = ("PLAIN",)
_METHOD = "password"
_PLAIN_PARTS = 3


class Credentials:
    """The identity of one session: empty until the broker accepts it as anonymous or it authenticates."""

    def __init__(self, broker: Broker, clock: Clock, certificate: bytes | None = None) -> None:
        self._broker = broker
        self._certificate = certificate
        self._clock = clock
        self._identity: Identity | None = None
        self._timer: Timer | None = None
        #: Whether the session serves requests: only between authentication and the token's expiry.
        self.valid = False
        #: Whether a handshake has selected PLAIN, so that SaslAuthenticate may follow.
        self.shaken = False
        #: Whether the SASL token follows as a bare frame (after version 0 of the handshake).
        self.bare = False
        self._proven = False

    @property
    def role(self) -> str:
        return "" if self._identity is None else self._identity.role

    async def welcome(self) -> None:
        """Authenticate without SASL: by the client's certificate, or anonymously if the broker permits it."""
        try:
            self._identity = await self._broker.authenticate("none", b"", certificate=self._certificate)
            self.valid = True
        except NotAuthenticatedError:
            log.debug("the client must authenticate")

    async def prove(self, message: Buffer) -> int:
        """Authenticate with a PLAIN message, or renew with one of the same role. Returns the lifetime in
        milliseconds (0: unlimited). NotAuthenticatedError."""
        identity = await self._broker.authenticate(_METHOD, _login(message))
        if self._proven and identity.role != self.role:
            raise NotAuthenticatedError("a connection cannot change its role; open a new connection")
        self.forget()
        self._identity, self.valid, self._proven = identity, True, True
        if identity.expires_ms is None:
            return 0
        left_ms = max(1, identity.expires_ms - self._clock.wall_ms())
        self._timer = self._clock.call_later(left_ms / 1000, self._expire)
        return left_ms

    def forget(self) -> None:
        """Cancel the expiry timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        self.valid = False


def _login(message: Buffer) -> bytes:
    """Extract `user NUL password` from `authorization id NUL user NUL password`. A token in place of the password
    names the role itself, so the user name is ignored then."""
    parts = bytes(message).split(b"\0")
    if len(parts) != _PLAIN_PARTS or not parts[2]:
        raise NotAuthenticatedError("not a PLAIN message", hint="give a name and a password, or a token as such")
    return parts[1] + b"\0" + parts[2]
