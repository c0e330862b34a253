"""Who a session's client is, and for how long: by SASL PLAIN, with a user's password or a token in its place."""

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
    """The identity of one session: nobody until it is welcome as it is, or has proved who it is."""

    def __init__(self, broker: Broker, clock: Clock, certificate: bytes | None = None) -> None:
        self._broker = broker
        self._certificate = certificate
        self._clock = clock
        self._identity: Identity | None = None
        self._timer: Timer | None = None
        #: Whether requests are served: not before it is known who asks, nor after its token has ended.
        self.valid = False
        #: Whether a handshake has named PLAIN, so that its proof may come.
        self.shaken = False
        #: Whether that proof comes as a bare frame: after the oldest form of the handshake.
        self.bare = False
        self._proven = False

    @property
    def role(self) -> str:
        return "" if self._identity is None else self._identity.role

    async def welcome(self) -> None:
        """Somebody came. With a certificate, or where nobody need say who they are, this is enough."""
        try:
            self._identity = await self._broker.authenticate("none", b"", certificate=self._certificate)
            self.valid = True
        except NotAuthenticatedError:
            log.debug("the client must authenticate")

    async def prove(self, message: Buffer) -> int:
        """Take a PLAIN message, the first one or a newer one of the same role; answers for how many milliseconds
        it is good (0: for ever). NotAuthenticatedError."""
        identity = await self._broker.authenticate(_METHOD, _login(message))
        if self._proven and identity.role != self.role:
            raise NotAuthenticatedError("a connection's role does not change; make a new one")
        self.forget()
        self._identity, self.valid, self._proven = identity, True, True
        if identity.expires_ms is None:
            return 0
        left_ms = max(1, identity.expires_ms - self._clock.wall_ms())
        self._timer = self._clock.call_later(left_ms / 1000, self._expire)
        return left_ms

    def forget(self) -> None:
        """Watch the clock no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        self.valid = False


def _login(message: Buffer) -> bytes:
    """`user NUL password`, out of `authorization id NUL user NUL password`. A token in the password's place itself
    names the role, so the user may be anything then."""
    parts = bytes(message).split(b"\0")
    if len(parts) != _PLAIN_PARTS or not parts[2]:
        raise NotAuthenticatedError("not a PLAIN message", hint="give a name and a password, or a token as such")
    return parts[1] + b"\0" + parts[2]
