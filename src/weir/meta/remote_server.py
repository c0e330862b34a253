"""The embedded metadata store on the network, for the workers of one Weir (docs/internals/meta.md).

A client proves that it belongs to the cluster, then the session answers its requests as they complete. At its
limit of requests the session stops reading, so that TCP back-pressure slows down a client that floods it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any, ClassVar

from weir.meta.interfaces import Change, Listing, Versioned
from weir.meta.key_space import NO_LEASE
from weir.meta.local import LocalCore
from weir.model.errors import LeaseExpiredError, MetaError, MetaUnavailableError, NetworkError, WeirError
from weir.model.ids import Buffer
from weir.runtime.interfaces import Clock, Connection, Runtime
from weir.runtime.server import Outbox, Server, ServingSettings
from weir.runtime.tasks import TaskScope
from weir.wire import meta as ask
from weir.wire import meta as say
from weir.wire.meta import (
    CODES,
    MAX_FRAME_BYTES,
    MAX_HELLO_BYTES,
    PAGE_BYTES,
    PURPOSE,
    Item,
    Welcome,
    choose_version,
    decode_hello,
    encode_welcome,
)
from weir.wire.node.frames import FrameSplitter
from weir.wire.node.proof import NONCE_BYTES, ClusterSecret, ProvingServer

log = logging.getLogger(__name__)

#: A lease id on the wire: the store instance that granted it, and the id there.
_INSTANCE_SHIFT = 32


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits of one client."""

    requests: int = 1024
    hello_timeout_s: float = 5.0
    stall_timeout_s: float = 30.0
    max_watch_s: float = 30.0


