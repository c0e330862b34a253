"""The metadata store in an etcd cluster, through its JSON gateway (docs/adr/0006)."""

import math
from collections.abc import AsyncIterator, Iterator, Sequence

from weir.meta.etcd_client import EtcdClient, EtcdSettings, refused
from weir.meta.etcd_watch import EtcdWatch
from weir.meta.interfaces import Change, Creation, Lease, Listing, Versioned
from weir.meta.leases import HeldLease, usable_lease
from weir.meta.state import check_entry
from weir.meta.watching import RecentListings
from weir.model.errors import (
    FrameTooLargeError,
    LeaseExpiredError,
    MetaConflictError,
    MetaError,
    MetaUnavailableError,
)
from weir.runtime import Runtime
from weir.runtime.tasks import TaskScope
from weir.wire import etcd as wire
from weir.wire.etcd import Failure

__all__ = ["EtcdMeta", "EtcdSettings"]


class EtcdMeta:
    """A client of an etcd cluster; fills `MetaStore`. A version is etcd's mod_revision."""

    def __init__(self, runtime: Runtime, settings: EtcdSettings) -> None:
        self._clock = runtime.clock
        self._client = EtcdClient(runtime, settings)
        self._tasks = TaskScope("etcd")
        self._listed = RecentListings()

    async def get(self, key: str) -> Versioned | None:
        self._check_open()
        answer = await self._client.ask(wire.PATH_RANGE, wire.get_request(key), wire.decode_range, repeatable=True)
        if isinstance(answer, Failure):
            raise refused(answer)
        return Versioned(*answer.items[0]) if answer.items else None

    async def put(self, key: str, value: bytes, *, expect: int | None = None, lease: Lease | None = None) -> int:
        self._check_open()
        check_entry(key, value)
        lease_id = usable_lease(lease, key)
        return await self._change(key, wire.put_request(key, value, expect=expect, lease_id=lease_id), expect)

    async def delete(self, key: str, *, expect: int | None = None) -> None:
        self._check_open()
        await self._change(key, wire.delete_request(key, expect=expect), expect)

    async def _change(self, key: str, request: bytes, expect: int | None) -> int:
        answer = await self._client.ask(wire.PATH_TXN, request, wire.decode_txn, repeatable=False)
        if isinstance(answer, Failure):
            if answer.code == wire.CODE_NOT_FOUND:
                raise LeaseExpiredError(f"the lease is gone; {key} was not put")
            raise refused(answer)
        if not answer.succeeded:
            raise MetaConflictError(f"{key} is not at version {expect}")
        return answer.revision

    async def create_many(self, creations: Sequence[Creation]) -> Sequence[int]:
        self._check_open()
        for key, value in ((k, v) for each in creations for k, v in ((each.key, each.value), *each.beside)):
            check_entry(key, value)
        made: list[int] = []
        for part in _requests(creations, self._client.settings.create_page):
            request = wire.create_request(part)
            answer = await self._client.ask(wire.PATH_TXN, request, wire.decode_created, repeatable=False)
            if isinstance(answer, Failure):
                raise refused(answer)
            if len(answer) != len(part):
                raise MetaUnavailableError(f"etcd answered {len(answer)} of {len(part)} creations")
            made += answer
        return made

    async def page(self, prefix: str, *, after: str = "", limit: int) -> Listing:
        self._check_open()
        items: list[Versioned] = []
        step = min(limit, self._client.settings.list_page)
        while True:
            try:
                answer = await self._client.page(prefix, after, min(step, limit - len(items)))
            except FrameTooLargeError:
                if step == 1:
                    raise
                step = max(1, step // 8)
                continue
            if isinstance(answer, Failure):
                raise refused(answer)
            items += [Versioned(*found) for found in answer.items]
            if not answer.more or not answer.items or len(items) >= limit:
                return Listing(items, answer.revision)
            after = items[-1].key

    async def count(self, prefix: str) -> int:
        self._check_open()
        request = wire.count_request(prefix)
        answer = await self._client.ask(wire.PATH_RANGE, request, wire.decode_count, repeatable=True)
        if isinstance(answer, Failure):
            raise refused(answer)
        return answer

    async def list(self, prefix: str) -> Listing:
        self._check_open()
        while True:
            listing = await self._client.list(prefix)
            if not isinstance(listing, Failure):
                break
            if listing.code != wire.CODE_OUT_OF_RANGE:
                raise refused(listing)
            # Compacted between two pages: the listing is of a moment that is forgotten already.
        self._listed.remember(prefix, listing)
        return listing

    def watch(self, prefix: str, *, since: int) -> AsyncIterator[Change]:
        self._check_open()
        return EtcdWatch(self._client, prefix, since, self._listed.keys(prefix, since)).changes()

    def changes(self, prefix: str, *, since: int) -> AsyncIterator[Change]:
        self._check_open()
        return EtcdWatch(self._client, prefix, since, None, resyncs=False).changes()

    async def lease(self, ttl_s: float) -> Lease:
        """etcd counts whole seconds and has a minimum of its own; the lease lives at least as long as asked."""
        self._check_open()
        asked_at = self._clock.monotonic()
        granted = await self._client.ask(
            wire.PATH_LEASE_GRANT, wire.grant_request(math.ceil(ttl_s)), wire.decode_lease, repeatable=False
        )
        if isinstance(granted, Failure):
            raise refused(granted)
        request = wire.lease_request(granted.lease_id)
        ttl = float(granted.ttl_s)

        async def renew() -> bool:
            answer = await self._client.ask(
                wire.PATH_LEASE_RENEW,
                request,
                wire.decode_lease,
                repeatable=True,
                timeout_s=ttl / 4,  # time for other endpoints before the lease runs out
            )
            return not isinstance(answer, Failure) and answer.ttl_s > 0

        async def revoke() -> None:
            answer = await self._client.ask(wire.PATH_LEASE_REVOKE, request, lambda _: None, repeatable=True)
            if isinstance(answer, Failure) and answer.code != wire.CODE_NOT_FOUND:
                raise refused(answer)

        lease = HeldLease(self._clock, granted.lease_id, ttl_s=ttl, asked_at=asked_at, renew=renew, revoke=revoke)
        self._tasks.spawn(lease.keep(), f"lease-{granted.lease_id}")
        return lease

    async def close(self) -> None:
        self._client.close()
        await self._tasks.close()

    def _check_open(self) -> None:
        if self._client.closed:
            raise MetaError("this metadata client is closed")


#: A request has at most so many bytes of keys and values; etcd's own limit is 1.5 MiB.
_MAX_REQUEST_BYTES = 512 * 1024


def _requests(creations: Sequence[Creation], limit: int) -> Iterator[list[Creation]]:
    """Cut into what one request may hold."""
    part: list[Creation] = []
    size = 0
    for creation in creations:
        added = len(creation.key) + len(creation.value) + sum(len(k) + len(v) for k, v in creation.beside)
        if part and (len(part) >= limit or size + added > _MAX_REQUEST_BYTES):
            yield part
            part, size = [], 0
        part.append(creation)
        size += added
    if part:
        yield part
