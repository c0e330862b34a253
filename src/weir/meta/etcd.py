"""The metadata store in an etcd cluster, through its JSON gateway (docs/adr/0006).

The client tries the endpoints in turn, with timeouts, and reports an unknown outcome if a change got no answer. A
watch survives lost connections, and resynchronizes when etcd has compacted the history.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from ssl import SSLContext
from typing import TypeVar

from weir.meta.interfaces import Change, Creation, Lease, Listing, Versioned
from weir.meta.key_space import check_entry
from weir.meta.leases import HeldLease, usable_lease
from weir.meta.watch import RecentListings, WatchTracker
from weir.model.errors import (
    ConnectFailedError,
    FrameTooLargeError,
    LeaseExpiredError,
    MetaConflictError,
    MetaError,
    MetaHistoryLostError,
    MetaUnavailableError,
    NetworkError,
    WeirError,
    WireError,
)
from weir.runtime.http_client import HttpConnection, HttpEndpoint
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.wire import etcd as wire
from weir.wire.etcd import Failure, JsonLines, RangeAnswer, WatchAnswer

T = TypeVar("T")

_HTTP_OK = 200
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """Endpoints and timeouts of the cluster."""

    endpoints: tuple[tuple[str, int], ...]
    tls: SSLContext | None = None
    connect_timeout_s: float = 2.0
    #: Per endpoint.
    request_timeout_s: float = 5.0
    #: Keys per request of a long listing.
    list_page: int = 1000
    #: Operations per request that creates many keys; etcd's limit is 128, counting each operation and those inside
    #: it.
    create_page: int = 100
    #: A watch reconnects after this much silence: a connection may be dead without a sign.
    watch_renew_s: float = 60.0
    backoff_s: float = 0.02
    backoff_max_s: float = 1.0


class EtcdClient:
    """One client of the cluster. Sends a request to the endpoint that last answered, then to the others."""

    def __init__(self, runtime: Runtime, settings: EtcdSettings) -> None:
        self.settings = settings
        self._runtime = runtime
        self._endpoints = [
            HttpEndpoint(runtime.net, host, port, tls=settings.tls) for host, port in settings.endpoints
        ]
        self._preferred = 0
        self._streams: dict[HttpConnection, None] = {}
        self._closed = asyncio.Event()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    async def ask(
        self,
        path: str,
        body: bytes,
        decode: Callable[[bytes], T],
        *,
        repeatable: bool,
        timeout_s: float | None = None,
    ) -> T | Failure:
        """The decoded answer, or etcd's refusal. MetaUnavailableError without an answer; the client sends a
        request that is not `repeatable` at most once, since the cluster may have executed it."""

        async def exchange(endpoint: HttpEndpoint, connection: HttpConnection) -> T | Failure:
            await connection.send("POST", path, headers=_JSON, body=body)
            status, _ = await connection.head()
            data = await connection.body(wire.MAX_MESSAGE_BYTES)
            answer = decode(data) if status == _HTTP_OK else wire.decode_failure(status, data)
            endpoint.give_back(connection)
            return answer

        return await self._at_any_endpoint(
            exchange, repeatable=repeatable, timeout_s=timeout_s or self.settings.request_timeout_s
        )

    async def stream(self, path: str, body: bytes) -> HttpConnection:
        """Send a request with a stream as its answer; the caller owns the connection until `end_stream`."""

        async def begin(endpoint: HttpEndpoint, connection: HttpConnection) -> HttpConnection | Failure:
            await connection.send("POST", path, headers=_JSON, body=body)
            status, _ = await connection.head()
            if status == _HTTP_OK:
                return connection
            failure = wire.decode_failure(status, await connection.body(wire.MAX_MESSAGE_BYTES))
            connection.close()
            return failure

        begun = await self._at_any_endpoint(begin, repeatable=True, timeout_s=self.settings.request_timeout_s)
        if isinstance(begun, Failure):
            raise refused(begun)
        if self.closed:
            begun.close()
            raise MetaUnavailableError("this metadata client was closed")
        self._streams[begun] = None
        return begun

    async def _at_any_endpoint(
        self,
        work: Callable[[HttpEndpoint, HttpConnection], Awaitable[T | Failure]],
        *,
        repeatable: bool,
        timeout_s: float,
    ) -> T | Failure:
        """Run `work` on a connection to one endpoint after the other, until one gives a final answer."""
        problem = "no endpoints are configured"
        for endpoint in self._in_turn():
            try:
                connection = await endpoint.connect(timeout_s=self.settings.connect_timeout_s)
            except ConnectFailedError as failed:
                problem = failed.what  # nothing was sent, so even a non-repeatable request may go to the next
                continue
            try:
                async with asyncio.timeout(timeout_s):
                    answer = await work(endpoint, connection)
            except (TimeoutError, NetworkError, WireError) as lost:
                connection.close()
                if isinstance(lost, FrameTooLargeError):
                    raise
                problem = lost.what if isinstance(lost, WeirError) else f"{endpoint.address} is silent"
            except BaseException:
                connection.close()
                raise
            else:
                if not isinstance(answer, Failure) or _is_final(answer):
                    return answer
                problem = f"{endpoint.address} answered: {answer.message}"
            if not repeatable:
                break
        self._preferred += 1
        raise MetaUnavailableError(f"etcd did not answer: {problem}")

    def end_stream(self, connection: HttpConnection) -> None:
        self._streams.pop(connection, None)
        connection.close()

    async def list(self, prefix: str, *, revision: int = 0, keys_only: bool = False) -> Listing | Failure:
        """All keys under the prefix at one revision (0: the latest), page by page."""
        items: list[Versioned] = []
        start: str | None = None
        limit = self.settings.list_page
        while True:
            request = wire.list_request(prefix, start=start, limit=limit, revision=revision, keys_only=keys_only)
            try:
                answer = await self.ask(wire.PATH_RANGE, request, wire.decode_range, repeatable=True)
            except FrameTooLargeError:
                if limit == 1:
                    raise
                limit = max(1, limit // 8)
                continue
            if isinstance(answer, Failure):
                return answer
            revision = revision or answer.revision  # later pages use the same revision
            items += [Versioned(kv.key, kv.value, kv.mod_revision) for kv in answer.items]
            if not answer.more or not answer.items:
                return Listing(items, revision)
            start = answer.items[-1].key + "\0"

    async def page(self, prefix: str, after: str, limit: int) -> RangeAnswer | Failure:
        """At most `limit` keys under the prefix after a key, as of now."""
        start = after + "\0" if after else None
        request = wire.list_request(prefix, start=start, limit=limit)
        return await self.ask(wire.PATH_RANGE, request, wire.decode_range, repeatable=True)

    async def back_off(self, failures: int) -> None:
        """Wait before the next attempt, with growing delays, but at most until `close`."""
        limit = min(self.settings.backoff_max_s, self.settings.backoff_s * 2.0 ** min(failures, 16))
        try:
            async with asyncio.timeout(self._runtime.rng.uniform(limit / 2, limit)):
                await self._closed.wait()
        except TimeoutError:
            return

    def _in_turn(self) -> Iterator[HttpEndpoint]:
        first = self._preferred
        for step in range(len(self._endpoints)):
            self._preferred = (first + step) % len(self._endpoints)
            yield self._endpoints[self._preferred]

    def close(self) -> None:
        self._closed.set()
        for connection in list(self._streams):
            connection.close()
        for endpoint in self._endpoints:
            endpoint.close()


def _is_final(failure: Failure) -> bool:
    """Whether the refusal is a decision of the cluster, and not a failure to decide."""
    return failure.code in (wire.CODE_NOT_FOUND, wire.CODE_OUT_OF_RANGE) or failure.code in wire.REFUSALS


def refused(failure: Failure) -> MetaError:
    """The error for an unexpected refusal."""
    kind = wire.REFUSALS.get(failure.code, f"code {failure.code}")
    return MetaError(f"etcd refused ({kind}): {failure.message}")


class EtcdWatch:
    """One watch: a stream of changes while the connection lasts, a new stream from the next revision when it
    breaks, and a comparison of a listing with the known keys when etcd has compacted the revisions in between."""

    def __init__(
        self, client: EtcdClient, prefix: str, since: int, known: list[str] | None, *, resyncs: bool = True
    ) -> None:
        """`known`: the keys at `since`, if the caller knows them. Without `resyncs` the watch fails with
        MetaHistoryLostError once etcd has compacted changes that it did not deliver."""
        self._resyncs = resyncs
        self._client = client
        self._prefix = prefix
        self._since = since
        self._known = known
        self._failures = 0

    async def changes(self) -> AsyncIterator[Change]:
        """Every change, until the client closes."""
        tracker = WatchTracker(self._since, await self._keys_at_start() if self._resyncs else None)
        while not self._client.closed:
            stream = await self._open(tracker.position + 1)
            if stream is None:
                continue
            try:
                while (answer := await stream.next()) is not None:
                    if answer.compacted:
                        for change in await self._catch_up(tracker):
                            yield change
                        break
                    if answer.canceled:
                        break
                    for event in answer.events:
                        self._failures = 0
                        if tracker.admit(Change(event.key, event.value, event.mod_revision)):
                            yield Change(event.key, event.value, event.mod_revision)
                    if answer.events and not answer.fragment:
                        tracker.settle(answer.events[-1].mod_revision)
            finally:
                stream.close()
            if not stream.was_idle and not self._client.closed:
                await self._pause()

    async def _keys_at_start(self) -> list[str]:
        """The keys whose deletion the reader may need. Empty if etcd has compacted `since` itself."""
        if self._known is not None or self._since == 0:
            return self._known or []
        while not self._client.closed:
            try:
                listing = await self._client.list(self._prefix, revision=self._since, keys_only=True)
            except MetaUnavailableError:
                await self._pause()
                continue
            if isinstance(listing, Failure):
                if listing.code != wire.CODE_OUT_OF_RANGE:
                    raise refused(listing)
                return []
            return [item.key for item in listing.items]
        return []

    async def _open(self, start_revision: int) -> "_Stream | None":
        try:
            connection = await self._client.stream(
                wire.PATH_WATCH, wire.watch_request(self._prefix, start_revision)
            )
        except MetaUnavailableError:
            await self._pause()
            return None
        return _Stream(self._client, connection)

    async def _catch_up(self, tracker: WatchTracker) -> list[Change]:
        if not self._resyncs:
            raise MetaHistoryLostError(f"etcd has compacted changes that a watch of {self._prefix} did not see")
        try:
            listing = await self._client.list(self._prefix)
        except MetaUnavailableError:
            return []  # the next stream reports the same gap
        if isinstance(listing, Failure):
            if listing.code != wire.CODE_OUT_OF_RANGE:
                raise refused(listing)
            return []
        self._failures = 0
        return tracker.resync(listing)

    async def _pause(self) -> None:
        await self._client.back_off(self._failures)
        self._failures += 1


class _Stream:
    """The answers to one watch request."""

    def __init__(self, client: EtcdClient, connection: HttpConnection) -> None:
        self._client = client
        self._connection = connection
        self._lines = JsonLines()
        self._waiting: deque[WatchAnswer] = deque()
        #: A long silence: not a failure, but the watch reconnects.
        self.was_idle = False

    async def next(self) -> WatchAnswer | None:
        """The next answer; None if the stream ended, broke or idled."""
        while not self._waiting:
            try:
                async with asyncio.timeout(self._client.settings.watch_renew_s):
                    data = await self._connection.data()
                if not data:
                    return None
                self._waiting.extend(wire.decode_watch(line) for line in self._lines.feed(data))
            except TimeoutError:
                self.was_idle = True
                return None
            except (NetworkError, WireError):
                return None
        return self._waiting.popleft()

    def close(self) -> None:
        self._client.end_stream(self._connection)


__all__ = ["EtcdMeta", "EtcdSettings"]


class EtcdMeta:
    """A client of an etcd cluster; implements `MetaStore`. A version is etcd's mod_revision."""

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
                raise LeaseExpiredError(f"the lease has expired; {key} was not put")
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
            # etcd compacted the revision between two pages: list again.
        self._listed.remember(prefix, listing)
        return listing

    def watch(self, prefix: str, *, since: int) -> AsyncIterator[Change]:
        self._check_open()
        return EtcdWatch(self._client, prefix, since, self._listed.keys(prefix, since)).changes()

    def changes(self, prefix: str, *, since: int) -> AsyncIterator[Change]:
        self._check_open()
        return EtcdWatch(self._client, prefix, since, None, resyncs=False).changes()

    async def lease(self, ttl_s: float) -> Lease:
        """etcd counts whole seconds and has its own minimum; the lease lives at least as long as requested."""
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
                timeout_s=ttl / 4,  # time for other endpoints before the lease expires
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


#: Maximum bytes of keys and values in a request; etcd's own limit is 1.5 MiB.
_MAX_REQUEST_BYTES = 512 * 1024


def _requests(creations: Sequence[Creation], limit: int) -> Iterator[list[Creation]]:
    """Split into requests within the limits."""
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
