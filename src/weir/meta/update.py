"""Compare-and-set on the metadata store: the update loop, grouped creations, and blocks of ids.

The loop reads, transforms by a pure function, and puts if the key is unchanged, else repeats. A put with a lost
reply may have succeeded, even if a later read did not show it: it may still be in flight. So the loop remembers
the values that it tried to write; if it finds one of them, its put has succeeded. Two consequences for transforms:
the loop may apply one to a value that already has its effect (it must return the same object then), and if it
matters which caller won, the value must name its author.

`GroupedCreations` combines concurrent creations into one request with one sync. `IdBlocks` issues ids of ledgers
and of producers from one counter in the metadata, a block at a time.
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
    """Encodes and decodes a value."""

    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]


#: The codec of a ledger's metadata.
LEDGER: Codec[LedgerMetadata] = Codec(encode_ledger, decode_ledger)


class VersionedValue(NamedTuple, Generic[T]):
    """A key's decoded value and its version."""

    key: str
    value: T
    version: int


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """Attempts and backoff of the loop before it raises the last error."""

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
    """Change a key's value; returns the new one.

    `transform` returns the new value, or the same object to leave it unchanged; an exception of it ends the loop.
    MetaKeyMissingError if the key does not exist. `known` saves the first read, and may be outdated.
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
    """Like `update`, for a key that may not exist yet: `transform` then receives None."""
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
    """Create a key; MetaConflictError if it exists already (unless this very call created it). `tried`: the bytes
    of an earlier attempt of the caller with an unknown outcome."""

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
        # Values of puts with unknown outcome. Each put was conditional, so each took effect at most once.
        self._unknown: dict[bytes, None] = {}

    async def run(
        self, known: VersionedValue[T] | None = None, *, tried: bytes | None = None, new: T | None = None
    ) -> VersionedValue[T]:
        """`new`: the value for a key that most likely does not exist."""
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
                raise  # the disk will not have space within a few attempts
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
        """One attempt on the caller's value; None if the loop must read the current one first."""
        try:
            wanted = self._transform(known.value)
        except WeirError:
            return None  # the current value may not raise
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
        """Full jitter: contenders spread out instead of colliding again."""
        limit = min(self._settings.backoff_max_s, self._settings.backoff_s * 2.0 ** min(attempt, 16))
        await self._runtime.clock.sleep(self._runtime.rng.uniform(0, limit))

    def _given_up(self, failure: MetaError | None) -> MetaError:
        if self._unknown and not isinstance(failure, MetaUnavailableError):
            return MetaUnavailableError(f"it is unknown whether {self._key} was changed: {failure}")
        return failure or MetaConflictError(f"no attempt to change {self._key} was allowed")


def _decoded(item: Versioned | None, codec: Codec[T]) -> VersionedValue[T] | None:
    return None if item is None else VersionedValue(item.key, codec.decode(item.value), item.version)


#: Creations per request, and concurrent requests.
_AT_ONCE = 512
_REQUESTS = 4


class GroupedCreations:
    """Combines concurrent creations: those that arrive during requests in flight form the next request."""

    def __init__(self, meta: MetaStore, clock: Clock) -> None:
        self._meta = meta
        self._clock = clock
        self._tasks = TaskScope("creations")
        self._waiting: dict[str, tuple[Creation, asyncio.Future[int]]] = {}
        self._busy = 0
        #: Whether a task waits for the end of the turn to send all its creations.
        self._gathering = False

    async def create(self, creation: Creation) -> int:
        """The version of the created key; ABSENT if it existed. MetaUnavailableError: the outcome is unknown."""
        while (same := self._waiting.get(creation.key)) is not None:
            await asyncio.wait([same[1]])  # a request must not name a key twice
        made: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[creation.key] = (creation, made)
        if self._busy < _REQUESTS and not self._gathering:
            self._gathering = True
            self._busy += 1
            self._tasks.spawn(self._run(), "creations")
        return await made

    async def _run(self) -> None:
        """Send the creations of one turn in one request."""
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
                    made.set_exception(MetaUnavailableError("the broker shuts down"))
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
    """Issues unique ids. The unused rest of a block is lost when the process ends."""

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
            # The callback of a finished task may not have run yet, and waiting for the task would not let it run.
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
            task.exception()  # the callers raise it, if any still wait

    async def _take_block(self) -> None:
        """Advance the counter by compare-and-set. Not the usual loop: after an unknown outcome, finding the wanted
        number does not show which process wrote it, so this skips the block and acquires the next one."""
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
            check(last + 1 >= self._end, f"ids are unique: the counter {self._counter} never decreases")
            self._next, self._end = last + 1, wanted + 1
            return
        raise MetaConflictError(f"the counter {self._counter} changes faster than {_ATTEMPTS} attempts")
