"""Tokens (JWT): the keys that verify them, who they speak for, and how new ones are made.

Which algorithms are accepted follows from the kind of the key alone, never from the token: a public key is never
used as an HMAC secret, and an unsigned token never passes. Time comes from the caller.

Access keys: a role's name, and a secret that signs the moment of each call, as RocketMQ's clients do.

The secret is made of one that all brokers know: the installation's own, which is in its metadata, or the one that
signs tokens. Nothing is stored for a role. The secret key is a password of the role's, too.
"""

import base64
import binascii
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha1, sha256
from typing import TYPE_CHECKING, Any

from weir.model.errors import ConfigError, DiskError, FileMissingError, InvalidNameError, NotAuthenticatedError
from weir.model.registry import check_role
from weir.runtime.interfaces import Disk

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes


# PyJWT and cryptography take 150 ms to load, so they are loaded when the first key is.

_HMAC = ("HS256", "HS384", "HS512")
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_EC = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
#: A shorter HMAC secret can be guessed from one token.
_MIN_SECRET_BYTES = 32
#: A multiple of three, so its base64 has no padding.
_NEW_SECRET_BYTES = 66
_MIN_RSA_BITS = 2048
_MAX_TOKEN_BYTES = 64 * 1024
_MAX_KEY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class TokenRules:
    """How a token names its role, and whom it must be meant for."""

    subject_claim: str = "sub"
    audience: str | None = None
    audience_claim: str = "aud"
    #: How far the issuer's clock may be ahead of or behind this one's.
    leeway_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Speaker:
    """Whom a token speaks for, and until when (milliseconds since 1970; None: for ever)."""

    role: str
    expires_ms: int | None


class TokenVerifier:
    """Checks tokens against one key."""

    def __init__(self, key: "TokenSecret | bytes | PublicKeyTypes", rules: TokenRules | None = None) -> None:
        """A secret from `load_secret` or as bytes, or a public key from `load_public_key`."""
        keys: tuple[bytes | PublicKeyTypes, ...] = (
            (key,) if not isinstance(key, TokenSecret) else (key.key, *key.former)
        )
        self._keys = keys
        self._algorithms = _algorithms_of(keys[0])
        self._rules = rules or TokenRules()

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """The secrets that a token may be signed with; none if only a public key is known here."""
        return tuple(key for key in self._keys if isinstance(key, bytes))

    def verify(self, token: bytes | str, *, now_ms: int) -> Speaker:
        """Whom the token speaks for; NotAuthenticatedError."""
        if len(token) > _MAX_TOKEN_BYTES:
            raise NotAuthenticatedError("the token is too long")
        tried = (self._claims(token, key) for key in self._keys)
        claims = next((found for found in tried if found is not None), None)
        if claims is None:
            raise NotAuthenticatedError("the token is not valid: another key signed it")
        self._check_audience(claims)
        return Speaker(self._role(claims), self._check_times(claims, now_ms))

    def _claims(self, token: bytes | str, key: "bytes | PublicKeyTypes") -> dict[str, Any] | None:
        """None if another key signed the token."""
        import jwt

        try:
            return jwt.decode(
                token.strip(),
                key,  # type: ignore[arg-type]  # jwt names fewer kinds; _algorithms_of has checked it
                algorithms=list(self._algorithms),
                # Times and audience are checked below: by the runtime's clock, and by a claim of any name.
                options={
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_aud": False,
                    "verify_sub": False,
                },
            )
        except jwt.InvalidSignatureError:
            return None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as bad:
            raise NotAuthenticatedError(f"the token is not valid: {bad}") from None

    def _role(self, claims: dict[str, Any]) -> str:
        role = claims.get(self._rules.subject_claim)
        if not isinstance(role, str):
            raise NotAuthenticatedError(f"the token has no claim {self._rules.subject_claim!r}")
        try:
            return check_role(role)
        except InvalidNameError as bad:
            raise NotAuthenticatedError(bad.what) from None

    def _check_times(self, claims: dict[str, Any], now_ms: int) -> int | None:
        leeway_ms = int(self._rules.leeway_s * 1000)
        begins_ms, ends_ms = _moment(claims, "nbf"), _moment(claims, "exp")
        if begins_ms is not None and now_ms + leeway_ms < begins_ms:
            raise NotAuthenticatedError("the token is not valid yet")
        if ends_ms is not None and now_ms - leeway_ms >= ends_ms:
            raise NotAuthenticatedError("the token has expired", hint="get a new one")
        return None if ends_ms is None else ends_ms + leeway_ms

    def _check_audience(self, claims: dict[str, Any]) -> None:
        if self._rules.audience is None:
            return
        meant = claims.get(self._rules.audience_claim)
        if self._rules.audience not in (meant if isinstance(meant, list) else [meant]):
            raise NotAuthenticatedError("the token is meant for another audience")


