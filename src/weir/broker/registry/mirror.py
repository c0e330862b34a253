"""A copy in memory of everything under a prefix of the metadata store, kept fresh by listing once and watching.

Reads never wait. This broker's own writes are entered at once, so that it reads what it wrote; what the watch
tells later about the same versions is no news. What was there at the start is decoded when somebody asks for it,
so that a start with many keys is quick.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from weir.meta.interfaces import MetaStore
from weir.meta.update import Codec, VersionedValue, create, read, update, upsert
from weir.model.errors import MetaError, WireError
from weir.runtime import Runtime
from weir.runtime.tasks import TaskScope

log = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_PAUSE_S = 0.5


class Bells:
    """Things to wait for by name. Ringing a name wakes those who wait for it, and nobody else."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}

    def ring(self, name: str) -> None:
        for waiter in self._waiting.pop(name, {}):
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, names: Iterable[str]) -> None:
        """Until one of them rings. Whatever is waited for must be looked at just before, without an await."""
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
        """How many names somebody waits for."""
        return len(self._waiting)


class _Item(Generic[T]):
    """A key's version, and its value: as bytes until somebody asks."""

    __slots__ = ("raw", "value", "version")

    def __init__(self, version: int, *, value: T | None = None, raw: bytes | None = None) -> None:
        self.version = version
        self.value = value
        self.raw = raw


class Mirror(Generic[T]):
    """Keys under one prefix. `on_change(key, present)` is called for each that is put or deleted, in order."""

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
        # Keys that this broker deleted, at which version: until the watch tells the same, what it tells of older
        # versions is past.
        self._deleted: dict[str, int] = {}
        self._tasks = TaskScope(f"mirror {prefix}")
        self._started = False

    async def start(self) -> None:
        """Know everything there is, and follow changes from now on. Starting twice is fine."""
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
        """Everything that can be read, sorted by key."""
        return {key: value for key in sorted(self._items) if (value := self.get(key)) is not None}

    def that_hold(self, fragment: bytes) -> list[T]:
        """Everything but what certainly has no such bytes in it: what nobody asked for yet stays as it came."""
        found = [key for key, item in self._items.items() if item.raw is None or fragment in item.raw]
        return [value for key in sorted(found) if (value := self.get(key)) is not None]

    def __len__(self) -> int:
        return len(self._items)

    # --- asking and changing the store --------------------------------------------------------------------------

    async def refresh(self, key: str) -> VersionedValue[T] | None:
        """The key's value by the store's own word, which may be ahead of the watch."""
        found = await read(self._meta, key, self._codec)
        return None if found is None else self._entered(found)

    async def create(self, key: str, value: T) -> VersionedValue[T]:
        """As `weir.meta.update.create`."""
        return self._entered(await create(self._meta, key, self._codec, value, runtime=self._runtime))

    async def change(self, key: str, transform: Callable[[T], T]) -> VersionedValue[T]:
        """As `weir.meta.update.update`, beginning with what is known here."""
        value = self.get(key)
        known = None if value is None else VersionedValue(key, value, self._items[key].version)
        return self._entered(
            await update(self._meta, key, self._codec, transform, runtime=self._runtime, known=known)
        )

    async def upsert(self, key: str, transform: Callable[[T | None], T]) -> VersionedValue[T]:
        """As `weir.meta.update.upsert`."""
        return self._entered(await upsert(self._meta, key, self._codec, transform, runtime=self._runtime))

    async def put(self, key: str, value: T, *, expect: int) -> VersionedValue[T]:
        """Set the key, which is at this version (ABSENT: at none); MetaConflictError if it is not."""
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
            # What cannot be read keeps what it last was: an unreadable namespace is not a missing one.
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
