"""Who somebody is, and what they may do.

Both questions are answered from memory. A grant taken back and a token run out also end what is under way:
`Authoriser.revision` grows with every change, `Authoriser.change` waits for one, `Authenticator.expiry` for the
end of a token.
"""

import hmac
from dataclasses import dataclass

from weir.broker.api.metadata import Users
from weir.broker.api.security import Identity
from weir.broker.metadata.grants import password_fits
from weir.broker.security.tokens import TokenVerifier, is_recent, secret_keys, sign
from weir.model.errors import NotAuthenticatedError
from weir.runtime.interfaces import Clock

_MAX_CREDENTIALS_BYTES = 128 * 1024
#: No timer waits for longer at once; a year is far enough.
_LONGEST_SLEEP_S = 86_400.0
_DOTS_OF_A_TOKEN = 2


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """Standalone asks nobody who they are, and lets everybody do everything."""

    authentication: bool = False
    authorisation: bool = False
    #: Everybody's role while authentication is off.
    anonymous_role: str = "anonymous"
    #: Whether, with authentication on, one may come without credentials, as the anonymous role.
    allow_anonymous: bool = False
    #: Roles that may do everything.
    superusers: tuple[str, ...] = ()


class Authenticator:
    """Turns credentials into an identity."""

    def __init__(
        self,
        clock: Clock,
        settings: SecuritySettings,
        *,
        tokens: TokenVerifier | None = None,
        users: Users | None = None,
        access_secret: bytes = b"",
    ) -> None:
        """`access_secret`: what access keys are made of, beside the secret of tokens."""
        self._clock = clock
        self._settings = settings
        self._tokens = tokens
        self._users = users
        signing = () if tokens is None else tokens.secrets
        self._access_secrets = [secret for secret in (access_secret, *signing) if secret]

    @property
    def methods(self) -> tuple[str, ...]:
        """What a client can authenticate by."""
        offered = (("token", self._tokens), ("password", self._users))
        return (
            *(method for method, by in offered if by is not None),
            "tls",
            *(("none",) if self._anonymous_allowed else ()),
        )

    @property
    def _anonymous_allowed(self) -> bool:
        return not self._settings.authentication or self._settings.allow_anonymous

    def authenticate(self, method: str, credentials: bytes, *, certificate: bytes | None = None) -> Identity:
        """Who is behind the credentials; NotAuthenticatedError.

        `credentials` of the method `password`: a name, a zero byte, and a user's password, the secret key of an
        access key, or a token, whose role counts then rather than the name. `certificate`: what the client proved
        to own in the TLS handshake, as DER; never anything that it merely sent. A client that names no method is
        who its certificate says.
        """
        if not self._settings.authentication:
            return Identity(self._settings.anonymous_role)
        if len(credentials) > _MAX_CREDENTIALS_BYTES:
            raise NotAuthenticatedError("the credentials are too long")
        ways = {"token": self._by_token, "password": self._by_password, "signature": self._by_signature}
        if method in ways:
            return ways[method](credentials)
        match method:
            case "tls":
                return self._by_certificate(certificate)
            case "" | "none":
                if certificate is not None:
                    return self._by_certificate(certificate)
                if self._anonymous_allowed:
                    return Identity(self._settings.anonymous_role)
                raise NotAuthenticatedError("credentials are needed", hint="connect with a token")
        raise NotAuthenticatedError(
            f"authentication by {method[:40]!r} is not known here", hint=f"use {', '.join(self.methods)}"
        )

    def _by_token(self, credentials: bytes) -> Identity:
        if self._tokens is None:
            raise NotAuthenticatedError("this broker takes no tokens", hint="configure a key for them")
        speaker = self._tokens.verify(credentials, now_ms=self._clock.wall_ms())
        return Identity(speaker.role, speaker.expires_ms)

    def _by_signature(self, credentials: bytes) -> Identity:
        """An access key (a role), the moment that was signed, and the signature: zero bytes between them."""
        role, moment, signature = [*credentials.split(b"\0"), b"", b""][:3]
        name = role.decode("utf-8", "replace")
        if not any(
            hmac.compare_digest(sign(key, moment).encode(), signature)
            for key in secret_keys(self._access_secrets, name)
        ):
            raise NotAuthenticatedError(
                "the access key or the signature is wrong", hint=f"weir token access-key {name[:80]}"
            )
        if not is_recent(moment.decode("ascii", "replace"), self._clock.wall_ms()):
            raise NotAuthenticatedError("the signature is of another day", hint="is the client's clock right?")
        return Identity(role.decode("utf-8", "replace"))

    def _by_password(self, credentials: bytes) -> Identity:
        name, _, password = credentials.partition(b"\0")
        refused = NotAuthenticatedError("the name or the password is wrong")
        if self._tokens is not None and password.count(b".") == _DOTS_OF_A_TOKEN:
            try:
                return self._by_token(password)
            except NotAuthenticatedError as no_token:
                refused = no_token  # a password may have dots, too
        said = name.decode("utf-8", "replace")
        if any(hmac.compare_digest(key.encode(), password) for key in secret_keys(self._access_secrets, said)):
            return Identity(said)
        found = None if self._users is None else self._users.find(said)
        if password_fits(found, password):
            return Identity(said)
        raise refused

    def _by_certificate(self, certificate: bytes | None) -> Identity:
        if certificate is None:
            raise NotAuthenticatedError("no client certificate was shown", hint="connect by TLS with one")
        return identity_of_certificate(certificate, now_ms=self._clock.wall_ms())

    def expired(self, identity: Identity) -> bool:
        """Whether its credentials have run out."""
        return identity.expires_ms is not None and self._clock.wall_ms() >= identity.expires_ms

    async def expiry(self, identity: Identity) -> None:
        """Wait until its credentials have run out; for ever if they never do."""
        while not self.expired(identity):
            left_s = (
                _LONGEST_SLEEP_S
                if identity.expires_ms is None
                else (identity.expires_ms - self._clock.wall_ms()) / 1000
            )
            # The wall clock may be set meanwhile, so it is asked again and again.
            await self._clock.sleep(min(max(left_s, 0.001), _LONGEST_SLEEP_S))


def identity_of_certificate(certificate: bytes, *, now_ms: int) -> Identity:
    """The common name in a verified client certificate (DER), until the certificate ends."""
    from cryptography.x509 import load_der_x509_certificate
    from cryptography.x509.oid import NameOID

    try:
        parsed = load_der_x509_certificate(certificate)
        names = parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        expires_ms = int(parsed.not_valid_after_utc.timestamp() * 1000)
    except ValueError as bad:
        raise NotAuthenticatedError(f"the client certificate cannot be read: {bad}") from None
    if len(names) != 1 or not names[0].value:
        raise NotAuthenticatedError("the client certificate has no common name, or several")
    if now_ms >= expires_ms:
        raise NotAuthenticatedError("the client certificate has expired", hint="renew it")
    name = names[0].value
    return Identity(name if isinstance(name, str) else name.decode("utf-8", "replace"), expires_ms)