class MetaSession:
    """Serves one connection until it ends; never raises for anything that the client does."""

    def __init__(
        self,
        core: LocalCore,
        connection: Connection,
        *,
        clock: Clock,
        instance: int,
        proving: ProvingServer | None,
        limits: SessionLimits,
        durable: TaskScope,
    ) -> None:
        """`instance` has 31 bits; `proving`: None accepts every client; `durable` runs changes, which complete
        even if the client disconnects."""
        self._core = core
        self._connection = connection
        self._clock = clock
        self._instance = instance
        self._proving = proving
        self._limits = limits
        self._durable = durable
        self._tasks = TaskScope(f"meta session {connection.peer}", on_failure=lambda _: self.abort())
        self._outbox = Outbox(connection, clock)
        self._splitter = FrameSplitter(MAX_HELLO_BYTES)
        self._admitted = False
        self._began_at = clock.monotonic()
        self._requests = 0
        self._less = asyncio.Event()
        self._ending: WeirError | None = None

    @property
    def peer(self) -> str:
        return self._connection.peer

    async def run(self) -> None:
        try:
            while self._ending is None and (data := await self._connection.receive()):
                await self._take(data)
                data = b""
        except NetworkError as lost:
            log.debug("connection of %s broke: %s", self.peer, lost)
        except WeirError as bad:
            log.warning("connection of %s is closed: %s", self.peer, bad)
            if self._proving is None or self._proving.known:  # no reason for an unproven client
                self._farewell(bad)
        finally:
            await self._tasks.close()
            self._outbox.flush()
            self._connection.close()

    def end(self, why: WeirError) -> None:
        if self._ending is None:
            self._ending = why
            if self._admitted:
                self._farewell(why)
            self._outbox.flush()
            self._connection.close()

    def abort(self) -> None:
        self._connection.abort()

    def overdue(self, now: float) -> str | None:
        if not self._admitted:
            return (
                "it never proved its membership" if now - self._began_at > self._limits.hello_timeout_s else None
            )
        stalled_at = self._outbox.stalled_at
        if stalled_at is not None and now - stalled_at > self._limits.stall_timeout_s:
            return "it does not read its answers"
        return None

    def _farewell(self, why: WeirError) -> None:
        self._outbox.say(say.encode_failed(CODES.failed(0, why)))

    # --- receiving ---------------------------------------------------------------------------------------

    async def _take(self, data: Buffer) -> None:
        for body in self._splitter.feed(data):
            if self._ending is not None:
                return
            if self._proving is not None and not self._proving.known:
                self._outbox.say(self._proving.receive(body))
            elif not self._admitted:
                self._on_hello(body)
            else:
                while self._requests >= self._limits.requests:
                    self._less.clear()
                    await self._less.wait()
                self._on_request(ask.decode_request(body))

    def _on_hello(self, body: memoryview) -> None:
        version = choose_version(decode_hello(body))
        self._admitted = True
        self._splitter.limit = MAX_FRAME_BYTES
        self._outbox.say(encode_welcome(Welcome(self._instance, version)))

    def _on_request(self, request: ask.Request) -> None:
        changes = isinstance(request, ask.Put | ask.Delete | ask.Revoke)
        self._requests += 1
        (self._durable if changes else self._tasks).spawn(self._answer(request), "request")

    async def _answer(self, request: ask.Request) -> None:
        try:
            await self._HANDLERS[type(request)](self, request)
        except NetworkError as gone:
            log.debug("%s disconnected before its answer: %s", self.peer, gone)
        except WeirError as failure:
            self._outbox.say(say.encode_failed(CODES.failed(request.request_id, failure)))
        try:
            await self._outbox.drain()
        except NetworkError:
            pass
        finally:
            self._requests -= 1
            self._less.set()

    # --- one handler per request -------------------------------------------------------------------------

    async def _get(self, request: ask.Get) -> None:
        found = await self._core.read(request.key)
        items = [] if found is None else [_item(found)]
        self._outbox.say(say.encode_items(request.request_id, self._core.state.revision, items, more=False))

    async def _put(self, request: ask.Put) -> None:
        await self._core.log.wait_capacity()
        lease_id = self._lease(request.lease_id)
        if lease_id is None:
            raise LeaseExpiredError(f"the lease belongs to a previous store instance; {request.key} was not put")
        version = await self._core.put_durably(
            request.key, request.value, expect=request.expect, lease_id=lease_id
        )
        self._outbox.say(say.encode_done(request.request_id, version))

    async def _delete(self, request: ask.Delete) -> None:
        await self._core.delete_durably(request.key, expect=request.expect)
        self._outbox.say(say.encode_done(request.request_id, 0))

    async def _list(self, request: ask.List) -> None:
        await self._say(request.request_id, await self._core.read_all(request.prefix))

    async def _page(self, request: ask.Page) -> None:
        found = await self._core.read_page(request.prefix, after=request.after, limit=request.limit)
        await self._say(request.request_id, found)

    async def _count(self, request: ask.Count) -> None:
        self._outbox.say(say.encode_done(request.request_id, await self._core.count(request.prefix)))

    async def _say(self, request_id: int, listing: Listing) -> None:
        at = 0
        for page in _pages(listing.items):
            at += len(page)
            more = at < len(listing.items)
            self._outbox.say(say.encode_items(request_id, listing.revision, page, more=more))
            await self._outbox.drain()

    async def _watch(self, request: ask.Watch) -> None:
        wait_s = min(request.timeout_ms / 1000, self._limits.max_watch_s)
        news = _News()
        timer = self._clock.call_later(wait_s, news.expire)
        self._core.add_feed(news)
        try:
            after = request.after
            while True:
                news.woken.clear()
                upto = self._core.log.durable
                changes = self._core.state.changes(request.prefix, after=after, upto=upto)
                if changes is None or changes or news.expired:
                    break
                after = max(after, upto)
                await news.woken.wait()
        finally:
            timer.cancel()
            self._core.remove_feed(news)
        if changes is None:
            self._outbox.say(say.encode_forgotten(request.request_id))
            return
        page = next(_pages(changes))
        upto = page[-1].version if len(page) < len(changes) else max(after, upto)
        self._outbox.say(say.encode_changes(request.request_id, upto, page))

    async def _grant(self, request: ask.Grant) -> None:
        if not request.ttl_ms:
            raise MetaError("a lease has at least a millisecond")
        lease_id = self._instance << _INSTANCE_SHIFT | self._core.grant(request.ttl_ms / 1000)
        self._outbox.say(say.encode_leased(request.request_id, lease_id, alive=True))

    async def _renew(self, request: ask.Renew) -> None:
        lease_id = self._lease(request.lease_id)
        alive = bool(lease_id) and lease_id is not None and self._core.renew(lease_id)
        self._outbox.say(say.encode_leased(request.request_id, request.lease_id, alive=alive))

    async def _revoke(self, request: ask.Revoke) -> None:
        lease_id = self._lease(request.lease_id)
        if lease_id:
            await self._core.revoke_durably(lease_id)
        self._outbox.say(say.encode_done(request.request_id, 0))

    _HANDLERS: ClassVar[dict[type, Callable[["MetaSession", Any], Any]]] = {
        ask.Get: _get,
        ask.Put: _put,
        ask.Delete: _delete,
        ask.List: _list,
        ask.Page: _page,
        ask.Count: _count,
        ask.Watch: _watch,
        ask.Grant: _grant,
        ask.Renew: _renew,
        ask.Revoke: _revoke,
    }

    def _lease(self, lease_id: int) -> int | None:
        """The core's id of a lease, or NO_LEASE; None if another instance granted it, and it has ended."""
        if lease_id == NO_LEASE:
            return NO_LEASE
        instance, number = lease_id >> _INSTANCE_SHIFT, lease_id & (1 << _INSTANCE_SHIFT) - 1
        return number if instance == self._instance and number != NO_LEASE else None


