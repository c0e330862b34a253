"""Lists of the topics of a namespace: pattern filter, hash, and watches that report added and removed topics.

A list is read in pages, and a watch keeps only the topics that match its pattern.
"""

import asyncio
import logging
from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from weir.broker.api.broker import Pattern
from weir.meta import keys
from weir.meta.interfaces import Versioned
from weir.model.errors import TooManyError, WireError
from weir.model.topics import Domain, TopicName
from weir.wire.checksum import crc32c
from weir.wire.registry import topic_partitions

log = logging.getLogger(__name__)

#: Limit of pending changes of a watch; beyond it, the watch reads the list again.
_MAX_PENDING = 10_000
#: Limit of a watched list, and of a list in one response: Pulsar clients accept no larger frame.
MAX_LIST_BYTES = 5 * 1024 * 1024


class TopicPattern(Pattern):
    """A pattern on topic names without domain and partition."""

    def __init__(self, pattern: str) -> None:
        for domain in ("non-persistent://", "persistent://"):
            pattern = pattern.replace(domain, "", 1)
        super().__init__(pattern)

    def matches(self, name: TopicName) -> bool:
        return self.fullmatch(f"{name.namespace}/{name.local}")


def topics_hash(names: Sequence[str]) -> str:
    """The hash of a topic list in the Pulsar protocol: CRC32C of the sorted names, joined by commas.

    Java sorts by UTF-16 units, and Guava writes a 32-bit hash with its lowest byte first.
    """
    return _hash_of_sorted(sorted(names, key=_java_order))


def _java_order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def _hash_of_sorted(names: Sequence[str]) -> str:
    return crc32c(",".join(names).encode()).to_bytes(4, "little").hex()


@dataclass(frozen=True, slots=True)
class TopicListChange:
    """Topics added and removed since the last change, and the hash of the current list."""

    added: list[TopicName]
    removed: list[TopicName]
    hash: str


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """Selects the topics of a list."""

    pattern: TopicPattern | None = None
    domain: Domain | None = None

    def takes(self, base: TopicName) -> bool:
        return (self.domain is None or base.domain is self.domain) and (
            self.pattern is None or self.pattern.matches(base)
        )


class Listed(NamedTuple):
    """A topic from a page of records."""

    key: str
    base: TopicName
    partitions: int
    version: int


def listed(page: Sequence[Versioned], only: TopicFilter) -> list[Listed]:
    """Topics of the page that the filter selects; unreadable records are logged and skipped."""
    found = []
    for item in page:
        base = keys.topic_of(item.key)
        if only.takes(base):
            try:
                found.append(Listed(item.key, base, topic_partitions(item.value), item.version))
            except WireError as bad:
                log.error("%s cannot be read: %s", item.key, bad)
    return found


def parts_of(base: TopicName, partitions: int) -> list[TopicName]:
    """The partitions of the topic, or the topic itself if it is not partitioned."""
    return [base.at(n) for n in range(partitions)] if partitions else [base]


