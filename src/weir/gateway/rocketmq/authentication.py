"""Authentication of calls: signature (gRPC metadata), TLS certificate, or anonymous if authentication is off."""

import re

from weir.broker.api.broker import Broker
from weir.broker.api.security import Identity
from weir.model.errors import NotAuthenticatedError
from weir.runtime.interfaces import Clock
from weir.wire.http2.streams import Headers

#: `MQv2-HMAC-SHA1 Credential=AK, SignedHeaders=x-mq-date-time, Signature=HEX`
_AUTHORIZATION = re.compile(
    rb"MQv2-HMAC-SHA1 Credential=([^,/ ]*)[^,]*, ?SignedHeaders=([^,]*), ?Signature=([0-9a-fA-F]{40})"
)
_DATE = b"x-mq-date-time"
#: Cache size for verified signatures; each is valid for the second in its date.
_REMEMBERED = 64


class Credentials:
    """Caches the identities of one connection. Each call has credentials, and most calls have the same."""

    def __init__(self, broker: Broker, clock: Clock, certificate: bytes | None) -> None:
        self._broker = broker
        self._clock = clock
        self._certificate = certificate
        self._known: dict[tuple[bytes, bytes], Identity] = {}

    def known(self, headers: Headers) -> str | None:
        """The cached role, or None."""
        identity = self._known.get(_key(headers))
        if identity is None:
            return None
        if identity.expires_ms is not None and identity.expires_ms <= self._clock.wall_ms():
            return None
        return identity.role

    async def find(self, headers: Headers) -> str:
        """Authenticate and return the role; NotAuthenticatedError."""
        key = _key(headers)
        identity = await self._find(*key)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[key] = identity
        return identity.role

    async def _find(self, authorization: bytes, date: bytes) -> Identity:
        said = _AUTHORIZATION.fullmatch(authorization) if authorization else None
        if said is not None and said[1]:
            credentials = b"\0".join((said[1], date, said[3].lower()))
            return await self._broker.authenticate("signature", credentials)
        if self._certificate is not None:
            return await self._broker.authenticate("tls", b"", certificate=self._certificate)
        if authorization and said is None:
            raise NotAuthenticatedError(
                "the authorization header is malformed",
                hint="send MQv2-HMAC-SHA1 Credential=..., SignedHeaders=x-mq-date-time, Signature=...",
            )
        return await self._broker.authenticate("none", b"")


def _key(headers: Headers) -> tuple[bytes, bytes]:
    return headers.get(b"authorization", b""), headers.get(_DATE, b"")
