"""Passwords as RabbitMQ keeps them: salted digests, compared in a time that tells nothing of them.

The digests are quick to make, so that hashes of a RabbitMQ are good here; a short password can be guessed by
whoever has read its hash, so hashes are shown to superusers only.
"""

import base64
import binascii
import hashlib
import hmac

from weir.model.errors import NotAllowedError
from weir.model.users import PasswordHashing, User

_SALT_BYTES = 4
_DIGESTS = {PasswordHashing.SHA256: hashlib.sha256, PasswordHashing.SHA512: hashlib.sha512}
#: Whoever is not known takes as long as who is.
_NOBODY = User("", base64.b64encode(bytes(_SALT_BYTES + 32)).decode())


def hash_password(password: bytes, salt: bytes, hashing: PasswordHashing) -> str:
    """As `User.password_hash` has it."""
    return base64.b64encode(salt + _DIGESTS[hashing](salt + password).digest()).decode()


def password_fits(user: User | None, password: bytes) -> bool:
    """Whether it is the user's password; no password is the empty one, nor that of nobody."""
    asked = user or _NOBODY
    kept = _raw(asked.password_hash)
    digest = _DIGESTS[asked.hashing](kept[:_SALT_BYTES] + password).digest()
    same = hmac.compare_digest(kept[_SALT_BYTES:], digest)
    return same and user is not None and bool(password)


def check_hash(password_hash: str, hashing: PasswordHashing) -> str:
    """NotAllowedError for what no password can have as its hash."""
    if password_hash and len(_raw(password_hash)) != _SALT_BYTES + _DIGESTS[hashing]().digest_size:
        raise NotAllowedError(
            f"this is no password hash of {hashing.value}", hint="base64 of 4 bytes of salt and the digest"
        )
    return password_hash


def _raw(password_hash: str) -> bytes:
    try:
        return base64.b64decode(password_hash, validate=True)
    except (binascii.Error, ValueError):
        return b""
