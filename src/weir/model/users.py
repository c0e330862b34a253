"""Users with passwords, and what RabbitMQ's patterns of names let them do.

A user's name is its role, so grants are the same thing for a user and for who comes with a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from weir.model.registry import check_role

#: Tags of RabbitMQ that mean something here: everything; look at everything; look at what one has to do with; the
#: last, and set policies.
ADMINISTRATOR = "administrator"
MONITORING = "monitoring"
MANAGEMENT = "management"
POLICYMAKER = "policymaker"

_MAX_TAGS = 64
_MAX_HASH_CHARS = 1024


class PasswordHashing(Enum):
    """How a password became its hash, in RabbitMQ's words: base64 of four bytes of salt and the digest of salt and
    password."""

    SHA256 = "rabbit_password_hashing_sha256"
    SHA512 = "rabbit_password_hashing_sha512"


@dataclass(frozen=True, slots=True)
class User:
    """`password_hash`: "" for one that no password lets in."""

    name: str
    password_hash: str = ""
    hashing: PasswordHashing = PasswordHashing.SHA256
    tags: tuple[str, ...] = ()

    @property
    def administrator(self) -> bool:
        return ADMINISTRATOR in self.tags

    @property
    def monitors(self) -> bool:
        """Whether it may look at everything."""
        return self.administrator or MONITORING in self.tags

    @property
    def makes_policies(self) -> bool:
        return self.administrator or POLICYMAKER in self.tags

    @property
    def manages(self) -> bool:
        """Whether the management API is for it at all."""
        return self.monitors or self.makes_policies or MANAGEMENT in self.tags


def check_user(user: User) -> User:
    """InvalidNameError for a name or a tag that cannot be one."""
    check_role(user.name)
    for tag in user.tags:
        check_role(tag)
    return user


def tags_of(said: str | Sequence[str]) -> tuple[str, ...]:
    """Tags as RabbitMQ's API takes them: a list, or text with commas."""
    words = said.split(",") if isinstance(said, str) else said
    return tuple(dict.fromkeys(tag for word in words if (tag := word.strip())))[:_MAX_TAGS]
