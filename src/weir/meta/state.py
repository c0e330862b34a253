"""The metadata store as a state machine: keys, versions, history and lease membership; no clock, no I/O.

The in-memory and the embedded driver both run it. Every change takes exactly the next revision, so the history
is an array indexed by revision, and a log of it can be checked for gaps.
"""

from itertools import islice

from weir.meta.blocks import BlockView, SortedBlocks
from weir.meta.interfaces import ABSENT, MAX_KEY_BYTES, MAX_VALUE_BYTES, Change, Versioned
from weir.model.check import check
from weir.model.errors import LeaseExpiredError, MetaConflictError, MetaError

#: `lease_id` of a key that no lease holds.
NO_LEASE = 0


def check_entry(key: str, value: bytes) -> None:
    """What every driver asks of a key and a value before it stores them; MetaError if they are not right."""
    try:
        key_bytes = len(key.encode())
    except UnicodeEncodeError as bad:
        raise MetaError(f"the key {key!r} is not text that can be stored") from bad
    if not 0 < key_bytes <= MAX_KEY_BYTES:
        raise MetaError(f"a key has 1 to {MAX_KEY_BYTES} bytes, not {key_bytes}")
    if len(value) > MAX_VALUE_BYTES:
        raise MetaError(f"the value of {key} has {len(value)} bytes, the limit is {MAX_VALUE_BYTES}")


