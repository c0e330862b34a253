"""The compare-and-set loop: read, transform by a pure function, put if unchanged, else again.

A put whose reply was lost may have been made, even after a later read did not show it: it may still be under
way. So the loop remembers what it tried to write; finding exactly that, it has won. Two consequences for
transforms: one may be applied to a value that already holds its own effect (return the same object then), and
where it matters who won, the value must name its author.

Creations that come at the same time go to the metadata store together: one request, one sync.

Ids of ledgers, and of producers: taken from one counter in the metadata, a block at a time.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from weir.meta import keys
from weir.meta.interfaces import ABSENT, Creation, MetaStore, Versioned
from weir.model.check import check
from weir.model.errors import (
    MetaConflictError,
    MetaError,
    MetaFullError,
    MetaKeyMissingError,
    MetaUnavailableError,
    WeirError,
)
from weir.model.ids import LedgerId
from weir.model.ledger import LedgerMetadata
from weir.runtime.interfaces import Clock, Runtime
from weir.runtime.tasks import TaskScope
from weir.wire.metadata import decode_ledger, encode_ledger

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """A value as bytes and back."""

    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]


#: A ledger's metadata.
LEDGER: Codec[LedgerMetadata] = Codec(encode_ledger, decode_ledger)


class VersionedValue(NamedTuple, Generic[T]):
    """A key's decoded value and its version."""

    key: str
    value: T
    version: int


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """How long the loop tries before the last error is the answer."""

    attempts: int = 40
    backoff_s: float = 0.005
    backoff_max_s: float = 0.5


_DEFAULTS = UpdateSettings()


async def read(store: MetaStore, key: str, codec: Codec[T]) -> VersionedValue[T] | None:
    """The key's value, decoded."""
    return _decoded(await store.get(key), codec)


async def update(
    store: MetaStore,
    key: str,
    codec: Codec[T],
    transform: Callable[[T], T],
    *,
    runtime: Runtime,
    known: VersionedValue[T] | None = None,
    settings: UpdateSettings = _DEFAULTS,
) -> VersionedValue[T]:
    """Change a key's value; returns what it is now.

    `transform` returns the new value, or the same object if there is nothing to do; what it raises ends the
    loop. MetaKeyMissingError if there is no such key. `known` saves the first read, and may be out of date.
    """

    def change(value: T | None) -> T:
        if value is None:
            raise MetaKeyMissingError(f"{key} does not exist")
        return transform(value)

    return await _Loop(store, key, codec, change, runtime=runtime, settings=settings).run(known)


async def upsert(
    store: MetaStore,
    key: str,
    codec: Codec[T],
    transform: Callable[[T | None], T],
    *,
    runtime: Runtime,
    settings: UpdateSettings = _DEFAULTS,
) -> VersionedValue[T]:
    """Like `update`, for a key that may not exist yet: `transform` then gets None."""
    return await _Loop(store, key, codec, transform, runtime=runtime, settings=settings).run()


async def create(
    store: MetaStore,
    key: str,
    codec: Codec[T],
    value: T,
    *,
    runtime: Runtime,
    settings: UpdateSettings = _DEFAULTS,
    tried: bytes | None = None,
) -> VersionedValue[T]:
    """Create a key; MetaConflictError if it exists already (unless as the result of this very call). `tried`: what
    the caller has tried to write already, with an unknown outcome."""

    def only_if_absent(current: T | None) -> T:
        if current is not None:
            raise MetaConflictError(f"{key} exists already")
        return value

    loop = _Loop(store, key, codec, only_if_absent, runtime=runtime, settings=settings)
    return await loop.run(tried=tried, new=value)


class _Loop(Generic[T]):
    def __init__(
        self,
        store: MetaStore,
        key: str,
        codec: Codec[T],
        transform: Callable[[T | None], T],
        *,
        runtime: Runtime,
        settings: UpdateSettings,
    ) -> None:
        self._store = store
        self._key = key
        self._codec = codec
        self._transform = transform
        self._runtime = runtime
        self._settings = settings
        # What puts of unknown outcome would have written. Each was conditional, so each took effect once at most.
        self._unknown: dict[bytes, None] = {}

    async def run(
        self, known: VersionedValue[T] | None = None, *, tried: bytes | None = None, new: T | None = None
    ) -> VersionedValue[T]:
        """`new`: what a key that most likely does not exist is to be."""
        if tried is not None:
            self._unknown[tried] = None
        elif new is not None:
            with suppress(MetaConflictError, MetaUnavailableError):
                return await self._put(new, ABSENT)
        if known is not None:
            changed = await self._from_known(known)
            if changed is not None:
                return changed
        failure: MetaError | None = None
        for attempt in range(self._settings.attempts):
            if failure is not None:
                await self._back_off(attempt)
            try:
                item = await self._store.get(self._key)
            except MetaFullError:
                raise  # space does not come back within a few attempts
            except MetaUnavailableError as unavailable:
                failure = unavailable
                continue
            current = _decoded(item, self._codec)
            if item is not None and current is not None and item.value in self._unknown:
                return current
            wanted = self._transform(None if current is None else current.value)
            if current is not None and wanted is current.value:
                return current
            try:
                return await self._put(wanted, ABSENT if current is None else current.version)
            except MetaFullError:
                raise
            except (MetaConflictError, MetaUnavailableError) as again:
                failure = again
        raise self._given_up(failure)

    async def _from_known(self, known: VersionedValue[T]) -> VersionedValue[T] | None:
        """One attempt on what the caller believes; None if the truth must be read first."""
        try:
            wanted = self._transform(known.value)
        except WeirError:
            return None  # perhaps not on the value as it is now
        if wanted is known.value:
            return None
        try:
            return await self._put(wanted, known.version)
        except (MetaConflictError, MetaUnavailableError):
            return None

    async def _put(self, wanted: T, expect: int) -> VersionedValue[T]:
        data = self._codec.encode(wanted)
        try:
            version = await self._store.put(self._key, data, expect=expect)
        except MetaUnavailableError:
            self._unknown[data] = None
            raise
        return VersionedValue(self._key, wanted, version)

    async def _back_off(self, attempt: int) -> None:
        """Full jitter: contenders spread out instead of meeting again."""
        limit = min(self._settings.backoff_max_s, self._settings.backoff_s * 2.0 ** min(attempt, 16))
        await self._runtime.clock.sleep(self._runtime.rng.uniform(0, limit))

    def _given_up(self, failure: MetaError | None) -> MetaError:
        if self._unknown and not isinstance(failure, MetaUnavailableError):
            return MetaUnavailableError(f"it is unknown whether {self._key} was changed: {failure}")
        return failure or MetaConflictError(f"no attempt to change {self._key} was allowed")


