"""Client of the metadata store of another process of the same Weir (`weir://host:port`); implements `MetaStore`.

`MetaLink` is one connection from handshake to end. `RemoteClient` keeps one link at a time, reconnects after a
loss, and reports an unknown outcome if a change got no answer.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from weir.meta.interfaces import ABSENT, Change, Creation, Lease, Listing, Versioned
from weir.meta.key_space import check_entry
from weir.meta.leases import HeldLease, usable_lease
from weir.meta.watch import RecentListings, WatchTracker
from weir.model.errors import (
    ConnectionLostError,
    MetaConflictError,
    MetaError,
    MetaHistoryLostError,
    MetaUnavailableError,
    NetworkError,
    NotAuthenticatedError,
    UnknownVersionError,
    WeirError,
    WireError,
)
from weir.runtime.interfaces import Connection, Runtime
from weir.runtime.node_link import prove
from weir.runtime.tasks import TaskScope
from weir.wire import meta as ask
from weir.wire.meta import (
    CODES,
    MAX_FRAME_BYTES,
    MAX_HELLO_BYTES,
    PURPOSE,
    VERSION,
    Changes,
    Done,
    Forgotten,
    Hello,
    Items,
    Leased,
    Request,
    Response,
    decode_response,
    decode_welcome,
    encode_hello,
    encode_request,
)
from weir.wire.node.frames import Failed, FrameSplitter
from weir.wire.node.proof import NONCE_BYTES, ClusterSecret, ProvingClient


class Answer(Protocol):
    """Collects the responses to one request."""

    def take(self, response: Response) -> bool:
        """Add a response; returns whether it was the last one."""

    def fail(self, why: WeirError) -> None: ...


class MetaLink:
    """A connection after the mutual proof of both ends. Create it with `open`, and run `run` in a task."""

    def __init__(self, connection: Connection, splitter: FrameSplitter, instance: int) -> None:
        self._connection = connection
        self._splitter = splitter
        #: The store's instance, new at each open of the store.
        self.instance = instance
        self._pending: dict[int, Answer] = {}
        self._last_id = 0
        self._ended: WeirError | None = None

    @staticmethod
    async def open(
        runtime: Runtime, host: str, port: int, *, secret: ClusterSecret | None, timeout_s: float
    ) -> "MetaLink":
        """Connect and shake hands; NetworkError if the server does not answer, another WeirError if it refuses."""
        connection = await runtime.net.connect(host, port, timeout_s=timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                return await _shake_hands(connection, secret, runtime.rng.randbytes)
        except TimeoutError:
            connection.abort()
            raise ConnectionLostError(f"{host}:{port} did not welcome us in time") from None
        except BaseException:
            connection.abort()
            raise

    @property
    def alive(self) -> bool:
        return self._ended is None

    def send(self, request: Callable[[int], Request], answer: Answer) -> int:
        """Send a request and return its id. The caller bounds the number of concurrent requests."""
        self._last_id += 1
        request_id = self._last_id
        if self._ended is not None:
            answer.fail(self._ended)
            return request_id
        self._pending[request_id] = answer
        self._connection.write([encode_request(request(request_id))])
        return request_id

    def forget(self, request_id: int) -> None:
        """Drop an answer without a waiting caller."""
        self._pending.pop(request_id, None)

    async def run(self) -> None:
        """Dispatch responses until the connection ends."""
        try:
            while data := await self._connection.receive():
                for body in self._splitter.feed(data):
                    self._on_response(decode_response(body))
            raise ConnectionLostError("the metadata store closed the connection")
        except WeirError as why:
            self.end(why)
        finally:
            self.end(ConnectionLostError("this side stopped"))

    def end(self, why: WeirError) -> None:
        """Break the connection and fail the pending requests. A second call has no effect."""
        if self._ended is None:
            self._ended = why
            self._connection.abort()
            pending, self._pending = self._pending, {}
            for answer in pending.values():
                answer.fail(why)

    def _on_response(self, response: Response) -> None:
        if isinstance(response, Failed) and response.request_id == 0:
            raise CODES.error(response)  # the reason for the end of the connection
        answer = self._pending.get(response.request_id)
        if answer is not None and answer.take(response):
            self._pending.pop(response.request_id, None)


async def _shake_hands(
    connection: Connection, secret: ClusterSecret | None, random_bytes: Callable[[int], bytes]
) -> MetaLink:
    splitter = FrameSplitter(MAX_HELLO_BYTES)
    if secret is not None:
        await prove(connection, splitter, ProvingClient(secret, PURPOSE, "", random_bytes(NONCE_BYTES)))
    connection.write([encode_hello(Hello())])
    bodies: list[memoryview] = []
    while not bodies:
        data = await connection.receive()
        if not data:
            raise NetworkError("the metadata store closed the connection during the handshake")
        bodies = list(splitter.feed(data))
    welcome = decode_welcome(bodies[0])
    if isinstance(welcome, Failed):
        raise CODES.error(welcome)
    if welcome.version != VERSION or len(bodies) > 1:
        raise WireError(f"the metadata store answered with version {welcome.version}")
    splitter.limit = MAX_FRAME_BYTES
    return MetaLink(connection, splitter, welcome.instance)


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """The server's address, the shared secret, and timeouts."""

    host: str
    port: int
    secret: ClusterSecret | None = None
    connect_timeout_s: float = 2.0
    #: For all attempts together.
    request_timeout_s: float = 5.0
    #: How long the store may delay its answer to a watch without changes.
    watch_wait_s: float = 10.0
    backoff_s: float = 0.02
    backoff_max_s: float = 0.5