class KeySpace:
    """Every key, the last changes, and which lease holds what."""

    def __init__(self, *, revision: int = 0, history: int = 16_384, history_bytes: int = 64 * 1024 * 1024) -> None:
        """Remembers at least `history` changes, unless they have more than half of `history_bytes`."""
        self._revision = revision
        self._lease_of: dict[str, int] = {}
        self._items = SortedBlocks(self._lease_of)
        self._limit = history
        self._byte_limit = history_bytes
        self._history_bytes = 0
        # _history[i] is the change that made revision _floor + 1 + i.
        self._history: list[Change] = []
        self._floor = revision
        self._leases: dict[int, dict[str, None]] = {}

    @property
    def revision(self) -> int:
        """The revision of the last change."""
        return self._revision

    def __len__(self) -> int:
        return len(self._items)

    # --- reading ----------------------------------------------------------------------------------------------

    def get(self, key: str) -> Versioned | None:
        return self._items.get(key)

    def under(self, prefix: str) -> list[Versioned]:
        """Every key under the prefix, sorted."""
        return list(self._items.under(prefix))

    def page(self, prefix: str, *, after: str, limit: int) -> list[Versioned]:
        """The first of those keys that come after another."""
        return list(islice(self._items.under(prefix, after=after), limit))

    def count(self, prefix: str) -> int:
        return self._items.count(prefix)

    def view(self) -> tuple[list[BlockView], dict[str, None]]:
        """Everything as it is now, and which keys are leased."""
        return self._items.view(), dict.fromkeys(self._lease_of)

    def lease_of(self, key: str) -> int:
        """The lease that holds the key, or NO_LEASE."""
        return self._lease_of.get(key, NO_LEASE)

    def keys_at(self, prefix: str, revision: int) -> list[str] | None:
        """The keys that existed at a revision, and maybe some made since; None if the history does not tell."""
        changes = self.changes(prefix, after=revision, upto=self._revision)
        if changes is None:
            return None
        keys = {item.key: None for item in self.under(prefix) if item.version <= revision}
        keys.update(dict.fromkeys(change.key for change in changes))
        return list(keys)

    def changes(self, prefix: str, *, after: int, upto: int) -> list[Change] | None:
        """The changes under the prefix that made the revisions (after, upto]; None if some were forgotten."""
        if after < self._floor:
            return None
        recent = self._history[after - self._floor : max(0, upto - self._floor)]
        return [change for change in recent if change.key.startswith(prefix)]

    # --- changing ---------------------------------------------------------------------------------------------

    def put(self, key: str, value: bytes, *, expect: int | None = None, lease_id: int = NO_LEASE) -> Change:
        """Set the key, or raise what `MetaStore.put` raises and change nothing."""
        check_entry(key, value)
        self._require(key, expect)
        if lease_id != NO_LEASE and lease_id not in self._leases:
            raise LeaseExpiredError(f"lease {lease_id} is gone; {key} was not put")
        change = Change(key, value, self._revision + 1)
        self.apply(change, lease_id)
        return change

    def delete(self, key: str, *, expect: int | None = None) -> Change | None:
        """Delete the key, or raise what `MetaStore.delete` raises; None if there was nothing to delete."""
        self._require(key, expect)
        if self._items.get(key) is None:
            return None
        change = Change(key, None, self._revision + 1)
        self.apply(change)
        return change

    def apply(self, change: Change, lease_id: int = NO_LEASE) -> None:
        """Make a decided change; a log is replayed through this too."""
        check(change.version == self._revision + 1, f"change {change.version} follows {self._revision}")
        self._revision = change.version
        self._set(change.key, change.value, change.version, lease_id)
        self._history.append(change)
        self._history_bytes += _size(change)
        if len(self._history) >= 2 * self._limit or self._history_bytes > self._byte_limit:
            self._forget()

    def _forget(self) -> None:
        """Drop the older half of the history: in halves, so that it costs little per change."""
        dropped = max(0, len(self._history) - self._limit)
        self._history_bytes = sum(map(_size, self._history[dropped:]))
        while self._history_bytes > self._byte_limit // 2 and dropped < len(self._history):
            self._history_bytes -= _size(self._history[dropped])
            dropped += 1
        del self._history[:dropped]
        self._floor += dropped

    def load(self, item: Versioned, lease_id: int = NO_LEASE) -> None:
        """Take over a key from a snapshot, made at or before the revision that this began with."""
        check(item.version <= self._floor, "a snapshot holds only what is older than itself")
        self._set(item.key, item.value, item.version, lease_id)

    def load_block(self, first: str, packed: bytes, *, items: int, leased: list[str], holder: int) -> None:
        """Take over a packed block of keys from a snapshot, in order; this holder has those that were leased."""
        self._items.add_packed(first, packed, items)
        for key in leased:
            self._lease_of[key] = holder
            self._leases.setdefault(holder, {})[key] = None

    def _set(self, key: str, value: bytes | None, version: int, lease_id: int) -> None:
        held_by = self._lease_of.pop(key, NO_LEASE)
        if held_by != NO_LEASE:
            self._leases[held_by].pop(key, None)
        if value is None:
            self._items.remove(key)
            return
        if lease_id != NO_LEASE:  # before the block that has the key may be packed
            self._lease_of[key] = lease_id
            self._leases.setdefault(lease_id, {})[key] = None
        self._items.set(Versioned(key, value, version))

    def _require(self, key: str, expect: int | None) -> None:
        if expect is None:
            return
        item = self._items.get(key)
        version = ABSENT if item is None else item.version
        if version != expect:
            raise MetaConflictError(f"{key} is at version {version}, not {expect}")

    # --- leases -----------------------------------------------------------------------------------------------

    def grant(self, lease_id: int) -> None:
        """From now on keys may be put under this lease."""
        check(lease_id not in self._leases and lease_id != NO_LEASE, f"lease {lease_id} is new")
        self._leases[lease_id] = {}

    def drop_lease(self, lease_id: int) -> list[Change]:
        """Forget the lease and delete its keys; each deletion is a change of its own."""
        keys = list(self._leases.get(lease_id, {}))
        changes = [change for key in keys if (change := self.delete(key)) is not None]
        self._leases.pop(lease_id, None)
        return changes

    def lease_ids(self) -> list[int]:
        """Every lease that may hold keys."""
        return list(self._leases)


def _size(change: Change) -> int:
    return len(change.key) + len(change.value or b"")