class _News:
    """Wakes one watch request at the next change or at its timeout."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()
        self.expired = False

    def wake(self) -> None:
        self.woken.set()

    def expire(self) -> None:
        self.expired = True
        self.woken.set()


def _item(item: Versioned | Change) -> Item:
    return Item(*item)


def _pages(items: Sequence[Versioned] | Sequence[Change]) -> Iterator[list[Item]]:
    """At least one page, each short enough for a frame."""
    page: list[Item] = []
    size = 0
    for each in items:
        item = _item(each)
        if page and size + say.item_bytes(item) > PAGE_BYTES:
            yield page
            page, size = [], 0
        page.append(item)
        size += say.item_bytes(item)
    yield page


_INSTANCE_BITS = 31


@dataclass(frozen=True, slots=True)
class MetaServerSettings:
    """The listen address, the shared secret, and the limits of clients."""

    host: str = "127.0.0.1"
    port: int = 0
    #: None: accepts every client, for tests.
    secret: ClusterSecret | None = None
    max_connections: int = 1024
    limits: SessionLimits = field(default_factory=SessionLimits)


class MetaServer:
    """Serves a store. `start`, then `close`; closing the store is up to its owner."""

    def __init__(
        self,
        runtime: Runtime,
        core: LocalCore,
        settings: MetaServerSettings,
        *,
        tls: SSLContext | None = None,
    ) -> None:
        self._runtime = runtime
        self._core = core
        self._settings = settings
        self._instance = runtime.rng.getrandbits(_INSTANCE_BITS)
        self._durable = TaskScope("meta-server-durable")
        serving = ServingSettings(settings.host, settings.port, settings.max_connections)
        self._server: Server[MetaSession] = Server(runtime, "meta", serving, self._session, tls=tls)

    @property
    def port(self) -> int:
        """The bound port; the settings may have 0."""
        return self._server.port

    @property
    def connections(self) -> int:
        return len(self._server.sessions)

    async def start(self) -> None:
        """Bind, or raise AddressInUseError; then accept in the background."""
        await self._server.start()

    async def close(self) -> None:
        """Accept no more requests, notify clients, and end every connection."""
        await self._server.close(MetaUnavailableError("the metadata store shuts down"))
        await self._durable.close()

    def _session(self, connection: Connection) -> MetaSession:
        secret, proving = self._settings.secret, None
        if secret is not None:
            proving = ProvingServer(secret, PURPOSE, "", self._runtime.rng.randbytes(NONCE_BYTES))
        return MetaSession(
            self._core,
            connection,
            clock=self._runtime.clock,
            instance=self._instance,
            proving=proving,
            limits=self._settings.limits,
            durable=self._durable,
        )