class RemoteClient:
    """One client. A request waits for a link, up to its timeout; a repeatable one survives a lost link."""

    def __init__(self, runtime: Runtime, settings: RemoteSettings) -> None:
        self.settings = settings
        self._runtime = runtime
        self._tasks = TaskScope("meta client")
        self._link: MetaLink | None = None
        self._connecting: asyncio.Task[MetaLink | WeirError] | None = None
        self._failures = 0
        self._problem: WeirError | None = None
        self._closed = asyncio.Event()
        #: Called with the store's instance for each new link.
        self.on_link: Callable[[int], None] = lambda _: None

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    async def ask(
        self, request: Callable[[int], Request], *, repeatable: bool, timeout_s: float | None = None
    ) -> list[Response]:
        """The responses (several only for a listing). MetaUnavailableError without one; the client sends a request
        that is not `repeatable` at most once, since the store may have executed it."""
        try:
            async with asyncio.timeout(timeout_s or self.settings.request_timeout_s):
                return await self._ask(request, repeatable=repeatable)
        except TimeoutError:
            raise self._unavailable(str(self._problem or "no response in time")) from None

    async def _ask(self, request: Callable[[int], Request], *, repeatable: bool) -> list[Response]:
        while True:
            link = await self._linked()
            answer = _Gathered()
            request_id = link.send(request, answer)
            try:
                responses = await answer.all
            except asyncio.CancelledError:
                link.forget(request_id)
                if not self.closed:
                    # No answer within the caller's timeout: the connection may be dead without a sign.
                    link.end(ConnectionLostError("the metadata store is silent"))
                raise
            except (NetworkError, WireError, MetaUnavailableError) as lost:
                if not repeatable or self.closed:
                    raise self._unavailable(str(lost)) from None
                continue
            last = responses[-1]
            if isinstance(last, Failed):
                raise CODES.error(last)
            return responses

    async def _linked(self) -> MetaLink:
        """The current link, waiting for a new one if necessary."""
        while True:
            if self.closed:
                raise MetaError("this metadata client is closed")
            if self._link is not None and self._link.alive:
                return self._link
            if self._connecting is None:
                self._connecting = self._tasks.spawn(self._connect(), "connect")
            made = await asyncio.shield(self._connecting)
            if isinstance(made, MetaLink):
                return made
            if isinstance(made, NotAuthenticatedError | UnknownVersionError):
                raise MetaError(f"the metadata store refused this client: {made.what}", hint=made.hint)
            await self.back_off(self._failures)

    async def _connect(self) -> MetaLink | WeirError:
        settings = self.settings
        try:
            link = await MetaLink.open(
                self._runtime,
                settings.host,
                settings.port,
                secret=settings.secret,
                timeout_s=settings.connect_timeout_s,
            )
        except WeirError as problem:
            self._failures += 1
            self._problem = problem
            return problem
        finally:
            self._connecting = None
        self._failures, self._problem = 0, None
        self._link = link
        self._tasks.spawn(link.run(), "link")
        self.on_link(link.instance)
        return link

    async def back_off(self, failures: int) -> None:
        """Wait before the next attempt, with growing delays, but at most until `close`."""
        settings = self.settings
        limit = min(settings.backoff_max_s, settings.backoff_s * 2.0 ** min(failures, 16))
        try:
            async with asyncio.timeout(self._runtime.rng.uniform(limit / 2, limit)):
                await self._closed.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        self._closed.set()
        if self._link is not None:
            self._link.end(ConnectionLostError("this metadata client is closed"))
        await self._tasks.close()

    def _unavailable(self, why: str) -> MetaUnavailableError:
        where = f"{self.settings.host}:{self.settings.port}"
        return MetaUnavailableError(f"the metadata store at {where} did not answer: {why}")


class _Gathered:
    """Collects the responses to one request."""

    def __init__(self) -> None:
        self.all: asyncio.Future[list[Response]] = asyncio.get_running_loop().create_future()
        self._came: list[Response] = []

    def take(self, response: Response) -> bool:
        self._came.append(response)
        if isinstance(response, Items) and response.more:
            return False
        if not self.all.done():
            self.all.set_result(self._came)
        return True

    def fail(self, why: WeirError) -> None:
        if not self.all.done():
            self.all.set_exception(why)


__all__ = ["RemoteMeta", "RemoteSettings"]

T = TypeVar("T")
_INSTANCE_SHIFT = 32
_CREATED_AT_ONCE = 128


class RemoteMeta:
    """A client of a served store. Its leases end when it meets another instance of the store, which has dropped
    them."""

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
        """Concurrent requests share the store's syncs. Keys `beside` a key are put before it."""
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
        """The keys whose deletion a reader may need; earlier deletions arrive as changes, if the store has the
        history."""
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
                raise MetaHistoryLostError(f"the store no longer has all changes under {prefix}")
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
                timeout_s=ttl_s / 4,  # time for another link before the lease expires
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
        """All items of the answer, from any number of frames."""
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
