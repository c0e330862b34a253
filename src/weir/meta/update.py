"""The compare-and-set loop: read, transform by a pure function, put if unchanged, else again.

A put whose reply was lost may have been made, even after a later read did not show it: it may still be under
way. So the loop remembers what it tried to write; finding exactly that, it has won. Two consequences for
transforms: one may be applied to a value that already holds its own effect (return the same object then), and
where it matters who won, the value must name its author.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from weir.meta.interfaces import ABSENT, MetaStore, Versioned
from weir.model.errors import (
    MetaConflictError,
    MetaError,
    MetaFullError,
    MetaKeyMissingError,
    MetaUnavailableError,
    WeirError,
)
from weir.model.ledger import LedgerMetadata
from weir.runtime import Runtime
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