class TopicListWatch:
    """A list of topics and its changes. Changes between two calls of `next` are merged, so memory stays
    bounded."""

    def __init__(
        self,
        only: TopicFilter,
        pages: Callable[[], AsyncIterator[Sequence[Versioned]]],
        *,
        may_see: Callable[[], bool],
        access_changed: Callable[[], Awaitable[None]],
        on_close: Callable[["TopicListWatch"], object],
    ) -> None:
        """`pages` reads the records. While `may_see` returns False, the watcher gets no changes; `access_changed`
        waits until its result may differ."""
        self._only = only
        self._pages = pages
        self._may_see = may_see
        self._access_changed = access_changed
        self._on_close = on_close
        #: Partitions and version of the topics in the list, by key.
        self._known: dict[str, tuple[int, int]] = {}
        self._sorted: list[str] = []
        self._bytes = 0
        #: Changes since the last call of `next`: partitions (None: deleted) and version.
        self._pending: dict[str, tuple[int | None, int]] = {}
        #: Whether changes were missed, so that the list must be read again.
        self._stale = False
        self._news = asyncio.Event()
        self.is_news = True

    # --- changes -----------------------------------------------------------------------------------------------

    def note(self, key: str, value: bytes | None, version: int) -> None:
        """Record a put or deleted topic of the namespace."""
        if value is not None and not self._only.takes(keys.topic_of(key)):
            return
        if value is None and key not in self._known and key not in self._pending:
            return
        if len(self._pending) >= _MAX_PENDING:
            self.miss()
            return
        try:
            self._pending[key] = (None if value is None else topic_partitions(value), version)
        except WireError as bad:
            log.error("%s cannot be read: %s", key, bad)
        self._news.set()

    def miss(self) -> None:
        """Note that changes were missed: `next` reads the list again."""
        self._pending.clear()
        self._stale = True
        self._news.set()

    # --- the list -----------------------------------------------------------------------------------------------

    async def open(self, known_hash: str = "") -> None:
        """Read the list. `known_hash`: hash of the list that the watcher has already; if it matches, the caller
        need not send `names`. TooManyError if the list exceeds `MAX_LIST_BYTES`."""
        await self._list()
        self.is_news = self.hash != known_hash

    @property
    def names(self) -> list[TopicName]:
        """Topics in the order of keys."""
        return [part for key in sorted(self._known) for part in parts_of(keys.topic_of(key), self._known[key][0])]

    @property
    def hash(self) -> str:
        return _hash_of_sorted(self._sorted)

    async def _list(self) -> tuple[list[TopicName], list[TopicName]]:
        self._stale = False
        try:
            found = await self._read()
        except BaseException:
            self._stale = True
            raise
        added: list[TopicName] = []
        removed: list[TopicName] = []
        for key in {**self._known, **found}:
            was, now = self._parts(self._known, key), self._parts(found, key)
            added += [part for part in now if part not in was]
            removed += [part for part in was if part not in now]
        self._known = found
        self._sorted = sorted((str(part) for key in found for part in self._parts(found, key)), key=_java_order)
        return added, removed

    async def _read(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        size = 0
        async for page in self._pages():
            for one in listed(page, self._only):
                found[one.key] = (one.partitions, one.version)
                size += len(one.key) * max(1, one.partitions)
                check_size(size)
        return found

    def _parts(self, of: dict[str, tuple[int, int]], key: str) -> dict[TopicName, None]:
        return dict.fromkeys(parts_of(keys.topic_of(key), of[key][0])) if key in of else {}

    async def next(self) -> TopicListChange:
        """Wait for a change. Cancellation loses no change."""
        while True:
            self._news.clear()
            if self._may_see():
                added, removed = await self._list() if self._stale else self._take()
                if added or removed:
                    return TopicListChange(added, removed, self.hash)
            await self._wait()

    async def _wait(self) -> None:
        if self._may_see():
            await self._news.wait()
        else:
            await self._access_changed()

    def close(self) -> None:
        """End the watch."""
        self._on_close(self)

    def _take(self) -> tuple[list[TopicName], list[TopicName]]:
        pending, self._pending = self._pending, {}
        added: list[TopicName] = []
        removed: list[TopicName] = []
        for key, (partitions, version) in pending.items():
            known = self._known.get(key)
            if known is not None and (known[1] > version or (partitions is not None and known[1] == version)):
                continue
            before = self._parts(self._known, key)
            if partitions is None:
                self._known.pop(key, None)
            else:
                self._known[key] = (partitions, version)
            after = self._parts(self._known, key)
            added += [part for part in after if part not in before]
            removed += [part for part in before if part not in after]
        for part in removed:
            at = bisect_left(self._sorted, _java_order(str(part)), key=_java_order)
            del self._sorted[at]
        for part in added:
            insort(self._sorted, str(part), key=_java_order)
        return added, removed


def check_size(size: int) -> None:
    """TooManyError if names of so many bytes exceed the limit of clients."""
    if size > MAX_LIST_BYTES:
        raise TooManyError(
            "the list has more topics than a client can receive", hint="use a pattern that matches fewer topics"
        )