def _moment(claims: dict[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    # A NumericDate; what is no number, or no moment that a clock can show, is not read as "never".
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        raise NotAuthenticatedError(f"the token's {name} is not a moment")
    return int(value * 1000)


def _algorithms_of(key: "bytes | PublicKeyTypes | PrivateKeyTypes") -> tuple[str, ...]:
    """What this key can sign or verify."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if isinstance(key, bytes):
        if len(key) < _MIN_SECRET_BYTES:
            raise ConfigError(
                f"the token secret has {len(key)} bytes, fewer than {_MIN_SECRET_BYTES}",
                hint="make one with `weir token secret`",
            )
        return _HMAC
    if isinstance(key, rsa.RSAPublicKey | rsa.RSAPrivateKey):
        if key.key_size < _MIN_RSA_BITS:
            raise ConfigError(
                f"an RSA key of {key.key_size} bits is too short", hint=f"use {_MIN_RSA_BITS} or more"
            )
        return _RSA
    if isinstance(key, ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey) and key.curve.name in _EC:
        return (_EC[key.curve.name],)
    raise ConfigError("tokens need an RSA key, or an EC key on P-256, P-384 or P-521")


# --- keys -----------------------------------------------------------------------------------------------------


async def read_key(source: str, disk: Disk) -> bytes:
    """The bytes of a key as it is configured: `file:///path` or a plain path, `data:;base64,...`, `base64:...`,
    base64 text as it is, or PEM text itself. ConfigError, which never shows a text that may be a secret."""
    if source.startswith("data:"):
        return _from_base64(source.partition(",")[2])
    if source.startswith("base64:"):
        return _from_base64(source.removeprefix("base64:"))
    if source.startswith("-----BEGIN"):
        return source.encode()
    if source.startswith("file:"):
        path = source.removeprefix("file:")
        return await _read_file(path.removeprefix("//") if path.startswith("///") else path, disk)
    if source.startswith(("/", "./", "../")):
        return await _path_or_base64(source, disk)
    return _from_base64(source)


async def _path_or_base64(source: str, disk: Disk) -> bytes:
    """One in sixty-four secrets begins with a slash as base64. What is a file is read, what is plainly base64 is
    decoded; a mistyped path must not become a secret that others can guess."""
    try:
        return await _read_file(source, disk)
    except (ConfigError, DiskError):
        if _is_plainly_base64(source):
            return _from_base64(source)
        raise ConfigError(
            "a key begins like a path, and is neither a file that can be read nor base64",
            hint="write file:/path, or base64:... for the key itself",
        ) from None


def _is_plainly_base64(text: str) -> bool:
    """Padded, or a mix of digits and letters of both cases that paths seldom are; and long enough for a secret."""
    kinds = (str.isdigit, str.isupper, str.islower)
    mixed = all(any(kind(sign) for sign in text) for kind in kinds)
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return len(decoded) >= _MIN_SECRET_BYTES and (text.endswith("=") or mixed)


async def _read_file(path: str, disk: Disk) -> bytes:
    try:
        file = await disk.open(path)
    except FileMissingError:
        raise ConfigError(f"there is no key file {path}", hint="weir token secret makes a key") from None
    try:
        data = await file.read_at(0, _MAX_KEY_BYTES + 1)
    finally:
        await file.close()
    if not 0 < len(data) <= _MAX_KEY_BYTES:
        raise ConfigError(f"{path} is empty or too long to be a key")
    return bytes(data)


def _from_base64(text: str) -> bytes:
    compact = "".join(text.split()).replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(
            "a key is neither a file (file:///path) nor base64 (data:;base64,...)",
            hint="write file:/path, or base64:... for the key itself; weir token secret makes one",
        ) from None


@dataclass(frozen=True, slots=True)
class TokenSecret:
    """An HMAC secret: `key` signs, and `key` and `former` verify.

    `former`: the readings of earlier releases and of Pulsar's tools, which took text that was not base64 in the
    standard alphabet as the key itself, line end included. Each reading has all of the text, so none is weaker.
    `changed`: earlier releases signed with another reading of the same bytes.
    """

    key: bytes
    former: tuple[bytes, ...] = ()
    changed: bool = False


def load_secret(data: bytes) -> TokenSecret:
    """An HMAC secret from the content of a file, or from the bytes behind `base64:`.

    Base64 text of 32 bytes or more is what it decodes to: either alphabet, with or without padding, in one line or
    several. Other text is itself without the line end of its last line. Any other content is itself. ConfigError
    if it is a key of another kind: with a public key in the place of a secret, anyone could sign.
    """
    _refuse_other_kinds(data)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return TokenSecret(data)
    decoded = _decoded_secret(text.strip().splitlines())
    if decoded is not None:
        _refuse_other_kinds(decoded)
    if decoded is not None and _standard_base64(text.strip()) == decoded:
        return TokenSecret(decoded)
    bare = text.rstrip("\r\n").encode()
    is_text = all(sign.isprintable() or sign in "\t\r\n" for sign in text)
    if not is_text or len(bare) < _MIN_SECRET_BYTES:
        return TokenSecret(data)
    key = bare if decoded is None else decoded
    readings = (data, bare, bare + b"\n", bare + b"\r\n")
    former = tuple(dict.fromkeys(one for one in readings if one != key))
    return TokenSecret(key, former, changed=key != data)


def _refuse_other_kinds(data: bytes) -> None:
    if data.lstrip().startswith(b"-----BEGIN"):
        raise ConfigError("the token secret is a PEM key", hint="set it as the public key instead")
    for load in (load_public_key, load_private_key):
        try:
            load(data)
        except ConfigError:
            continue
        raise ConfigError("the token secret is an RSA or EC key", hint="set it as the public key instead")


def _decoded_secret(lines: list[str]) -> bytes | None:
    """What the text decodes to, if it is base64 of a secret that is long enough."""
    if any(sign.isspace() for line in lines for sign in line):
        return None  # words of a passphrase, which base64 without its spaces would take for letters
    try:
        decoded = _from_base64("".join(lines))
    except ConfigError:
        return None
    return decoded if len(decoded) >= _MIN_SECRET_BYTES else None


def _standard_base64(text: str) -> bytes | None:
    """As earlier releases decoded secrets: the standard alphabet, padded, in one line."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def load_public_key(data: bytes) -> "PublicKeyTypes":
    """A public key as PEM or DER, or that of an X.509 certificate as PEM. ConfigError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.x509 import load_pem_x509_certificate

    try:
        if b"-----BEGIN CERTIFICATE" in data:
            return load_pem_x509_certificate(data).public_key()
        if data.lstrip().startswith(b"-----BEGIN"):
            return serialization.load_pem_public_key(data)
        return serialization.load_der_public_key(data)
    except (ValueError, TypeError, UnsupportedAlgorithm) as bad:
        raise ConfigError("this is not a public key", hint="weir token keys makes one; PEM or DER") from bad


def load_private_key(data: bytes) -> "PrivateKeyTypes":
    """A private key without a password, as PEM or DER. ConfigError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        if data.lstrip().startswith(b"-----BEGIN"):
            return serialization.load_pem_private_key(data, password=None)
        return serialization.load_der_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as bad:
        raise ConfigError("this is not a private key", hint="without a password, as PEM or DER") from bad


# --- for the command line -------------------------------------------------------------------------------------


def create_token(
    key: "bytes | PrivateKeyTypes",
    subject: str,
    *,
    expires_ms: int | None = None,
    algorithm: str | None = None,
    audience: str | None = None,
) -> str:
    """A token for a role, signed with an HMAC secret or a private key (`load_private_key`)."""
    import jwt

    possible = _algorithms_of(key)
    chosen = algorithm or possible[0]
    if chosen not in possible:
        raise ConfigError(f"this key cannot sign with {chosen[:20]}", hint=f"use one of {', '.join(possible)}")
    claims: dict[str, Any] = {"sub": check_role(subject)}
    if expires_ms is not None:
        claims["exp"] = expires_ms // 1000
    if audience is not None:
        claims["aud"] = audience
    return jwt.encode(claims, key, algorithm=chosen)  # type: ignore[arg-type]  # checked by _algorithms_of


def create_secret() -> bytes:
    """A new HMAC secret, good for every HMAC algorithm.

    Its base64 is of letters and digits alone, so its text is the same in both alphabets, is no path, and earlier
    releases read it as this one does.
    """
    while True:
        made = secrets.token_bytes(_NEW_SECRET_BYTES)
        if base64.b64encode(made).rstrip(b"=").isalnum():
            return made


def create_key_pair(kind: str = "RSA") -> tuple[bytes, bytes]:
    """A new private and public key (RSA or EC) as PEM."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if kind not in ("RSA", "EC"):
        raise ConfigError(f"{kind[:20]!r} is not a kind of key", hint="use RSA or EC")
    private = (
        rsa.generate_private_key(public_exponent=65537, key_size=_MIN_RSA_BITS)
        if kind == "RSA"
        else ec.generate_private_key(ec.SECP256R1())
    )
    return (
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    )


_PURPOSE = b"weir access key\0"
_FORM = "%Y%m%dT%H%M%SZ"
#: Some clients write their local time as if it were UTC's: a signature is good for a day, and the widest of zones.
_GOOD_FOR_S = (24 + 14) * 3600


def access_key_secret(token_secret: bytes, role: str) -> str:
    """InvalidNameError of what is no role."""
    digest = hmac.new(token_secret, _PURPOSE + check_role(role).encode(), sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def secret_keys(secrets: Iterable[bytes], role: str) -> list[str]:
    """Those that are the role's, of each secret; none for what is no role."""
    try:
        return [access_key_secret(secret, role) for secret in secrets]
    except InvalidNameError:
        return []


def sign(secret: str, moment: bytes) -> str:
    return hmac.new(secret.encode(), moment, sha1).hexdigest()


def is_recent(moment: str, now_ms: int) -> bool:
    try:
        said = datetime.strptime(moment, _FORM).replace(tzinfo=UTC)
    except ValueError:
        return False
    return abs(said.timestamp() - now_ms / 1000) <= _GOOD_FOR_S
