"""The interface of the metadata store: get, put, delete, create, list, page, count, watch, lease.

Keys are `/`-separated strings, values are bytes. Every change gets the store's next revision; a key's version
is the revision of its last change (etcd's mod_revision). Writes are linearizable. MetaUnavailableError means
that the outcome is unknown: the change may have been made.
"""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

#: `expect=ABSENT`: the key must not exist.
ABSENT = 0
#: Maximum size of a value (else MetaError); etcd's limit of 1.5 MiB per request leaves room around it.
MAX_VALUE_BYTES = 1024 * 1024
#: Maximum length of a key in UTF-8 (else MetaError).
MAX_KEY_BYTES = 4096


class Versioned(NamedTuple):
    """A key's value and version."""

    key: str
    value: bytes
    version: int


class Listing(NamedTuple):
    """Every key under a prefix, sorted by key, as of `revision`: a watch since that revision misses nothing."""

    items: list[Versioned]
    revision: int


class Change(NamedTuple):
    """A put (value) or a deletion (None) of a key at revision `version`."""

    key: str
    value: bytes | None
    version: int


class Creation(NamedTuple):
    """A key to create, with other keys to put in the same step, before it: for example its index."""

    key: str
    value: bytes
    beside: tuple[tuple[str, bytes], ...] = ()


class Lease(Protocol):
    """A lease. Keys put with it live as long as the holder keeps it alive, which the driver does automatically."""

    @property
    def alive(self) -> bool:
        """Whether the holder may still rely on it. Turns false before, never after, the store drops its keys (as
        far as clocks allow)."""

    async def lost(self) -> None:
        """Wait until the lease is no longer alive."""

    async def revoke(self) -> None:
        """End the lease and delete its keys now. No error if it has ended already."""


class MetaStore(Protocol):
    """A linearizable store for small, slowly changing data."""

    async def get(self, key: str) -> Versioned | None: ...

    async def put(self, key: str, value: bytes, *, expect: int | None = None, lease: Lease | None = None) -> int:
        """Set the key and return its new version. With `expect`, only if the key is at that version (ABSENT: does
        not exist), else MetaConflictError. LeaseExpiredError if the lease has ended."""

    async def delete(self, key: str, *, expect: int | None = None) -> None:
        """Delete the key. With `expect`, only at that version, else MetaConflictError; without, absence is no
        error."""

    async def create_many(self, creations: Sequence[Creation]) -> Sequence[int]:
        """Create keys, each if it does not exist, with as few requests and syncs as possible; returns the version
        of each created key, and ABSENT for each existing one. No key may occur twice. MetaUnavailableError: the
        store may have created any of them."""

    async def list(self, prefix: str) -> Listing: ...

    async def page(self, prefix: str, *, after: str = "", limit: int) -> Listing:
        """The first `limit` keys under the prefix after a key, as of now; fewer mean the last page. A key created
        or deleted between two pages may or may not appear, all others do."""

    async def count(self, prefix: str) -> int:
        """The number of keys under the prefix."""

    def watch(self, prefix: str, *, since: int) -> AsyncIterator[Change]:
        """Every change under the prefix after revision `since`, in order, while the caller iterates.

        Survives reconnects. If the store no longer has the history, it may merge changes in between, but delivers
        the latest state of each key (and each deletion of a key that it had reported or that existed)."""

    def changes(self, prefix: str, *, since: int) -> AsyncIterator[Change]:
        """Like `watch`, but without a memory of the existing keys: MetaHistoryLostError if the store no longer has
        the history; then the reader must read its keys again."""

    async def lease(self, ttl_s: float) -> Lease: ...

    async def close(self) -> None:
        """Stop renewing leases and end watches; leased keys stay until their leases expire."""
