"""Copies in memory of values under a prefix of the metadata store, kept current by a watch.

`Mirror` has everything under its prefix: it lists once, then watches. Reads never wait. It decodes a value on
first use, so that a start with many keys is fast. `RecordCache` has only values in use: it reads a value on
demand, and forwards watched changes of other keys without storing them, so its memory does not grow with the
number of keys (docs/adr/0027). Both apply this broker's own writes immediately, so that it reads what it wrote;
the later watch event of the same version has no effect.

`delete_if_empty` deletes a parent while brokers may add children to it, without transactions: the deleter marks
the parent, then lists the children; a broker that adds a child puts it first, then checks that the parent is
unmarked. In any order of events, at least one of the two sees the other and backs out.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from weir.meta.interfaces import MetaStore
from weir.meta.update import Codec, VersionedValue, create, read, update, upsert
from weir.model.errors import MetaConflictError, MetaError, MetaHistoryLostError, NotEmptyError, WireError
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope

log = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_PAUSE_S = 0.5


class ChangeWaiters:
    """Notifications by name. Ringing a name wakes only the tasks that wait for it."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}

    def ring(self, name: str) -> None:
        for waiter in self._waiting.pop(name, {}):
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, names: Iterable[str]) -> None:
        """Wait until one of the names rings. The caller must check its condition just before, without an await."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        listed = list(names)
        for name in listed:
            self._waiting.setdefault(name, {})[waiter] = None
        try:
            await waiter
        finally:
            for name in listed:
                self._leave(name, waiter)

    def _leave(self, name: str, waiter: "asyncio.Future[None]") -> None:
        waiting = self._waiting.get(name)
        if waiting is not None:
            waiting.pop(waiter, None)
            if not waiting:
                del self._waiting[name]

    def __len__(self) -> int:
        """The number of names with waiting tasks."""
        return len(self._waiting)


class _Item(Generic[T]):
    """A key's version, and its value: as bytes until the first read."""

    __slots__ = ("raw", "value", "version")

    def __init__(self, version: int, *, value: T | None = None, raw: bytes | None = None) -> None:
        self.version = version
        self.value = value
        self.raw = raw