def _decoded(item: Versioned | None, codec: Codec[T]) -> VersionedValue[T] | None:
    return None if item is None else VersionedValue(item.key, codec.decode(item.value), item.version)


#: Creations of one request, and requests at once.
_AT_ONCE = 512
_REQUESTS = 4


class GroupedCreations:
    """While requests are under way, those who come form the next."""

    def __init__(self, meta: MetaStore, clock: Clock) -> None:
        self._meta = meta
        self._clock = clock
        self._tasks = TaskScope("creations")
        self._waiting: dict[str, tuple[Creation, asyncio.Future[int]]] = {}
        self._busy = 0
        #: One waits for the end of the turn to take all that came in it.
        self._gathering = False

    async def create(self, creation: Creation) -> int:
        """The version of the key that was made; ABSENT if it was there. MetaUnavailableError: it may have been
        made."""
        while (same := self._waiting.get(creation.key)) is not None:
            await asyncio.wait([same[1]])  # one request names a key once
        made: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[creation.key] = (creation, made)
        if self._busy < _REQUESTS and not self._gathering:
            self._gathering = True
            self._busy += 1
            self._tasks.spawn(self._run(), "creations")
        return await made

    async def _run(self) -> None:
        """What came in the same turn goes with the first of it."""
        try:
            await self._clock.sleep(0)
            self._gathering = False
            while self._waiting:
                keys = list(self._waiting)[:_AT_ONCE]
                await self._make([self._waiting.pop(key) for key in keys])
        finally:
            self._gathering = False
            self._busy -= 1

    async def _make(self, some: list[tuple[Creation, asyncio.Future[int]]]) -> None:
        try:
            versions = await self._meta.create_many([creation for creation, _ in some])
        except MetaError as failure:
            for _, made in some:
                if not made.done():
                    made.set_exception(type(failure)(failure.what, hint=failure.hint))
        except asyncio.CancelledError:
            for _, made in some:
                if not made.done():
                    made.set_exception(MetaUnavailableError("the broker is going down"))
            raise
        else:
            for (_, made), version in zip(some, versions, strict=True):
                if not made.done():
                    made.set_result(version)

    async def close(self) -> None:
        await self._tasks.close()
        for _, made in self._waiting.values():
            made.cancel()


_RETRY_PAUSE_S = 0.1
_ATTEMPTS = 100


class IdBlocks:
    """Gives out ids that nobody else gets. What is left of a block when its holder dies is never used."""

    def __init__(self, clock: Clock, meta: MetaStore, *, size: int, counter: str = keys.LEDGER_COUNTER) -> None:
        self._clock = clock
        self._meta = meta
        self._size = size
        self._counter = counter
        self._next = self._end = 0
        self._refill: asyncio.Task[None] | None = None

    async def take(self) -> LedgerId:
        """The next id."""
        while self._next >= self._end:
            # A finished one may not have been told so yet, and waiting for it would not let that happen.
            if self._refill is None or self._refill.done():
                self._refill = asyncio.get_running_loop().create_task(self._take_block())
                self._refill.add_done_callback(self._refilled)
            await asyncio.shield(self._refill)
        taken = self._next
        self._next += 1
        return LedgerId(taken)

    def _refilled(self, task: "asyncio.Task[None]") -> None:
        if self._refill is task:
            self._refill = None
        if not task.cancelled():
            task.exception()  # whoever waits gets it; perhaps nobody does any more

    async def _take_block(self) -> None:
        """Move the counter by compare-and-set. Not the usual loop: when the outcome is unknown, finding the wanted
        number would not tell whose it is, so that block is left alone and the next one taken."""
        for attempt in range(_ATTEMPTS):
            try:
                found = await self._meta.get(self._counter)
                last = 0 if found is None else int(found.value)
                wanted = last + self._size
                expect = ABSENT if found is None else found.version
                await self._meta.put(self._counter, str(wanted).encode(), expect=expect)
            except MetaConflictError:
                continue
            except MetaUnavailableError:
                if attempt == _ATTEMPTS - 1:
                    raise
                await self._clock.sleep(_RETRY_PAUSE_S)
                continue
            check(last + 1 >= self._end, f"ids are given out once: the counter {self._counter} never goes back")
            self._next, self._end = last + 1, wanted + 1
            return
        raise MetaConflictError(f"the counter {self._counter} changes faster than {_ATTEMPTS} attempts")
