"""Access keys: a role's name, and a secret that signs the moment of each call, as RocketMQ's clients do.

The secret is made of one that all brokers know: the installation's own, which is in its metadata, or the one that
signs tokens. Nothing is stored for a role. The secret key is a password of the role's, too.
"""

import base64
import hmac
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha1, sha256

from weir.model.errors import InvalidNameError
from weir.model.registry import check_role

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