class Mirror(Generic[T]):
    """Keys under one prefix. `on_change(key, present)` is called for each put or deletion, in order."""

    def __init__(
        self,
        meta: MetaStore,
        runtime: Runtime,
        prefix: str,
        codec: Codec[T],
        on_change: Callable[[str, bool], None] = lambda key, present: None,
    ) -> None:
        self._meta = meta
        self._runtime = runtime
        self._prefix = prefix
        self._codec = codec
        self._on_change = on_change
        self._items: dict[str, _Item[T]] = {}
        # Keys that this broker deleted, with the version: until the watch reports the deletion, its events of
        # older versions are stale.
        self._deleted: dict[str, int] = {}
        self._tasks = TaskScope(f"mirror {prefix}")
        self._started = False

    async def start(self) -> None:
        """Load all keys, and follow changes from now on. A second start has no effect."""
        if self._started:
            return
        self._started = True
        revision = await self._load()
        self._tasks.spawn(self._follow(revision), "follow")

    async def close(self) -> None:
        await self._tasks.close()

    # --- reading ----------------------------------------------------------------------------------------------

    def get(self, key: str) -> T | None:
        item = self._items.get(key)
        if item is None:
            return None
        if item.raw is not None:
            item.value, item.raw = self._read(key, item.raw), None
        return item.value

    def _read(self, key: str, raw: bytes) -> T | None:
        try:
            return self._codec.decode(raw)
        except WireError as bad:
            log.error("%s cannot be read: %s", key, bad)
            return None

    def items(self) -> dict[str, T]:
        """Every readable value, sorted by key."""
        return {key: value for key in sorted(self._items) if (value := self.get(key)) is not None}

    def that_hold(self, fragment: bytes) -> list[T]:
        """The values that may contain the bytes; does not decode values that certainly do not."""
        found = [key for key, item in self._items.items() if item.raw is None or fragment in item.raw]
        return [value for key in sorted(found) if (value := self.get(key)) is not None]

    def __len__(self) -> int:
        return len(self._items)

    # --- asking and changing the store --------------------------------------------------------------------------

    async def refresh(self, key: str) -> VersionedValue[T] | None:
        """Read the key's value from the store, which may be ahead of the watch."""
        found = await read(self._meta, key, self._codec)
        return None if found is None else self._entered(found)

    async def create(self, key: str, value: T) -> VersionedValue[T]:
        """Like `weir.meta.update.create`."""
        return self._entered(await create(self._meta, key, self._codec, value, runtime=self._runtime))

    async def change(self, key: str, transform: Callable[[T], T]) -> VersionedValue[T]:
        """Like `weir.meta.update.update`, starting from the value in memory."""
        value = self.get(key)
        known = None if value is None else VersionedValue(key, value, self._items[key].version)
        return self._entered(
            await update(self._meta, key, self._codec, transform, runtime=self._runtime, known=known)
        )

    async def upsert(self, key: str, transform: Callable[[T | None], T]) -> VersionedValue[T]:
        """Like `weir.meta.update.upsert`."""
        return self._entered(await upsert(self._meta, key, self._codec, transform, runtime=self._runtime))

    async def put(self, key: str, value: T, *, expect: int) -> VersionedValue[T]:
        """Set the key if it is at this version (ABSENT: does not exist), else MetaConflictError."""
        version = await self._meta.put(key, self._codec.encode(value), expect=expect)
        return self._entered(VersionedValue(key, value, version))

    async def delete(self, key: str, *, expect: int) -> None:
        """Delete the key at this version; MetaConflictError if it is at another."""
        await self._meta.delete(key, expect=expect)
        item = self._items.get(key)
        version = expect
        if item is None or item.version <= version:
            self._deleted[key] = version
            self._drop(key)

    def _entered(self, item: VersionedValue[T]) -> VersionedValue[T]:
        self._set(item.key, _Item(item.version, value=item.value))
        return item

    # --- the watch --------------------------------------------------------------------------------------------

    async def _load(self) -> int:
        listing = await self._meta.list(self._prefix)
        present = {item.key: None for item in listing.items}
        for key, known in list(self._items.items()):
            if key not in present and known.version <= listing.revision:
                self._drop(key)
        for key, version in list(self._deleted.items()):
            if key not in present and version <= listing.revision:
                del self._deleted[key]
        for item in listing.items:
            if item.key in self._items:
                self._told(item.key, item.value, item.version)
            else:
                self._set(item.key, _Item(item.version, raw=item.value))
        return listing.revision

    async def _follow(self, revision: int) -> None:
        while True:
            try:
                async for change in self._meta.watch(self._prefix, since=revision):
                    self._told(change.key, change.value, change.version)
                return  # the store was closed
            except MetaError as failure:
                log.warning("watch of %s broke, listing again: %s", self._prefix, failure)
            revision = await self._load_again()

    async def _load_again(self) -> int:
        while True:
            await self._runtime.clock.sleep(_RETRY_PAUSE_S)
            try:
                return await self._load()
            except MetaError as failure:
                log.warning("cannot list %s: %s", self._prefix, failure)

    def _told(self, key: str, value: bytes | None, version: int) -> None:
        if value is None:
            known = self._items.get(key)
            if version > self._deleted.get(key, version):
                del self._deleted[key]
            if known is not None and known.version <= version:
                self._drop(key)
            return
        decoded = self._read(key, value)
        if decoded is not None:
            # An unreadable value keeps its last readable version: an unreadable namespace is not a missing one.
            self._set(key, _Item(version, value=decoded))

    def _set(self, key: str, item: _Item[T]) -> None:
        known = self._items.get(key)
        if (known is not None and known.version >= item.version) or self._deleted.get(key, -1) >= item.version:
            return
        self._deleted.pop(key, None)
        self._items[key] = item
        self._on_change(key, True)

    def _drop(self, key: str) -> None:
        if self._items.pop(key, None) is not None:
            self._on_change(key, False)


class CachedValue(Generic[T]):
    """A key's version and value. `derived`: the user's data computed from it, valid as long as the value."""

    __slots__ = ("derived", "value", "version")

    def __init__(self, value: T, version: int) -> None:
        self.value = value
        self.version = version
        self.derived: Any = None


