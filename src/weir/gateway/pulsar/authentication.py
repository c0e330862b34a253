"""Authentication of a session; requests new credentials before the current ones expire."""

import logging
from typing import TYPE_CHECKING

from weir.broker.api.security import Identity
from weir.model.errors import NotAuthenticatedError
from weir.runtime.interfaces import Timer
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.frames import PROTOCOL_VERSION

if TYPE_CHECKING:
    from weir.gateway.pulsar.session import Session

log = logging.getLogger(__name__)

SERVER_VERSION = "Weir"
#: The challenge that makes clients send the credentials of a new CONNECT.
_REFRESH = b"PulsarAuthRefresh"
#: Pulsar's method for a name and a password, separated by a colon.
_BASIC = "basic"


class Credentials:
    """The identity of one session; empty until the first `prove`."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._identity: Identity | None = None
        self._timer: Timer | None = None

    @property
    def role(self) -> str:
        return "" if self._identity is None else self._identity.role

    async def prove(self, method: str, data: bytes) -> None:
        """Authenticate, or renew the credentials of the same role; NotAuthenticatedError."""
        session = self._session
        known_as, credentials = method, data
        if method == _BASIC:
            known_as, credentials = "password", data.replace(b":", b"\0", 1)
        identity = await session.broker.authenticate(known_as, credentials, certificate=session.certificate)
        if self._identity is not None and identity.role != self._identity.role:
            raise NotAuthenticatedError("a connection cannot change its role; open a new connection")
        self._identity = identity
        self.forget()
        if identity.expires_ms is not None:
            self._watch(method, identity.expires_ms)

    def forget(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self, method: str, expires_ms: int) -> None:
        left_s = max(0.0, (expires_ms - self._session.clock.wall_ms()) / 1000)
        if not self._session.features.supports_auth_refresh:
            self._timer = self._session.clock.call_later(left_s, self._expire)
            return
        ask_in_s = max(left_s / 2, left_s - self._session.limits.refresh_ahead_s)
        self._timer = self._session.clock.call_later(ask_in_s, lambda: self.ask(method, left_s - ask_in_s))

    def ask(self, method: str, left_s: float) -> None:
        """Request new credentials; the session ends without them after `left_s`."""
        self.forget()
        self._session.answer(
            api.CommandAuthChallenge(
                server_version=SERVER_VERSION,
                challenge=api.AuthData(auth_method_name=method, auth_data=_REFRESH),
                protocol_version=PROTOCOL_VERSION,
            )
        )
        self._timer = self._session.clock.call_later(left_s, self._expire)

    def _expire(self) -> None:
        log.info("connection of %s is closed: its credentials have expired", self._session.peer)
        self._session.end(NotAuthenticatedError("the credentials have expired"))
