"""The metadata store in six verbs: get, put, delete, list, watch, lease.

Keys are `/`-separated strings, values are bytes. Every change gets the store's next revision; a key's version
is the revision of its last change (etcd's mod_revision). Writes are linearizable. MetaUnavailableError means
that the outcome is unknown: the change may have been made.
"""

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

#: `expect=ABSENT`: the key must not exist.
ABSENT = 0
#: No value may be larger (MetaError); etcd's own limit, 1.5 MiB for a request, leaves room around it.
MAX_VALUE_BYTES = 1024 * 1024
#: No key may be longer, in UTF-8 (MetaError).
MAX_KEY_BYTES = 4096


class Versioned(NamedTuple):
    """A key's value and version."""

    key: str
    value: bytes
    version: int


class Listing(NamedTuple):
    """Every key under a prefix, sorted by key, as of `revision`: a watch since it misses nothing."""

    items: list[Versioned]
    revision: int


class Change(NamedTuple):
    """A key was put (value) or deleted (None), making it `version`."""

    key: str
    value: bytes | None
    version: int


class Lease(Protocol):
    """Keys put with it live as long as its holder keeps it alive, which the driver does by itself."""

    @property
    def alive(self) -> bool:
        """Whether this holder may still count on it. Turns false before, never after, the store drops its keys
        (as far as clocks can tell)."""

    async def lost(self) -> None:
        """Wait until the lease is no longer alive."""

    async def revoke(self) -> None:
        """Give it up: its keys are deleted now. Fine if it is gone."""


class MetaStore(Protocol):
    """A consistent store for small, slowly changing facts."""

    async def get(self, key: str) -> Versioned | None: ...

    async def put(self, key: str, value: bytes, *, expect: int | None = None, lease: Lease | None = None) -> int:
        """Set the key and return its new version. With `expect`, only if the key is at that version (ABSENT: does
        not exist), else MetaConflictError. LeaseExpiredError if the lease is gone."""

    async def delete(self, key: str, *, expect: int | None = None) -> None:
        """Delete the key. With `expect`, only at that version, else MetaConflictError; without, fine if absent."""

    async def list(self, prefix: str) -> Listing: ...

    def watch(self, prefix: str, *, since: int) -> AsyncIterator[Change]:
        """Every change under the prefix after revision `since`, in order, for as long as it is iterated.

        Survives reconnects. If the store no longer has the history, changes in between may be merged, but each
        key's latest state (and each deletion of a key that had been reported or existed) still arrives."""

    async def lease(self, ttl_s: float) -> Lease: ...

    async def close(self) -> None:
        """Stop keeping leases alive and end watches; keys stay until their leases run out."""
