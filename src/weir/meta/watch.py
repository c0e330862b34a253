"""The position of a watch, and its resynchronization when the store has lost the history."""

from collections.abc import Iterable

from weir.meta.interfaces import Change, Listing
from weir.model.errors import MetaHistoryLostError


class WatchTracker:
    """The memory of one watch: the delivered changes, and the keys that exist as far as its reader knows.

    A driver passes every change through `admit`, which drops repetitions after a reconnect; when the history is
    lost, `resync` turns a listing into the changes that bring the reader up to date, including deletions.
    """

    def __init__(self, since: int, known: Iterable[str] | None) -> None:
        """`known`: None for a reader that does not track keys and cannot resynchronize."""
        self._done = since
        # Changes of one revision may arrive separately (etcd deletes a lease's keys together); the delivered ones
        # of the revision after `_done`:
        self._partial: dict[str, None] = {}
        self._partial_revision = since
        self._known = None if known is None else dict.fromkeys(known)

    @property
    def position(self) -> int:
        """The watch delivered every change up to this revision; resume after it."""
        return self._done

    @property
    def can_resync(self) -> bool:
        """Whether `resync` can determine the missed changes."""
        return self._known is not None

    def admit(self, change: Change) -> bool:
        """Whether the change is new; if so, it counts as delivered."""
        if change.version <= self._done:
            return False
        if change.version != self._partial_revision:
            self._done = change.version - 1
            self._partial = {}
            self._partial_revision = change.version
        if change.key in self._partial:
            return False
        self._partial[change.key] = None
        if self._known is None:
            return True
        if change.value is None:
            self._known.pop(change.key, None)
        else:
            self._known[change.key] = None
        return True

    def settle(self, revision: int) -> None:
        """Mark every change up to `revision` as seen."""
        if revision > self._done:
            self._done = revision
            self._partial = {}
            self._partial_revision = revision

    def resync(self, listing: Listing) -> list[Change]:
        """The merged changes between the position and the listing; MetaHistoryLostError if the reader's keys are
        unknown."""
        if self._known is None:
            raise MetaHistoryLostError("the metadata store no longer has the changes that a watch did not see")
        present = {item.key: None for item in listing.items}
        news = [
            Change(item.key, item.value, item.version)
            for item in sorted(listing.items, key=lambda item: item.version)
            if item.version > self._done and not self._delivered(item.key, item.version)
        ]
        # The revision of a deletion is unknown; at the listing's revision the key did not exist.
        news += [Change(key, None, listing.revision) for key in self._known if key not in present]
        self._known = present
        self.settle(listing.revision)
        return news

    def _delivered(self, key: str, version: int) -> bool:
        return version == self._partial_revision and key in self._partial


class RecentListings:
    """The keys that a client last listed, per prefix: the keys that exist for the reader of a watch from then on.

    A watch needs them only if the store loses the history between a listing and the watch since it.
    """

    def __init__(self, prefixes: int = 128) -> None:
        self._limit = prefixes
        self._listings: dict[str, tuple[int, list[str]]] = {}

    def remember(self, prefix: str, listing: Listing) -> None:
        self._listings.pop(prefix, None)
        self._listings[prefix] = (listing.revision, [item.key for item in listing.items])
        if len(self._listings) > self._limit:
            del self._listings[next(iter(self._listings))]

    def keys(self, prefix: str, revision: int) -> list[str] | None:
        """The keys of the listing at this revision, if remembered."""
        remembered = self._listings.get(prefix)
        return remembered[1] if remembered is not None and remembered[0] == revision else None