class RecordCache(Generic[T]):
    """Values in use under one prefix. `on_change(key, value, version, replaced)` is called for each put (its
    bytes) or deletion (None), in order, even of a key without a value in memory; `replaced`: memory had another
    value. `on_gap` is called after unknown changes were missed."""

    def __init__(
        self,
        meta: MetaStore,
        runtime: Runtime,
        prefix: str,
        codec: Codec[T],
        *,
        limit: int,
        on_change: Callable[[str, bytes | None, int, bool], None],
        on_gap: Callable[[], None],
    ) -> None:
        """Keeps at most `limit` values in addition to those on hold."""
        self._meta = meta
        self._runtime = runtime
        self._prefix = prefix
        self._codec = codec
        self._limit = limit
        self._on_change = on_change
        self._on_gap = on_gap
        self._items: dict[str, CachedValue[T]] = {}
        #: Keys in `_items` without a hold, least recently used first.
        self._idle: dict[str, None] = {}
        self._held: dict[str, int] = {}
        #: Keys with reads in progress, their number, and the version of a deletion during them.
        self._reading: dict[str, int] = {}
        self._gone: dict[str, int] = {}
        # Keys that this broker deleted, with the version: until the watch reports the deletion, its events of
        # older versions are stale.
        self._deleted: dict[str, int] = {}
        #: Incremented when the watch has missed changes: a read that began before may be older than that.
        self._gaps = 0
        self._tasks = TaskScope(f"records {prefix}")
        self._started = False

    async def start(self) -> None:
        """Follow changes from now on. A second start has no effect."""
        if self._started:
            return
        self._started = True
        revision = (await self._meta.page(self._prefix, limit=1)).revision
        self._tasks.spawn(self._follow(revision), "follow")

    async def close(self) -> None:
        await self._tasks.close()

    def __len__(self) -> int:
        """The number of values in memory."""
        return len(self._items)

    # --- values in memory ---------------------------------------------------------------------------------------

    def peek(self, key: str) -> CachedValue[T] | None:
        """The value in memory, if any; the store may have one even without it. A value on hold stays in memory
        after its first read."""
        found = self._items.get(key)
        if found is not None and key in self._idle:
            del self._idle[key]
            self._idle[key] = None
        return found

    def hold(self, key: str) -> None:
        """Keep the value in memory, once read, until the same number of `let_go` calls."""
        self._held[key] = self._held.get(key, 0) + 1
        self._idle.pop(key, None)

    def let_go(self, key: str) -> None:
        count = self._held.pop(key, 0)
        if count > 1:
            self._held[key] = count - 1
        elif key in self._items:
            self._idle[key] = None
            self._shrink()

    def _shrink(self) -> None:
        while len(self._idle) > self._limit:
            oldest = next(iter(self._idle))
            del self._idle[oldest], self._items[oldest]

    # --- asking and changing the store --------------------------------------------------------------------------

    async def read(self, key: str) -> T | None:
        """The key's value, from the store if it is not in memory."""
        found = self.peek(key)
        if found is not None:
            return found.value
        read = await self.refresh(key)
        return None if read is None else read.value

    async def refresh(self, key: str) -> VersionedValue[T] | None:
        """Read the key's value from the store, which may be ahead of the watch. WireError if it cannot be
        decoded."""
        gaps = self._gaps
        self._reading[key] = self._reading.get(key, 0) + 1
        try:
            item = await self._meta.get(key)
            if item is None:
                return None
            found = VersionedValue(key, self._codec.decode(item.value), item.version)
            if gaps == self._gaps and self._gone.get(key, -1) < item.version:
                self._enter(key, item.value, found.value, item.version)
            return found
        finally:
            left = self._reading.pop(key) - 1
            if left:
                self._reading[key] = left
            else:
                self._gone.pop(key, None)

    async def create(self, key: str, value: T, *, tried: bytes | None = None) -> VersionedValue[T]:
        """Like `weir.meta.update.create`."""
        made = await create(self._meta, key, self._codec, value, runtime=self._runtime, tried=tried)
        self.entered(made)
        return made

    async def change(self, key: str, transform: Callable[[T], T]) -> VersionedValue[T]:
        """Like `weir.meta.update.update`, starting from the value in memory."""
        here = self.peek(key)
        known = None if here is None else VersionedValue(key, here.value, here.version)
        changed = await update(self._meta, key, self._codec, transform, runtime=self._runtime, known=known)
        self.entered(changed)
        return changed

    async def delete(self, key: str, *, expect: int) -> None:
        """Delete the key at this version; MetaConflictError if it is at another."""
        await self._meta.delete(key, expect=expect)
        here = self._items.get(key)
        if here is None or here.version <= expect:
            self._deleted[key] = expect
            self._drop(key, expect)

    def entered(self, item: VersionedValue[T], raw: bytes | None = None) -> None:
        """Apply this broker's own write immediately. `raw`: its bytes, if available."""
        self._enter(item.key, raw or self._codec.encode(item.value), item.value, item.version)

    # --- the watch ----------------------------------------------------------------------------------------------

    async def _follow(self, revision: int) -> None:
        while True:
            try:
                async for change in self._meta.changes(self._prefix, since=revision):
                    self._told(change.key, change.value, change.version)
                return  # the store was closed
            except MetaHistoryLostError as lost:
                log.warning("%s: reading the values in use again", lost)
            except MetaError as failure:
                log.warning("watch of %s broke: %s", self._prefix, failure)
            revision = await self._look_anew()

    async def _look_anew(self) -> int:
        """After missed changes: drop values without a hold, and read the others again, after the revision from
        which the watch continues."""
        while True:
            try:
                revision = (await self._meta.page(self._prefix, limit=1)).revision
                self._gaps += 1
                for key in list(self._idle):
                    del self._idle[key], self._items[key]
                for key in list(self._held):
                    await self._reread(key, revision)
                self._deleted.clear()
                self._on_gap()
                return revision
            except MetaError as failure:
                log.warning("cannot read the values under %s again: %s", self._prefix, failure)
            await self._runtime.clock.sleep(_RETRY_PAUSE_S)

    async def _reread(self, key: str, revision: int) -> None:
        try:
            found = await self.refresh(key)
        except WireError as bad:
            log.error("%s cannot be read: %s", key, bad)
            return
        here = self._items.get(key)
        if found is None and here is not None and here.version <= revision:
            self._drop(key, revision)

    def _told(self, key: str, value: bytes | None, version: int) -> None:
        if value is None:
            if version > self._deleted.get(key, version):
                del self._deleted[key]
            if key in self._reading:
                self._gone[key] = version
            here = self._items.get(key)
            if here is None or here.version <= version:
                self._drop(key, version)
            return
        if self._deleted.get(key, -1) >= version:
            return
        here = self._items.get(key)
        if here is None and key not in self._reading:
            self._on_change(key, value, version, False)
        elif here is None or here.version < version:  # a read in progress may return an older version
            try:
                self._enter(key, value, self._codec.decode(value), version)
            except WireError as bad:
                # An unreadable value keeps its last readable version: an unreadable topic is not a missing one.
                log.error("%s cannot be read: %s", key, bad)

    def _enter(self, key: str, raw: bytes, value: T, version: int) -> None:
        here = self._items.get(key)
        if (here is not None and here.version >= version) or self._deleted.get(key, -1) >= version:
            return
        self._deleted.pop(key, None)
        self._items[key] = CachedValue(value, version)
        if key not in self._held:
            self._idle.pop(key, None)
            self._idle[key] = None
            self._shrink()
        self._on_change(key, raw, version, here is not None)

    def _drop(self, key: str, version: int) -> None:
        known = self._items.pop(key, None) is not None
        self._idle.pop(key, None)
        self._on_change(key, None, version, known)


async def delete_if_empty(
    meta: MetaStore, mirror: Mirror[T], key: str, *, children: str, mark: Callable[[T, bool], T]
) -> None:
    """Delete the key unless keys exist under the prefix `children` (NotEmptyError).

    `mark(value, deleting)` returns the value with or without the mark, or the same object if it needs no change.
    MetaKeyMissingError if the key does not exist.
    """
    while True:
        marked = await mirror.change(key, lambda value: mark(value, True))
        if (await meta.page(children, limit=1)).items:
            await mirror.change(key, lambda value: mark(value, False))
            raise NotEmptyError(f"{children} is not empty")
        try:
            await mirror.delete(key, expect=marked.version)
        except MetaConflictError:
            continue  # a concurrent change, perhaps only of its mark
        return
