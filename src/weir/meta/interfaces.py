"""The metadata store in a few verbs: get, put, create, delete, list, page, count, watch, lease.

Keys are `/`-separated strings, values are bytes. Every change gets the store's next revision; a key's version
is the revision of its last change (etcd's mod_revision). Writes are linearizable. MetaUnavailableError means
that the outcome is unknown: the change may have been made.
"""

from collections.abc import AsyncIterator, Sequence
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


class Creation(NamedTuple):
    """A key to be made, with keys that are put in the same step, before it: an index of it, say."""

    key: str
    value: bytes
    beside: tuple[tuple[str, bytes], ...] = ()


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

    async def create_many(self, creations: Sequence[Creation]) -> Sequence[int]:
        """Make keys, each if it does not exist, in as few requests and syncs as can be: the version of each that
        was made, and ABSENT for each that was there. No key may be named twice. MetaUnavailableError: any of them
        may have been made."""

    async def list(self, prefix: str) -> Listing: ...

    async def page(self, prefix: str, *, after: str = "", limit: int) -> Listing:
        """At most so many keys under the prefix: the first that come after a key, as of now. Fewer than `limit`
        are the last. What comes or goes between two pages may show or not, what stays does."""

    async def count(self, prefix: str) -> int:
        """How many keys are under the prefix."""

    def watch(self, prefix: str, *, since: int) -> AsyncIterator[Change]:
        """Every change under the prefix after revision `since`, in order, for as long as it is iterated.

        Survives reconnects. If the store no longer has the history, changes in between may be merged, but each
        key's latest state (and each deletion of a key that had been reported or existed) still arrives."""

    def changes(self, prefix: str, *, since: int) -> AsyncIterator[Change]:
        """Like `watch`, but without a memory of which keys there are: MetaHistoryLostError if the store no longer
        has the history; then the reader must look anew at whatever it knows."""

    async def lease(self, ttl_s: float) -> Lease: ...

    async def close(self) -> None:
        """Stop keeping leases alive and end watches; keys stay until their leases run out."""
