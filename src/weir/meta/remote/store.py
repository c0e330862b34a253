"""The metadata store of another process of the same Weir (`weir://host:port`); fills `MetaStore`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from weir.meta.interfaces import ABSENT, Change, Creation, Lease, Listing, Versioned
from weir.meta.leases import HeldLease, usable_lease
from weir.meta.remote.client import RemoteClient, RemoteSettings
from weir.meta.state import check_entry
from weir.meta.watching import RecentListings, WatchTracker
from weir.model.errors import MetaConflictError, MetaError, MetaHistoryLostError, MetaUnavailableError
from weir.runtime import Runtime
from weir.runtime.tasks import TaskScope
from weir.wire.meta import requests as ask
from weir.wire.meta.responses import Changes, Done, Forgotten, Items, Leased, Response

__all__ = ["RemoteMeta", "RemoteSettings"]

T = TypeVar("T")
_INSTANCE_SHIFT = 32
_CREATED_AT_ONCE = 128


class RemoteMeta:
    """A client of a served store. Its leases end as soon as it meets another instance of the store: that one has
    dropped them."""

    def __init__(self, runtime: Runtime, settings: RemoteSettings) -> None:
        self._clock = runtime.clock
        self._client = RemoteClient(runtime, settings)
        self._client.on_link = self._linked
        self._tasks = TaskScope("remote meta")
        self._listed = RecentListings()
        self._held: list[HeldLease] = []

    async def get(self, key: str) -> Versioned | None:
        self._check_open()
        check_entry(key, b"")
        items = await self._items(lambda n: ask.Get(n, key))
        return items.items[0] if items.items else None

    async def put(self, key: str, value: bytes, *, expect: int | None = None, lease: Lease | None = None) -> int:
        self._check_open()
        check_entry(key, value)
        lease_id = usable_lease(lease, key)
        answers = await self._client.ask(lambda n: ask.Put(n, key, value, expect, lease_id), repeatable=False)
        return _only(answers, Done).version

    async def delete(self, key: str, *, expect: int | None = None) -> None:
        self._check_open()
        check_entry(key, b"")
        _only(await self._client.ask(lambda n: ask.Delete(n, key, expect), repeatable=False), Done)

    async def create_many(self, creations: Sequence[Creation]) -> Sequence[int]:
        """Those at once share the store's syncs. What is put beside a key is put before it."""
        self._check_open()
        for first in range(0, len(creations), _CREATED_AT_ONCE):
            some = creations[first : first + _CREATED_AT_ONCE]
            absent = [self.get(each.key) for each in some if each.beside]
            there = {found.key: None for found in await asyncio.gather(*absent) if found is not None}
            beside = [self.put(k, v) for each in some if each.key not in there for k, v in each.beside]
            await asyncio.gather(*beside)
        made: list[int] = []
        for first in range(0, len(creations), _CREATED_AT_ONCE):
            made += await asyncio.gather(*map(self._create, creations[first : first + _CREATED_AT_ONCE]))
        return made

    async def _create(self, creation: Creation) -> int:
        try:
            return await self.put(creation.key, creation.value, expect=ABSENT)
        except MetaConflictError:
            return ABSENT

    async def page(self, prefix: str, *, after: str = "", limit: int) -> Listing:
        self._check_open()
        return await self._items(lambda n: ask.Page(n, prefix, after, limit))

    async def count(self, prefix: str) -> int:
        self._check_open()
        return _only(await self._client.ask(lambda n: ask.Count(n, prefix), repeatable=True), Done).version

    async def list(self, prefix: str) -> Listing:
        self._check_open()
        listing = await self._items(lambda n: ask.List(n, prefix))
        self._listed.remember(prefix, listing)
        return listing

    def watch(self, prefix: str, *, since: int) -> AsyncIterator[Change]:
        self._check_open()
        known = self._listed.keys(prefix, since)

        async def begin() -> WatchTracker:
            return WatchTracker(since, await self._keys(prefix) if known is None else known)

        return self._follow(prefix, begin)

    def changes(self, prefix: str, *, since: int) -> AsyncIterator[Change]:
        self._check_open()

        async def begin() -> WatchTracker:
            return WatchTracker(since, None)

        return self._follow(prefix, begin)

    async def _follow(self, prefix: str, begin: Callable[[], Awaitable[WatchTracker]]) -> AsyncIterator[Change]:
        tracker: WatchTracker | None = None
        failures = 0
        while not self._closed():
            try:
                tracker = tracker or await begin()
                news = await self._news(prefix, tracker)
                failures = 0
            except MetaUnavailableError:
                await self._client.back_off(failures)
                failures += 1
                continue
            except MetaError:
                if self._closed():
                    return
                raise
            for change in news:
                yield change
                if self._closed():
                    return

    async def _keys(self, prefix: str) -> Sequence[str]:
        """The keys that a reader may hear deleted; what went before comes as a change, if the store remembers."""
        return [item.key for item in (await self._items(lambda n: ask.List(n, prefix))).items]

    async def _news(self, prefix: str, tracker: WatchTracker) -> Sequence[Change]:
        settings = self._client.settings
        wait_s = settings.watch_wait_s
        after = tracker.position
        answers = await self._client.ask(
            lambda n: ask.Watch(n, prefix, after, round(wait_s * 1000)),
            repeatable=True,
            timeout_s=wait_s + settings.request_timeout_s,
        )
        if isinstance(answers[0], Forgotten):
            if not tracker.can_resync:
                raise MetaHistoryLostError(f"more has changed under {prefix} than the store remembers")
            return tracker.resync(await self._items(lambda n: ask.List(n, prefix)))
        answer = _only(answers, Changes)
        news = [change for change in (Change(*item) for item in answer.changes) if tracker.admit(change)]
        tracker.settle(answer.upto)
        return news

    async def lease(self, ttl_s: float) -> Lease:
        self._check_open()
        asked_at = self._clock.monotonic()
        ttl_ms = max(1, round(ttl_s * 1000))
        granted = _only(await self._client.ask(lambda n: ask.Grant(n, ttl_ms), repeatable=False), Leased)

        async def renew() -> bool:
            answers = await self._client.ask(
                lambda n: ask.Renew(n, granted.lease_id),
                repeatable=True,
                timeout_s=ttl_s / 4,  # time for another link before the lease runs out
            )
            return _only(answers, Leased).alive

        async def revoke() -> None:
            _only(await self._client.ask(lambda n: ask.Revoke(n, granted.lease_id), repeatable=True), Done)

        lease = HeldLease(
            self._clock, granted.lease_id, ttl_s=ttl_s, asked_at=asked_at, renew=renew, revoke=revoke
        )
        self._held = [*(held for held in self._held if held.alive), lease]
        self._tasks.spawn(lease.keep(), f"lease-{granted.lease_id}")
        return lease

    async def close(self) -> None:
        await self._client.close()
        await self._tasks.close()

    async def _items(self, request: Callable[[int], ask.Request]) -> Listing:
        """Everything that answers, however many frames it takes."""
        answers = [_kind(answer, Items) for answer in await self._client.ask(request, repeatable=True)]
        found = [Versioned(item.key, item.value or b"", item.version) for part in answers for item in part.items]
        return Listing(found, answers[-1].revision)

    def _linked(self, instance: int) -> None:
        for lease in self._held:
            if lease.lease_id >> _INSTANCE_SHIFT != instance:
                lease.end()

    def _closed(self) -> bool:
        return self._client.closed

    def _check_open(self) -> None:
        if self._closed():
            raise MetaError("this metadata client is closed")


def _only(answers: Sequence[Response], kind: type[T]) -> T:
    return _kind(answers[-1], kind)


def _kind(answer: Response, kind: type[T]) -> T:
    if not isinstance(answer, kind):
        raise MetaError(f"the metadata store answered with {type(answer).__name__}, not {kind.__name__}")
    return answer
