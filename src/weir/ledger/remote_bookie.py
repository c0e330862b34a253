"""Clients of bookies on other nodes, which connect on first use.

`RemoteBookie` implements `ledger.interfaces.Bookie` over one connection at a time. It queues a request at once,
also while it connects. When a connection breaks, requests in flight fail with BookieUnavailableError: their
outcome is unknown. It sends no request twice.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any

from weir.ledger.interfaces import Bookie
from weir.model.errors import BookieBusyError, BookieError, BookieUnavailableError, WeirError, WireError
from weir.model.ids import BookieId, Buffer, EntryId, LedgerId
from weir.model.ledger import ReadResult
from weir.runtime.interfaces import Connection, Runtime, Timer
from weir.runtime.node_link import LinkWords, NodeLink
from weir.runtime.tasks import TaskScope
from weir.wire import bookie as wire
from weir.wire.bookie import MAX_HELLO_BYTES, PURPOSE, VERSION, Hello, decode_welcome, encode_hello, error_from
from weir.wire.metadata import BookieInfo
from weir.wire.node.proof import ClusterSecret

_WORDS = LinkWords(PURPOSE, MAX_HELLO_BYTES, wire.MAX_FRAME_BYTES)


class BookieLink(NodeLink[wire.Response]):
    """`on_ended` is called once, whatever ended it."""

    def __init__(
        self,
        runtime: Runtime,
        bookie_id: BookieId,
        *,
        secret: ClusterSecret | None,
        on_response: Callable[[wire.Response], None],
        on_ended: Callable[["BookieLink", BookieUnavailableError], None],
    ) -> None:
        super().__init__(runtime, bookie_id, _WORDS, secret=secret, on_response=on_response)
        self._on_ended = on_ended

    def _hello(self) -> bytes:
        return encode_hello(Hello(BookieId(self._node)))

    def _read_welcome(self, body: memoryview) -> int:
        welcome = decode_welcome(body)
        if isinstance(welcome, wire.Failed):
            raise error_from(welcome)
        if welcome.version != VERSION or welcome.bookie_id != self._node:
            raise WireError(f"bookie {welcome.bookie_id} welcomes with protocol version {welcome.version}")
        return welcome.max_frame_bytes

    def _read_response(self, body: memoryview) -> wire.Response:
        response = wire.decode_response(body)
        if isinstance(response, wire.Failed) and response.request_id == 0:
            raise error_from(response)
        return response

    def _tell_ended(self, why: str, *, sent: bool) -> None:
        self._on_ended(self, BookieUnavailableError(f"bookie {self._node} is not reachable: {why}"))


log = logging.getLogger(__name__)

_MAX_DOUBLINGS = 16

#: Where a bookie is, if anyone knows.
Resolver = Callable[[BookieId], BookieInfo | None]


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """How long to wait for a bookie, and how much may wait for it."""

    connect_timeout_s: float = 3.0
    #: For the answer to one request; a poll may take its own time-out longer.
    request_timeout_s: float = 10.0
    max_requests: int = 16 * 1024
    max_bytes: int = 128 * 1024 * 1024
    #: A bookie from which nothing came for so long is asked whether it lives, and has so long to answer.
    ping_interval_s: float = 5.0
    ping_timeout_s: float = 5.0
    #: How precisely time-outs are kept.
    tick_s: float = 0.1
    #: After a failed attempt, requests fail at once until the next attempt is due.
    first_backoff_s: float = 0.05
    max_backoff_s: float = 5.0
    #: How often bookies that are gone are looked for.
    evict_interval_s: float = 60.0


class _Pending:
    """A request that waits for its answer."""

    __slots__ = ("answer", "deadline", "expects", "size")

    def __init__(self, answer: "asyncio.Future[Any]", expects: type, deadline: float, size: int) -> None:
        self.answer = answer
        self.expects = expects
        self.deadline = deadline
        self.size = size


class RemoteBookie:
    """A handle on one bookie; it costs nothing until it is used, and is good again after the bookie was gone."""

    def __init__(
        self,
        runtime: Runtime,
        bookie_id: BookieId,
        resolve: Resolver,
        settings: RemoteSettings | None = None,
        *,
        tls: SSLContext | None = None,
        secret: ClusterSecret | None = None,
    ) -> None:
        self.bookie_id = bookie_id
        self._runtime = runtime
        self._clock = runtime.clock
        self._resolve = resolve
        self._settings = settings or RemoteSettings()
        self._tls = tls
        self._secret = secret
        self._tasks = TaskScope(f"remote bookie {bookie_id}")
        self._link: BookieLink | None = None
        self._closed = False
        self._last_request_id = 0
        self._pending: dict[int, _Pending] = {}
        self._pending_bytes = 0
        self._failures = 0
        self._retry_at = 0.0
        self._timer: Timer | None = None
        self._timer_due = 0.0
        self._pinged_at: float | None = None

    # --- the bookie's verbs ------------------------------------------------------------------------------

    def add(
        self, ledger_id: LedgerId, entries: Sequence[tuple[EntryId, Buffer]], *, recovery: bool = False
    ) -> "asyncio.Future[None]":
        size = sum(len(data) for _, data in entries) + wire.ENTRIES_OVERHEAD_BYTES
        most = wire.MAX_FRAME_BYTES if self._link is None else self._link.max_frame_bytes
        if size > most:
            return _failed(BookieError(f"an add of {size} bytes; bookie {self.bookie_id} takes {most} at most"))
        return self._ask(
            lambda request_id: wire.encode_add(request_id, ledger_id, entries, recovery=recovery),
            wire.Done,
            size=size,
        )

    async def read(self, ledger_id: LedgerId, first: EntryId, last: EntryId, *, max_bytes: int) -> ReadResult:
        most = min(max_bytes, wire.MAX_U32)
        answer = await self._ask(
            lambda request_id: [wire.encode_read(request_id, ledger_id, first, last, most)], wire.Entries
        )
        return self._checked(answer, ledger_id, first, last)

    async def poll(self, ledger_id: LedgerId, after: EntryId, *, timeout_s: float) -> ReadResult:
        timeout_ms = min(int(timeout_s * 1000), wire.MAX_U32)
        answer = await self._ask(
            lambda request_id: [wire.encode_poll(request_id, ledger_id, after, timeout_ms)],
            wire.Entries,
            patience_s=timeout_s,
        )
        return self._checked(answer, ledger_id, EntryId(after + 1), EntryId(after + 1))

    async def last_confirmed(self, ledger_id: LedgerId) -> EntryId:
        answer: wire.Confirmed = await self._ask(
            lambda request_id: [wire.encode_last_confirmed(request_id, ledger_id)], wire.Confirmed
        )
        return answer.last_confirmed

    def confirm(self, ledger_id: LedgerId, last_confirmed: EntryId) -> None:
        if self._link is not None and self._link.ready:  # a hint is not worth a connection
            self._link.send([wire.encode_confirm(ledger_id, last_confirmed)])

    async def fence(self, ledger_id: LedgerId) -> EntryId:
        answer: wire.Confirmed = await self._ask(
            lambda request_id: [wire.encode_fence(request_id, ledger_id)], wire.Confirmed
        )
        return answer.last_confirmed

    async def delete(self, ledger_id: LedgerId) -> None:
        await self._ask(lambda request_id: [wire.encode_delete(request_id, ledger_id)], wire.Done)

    # --- its life ----------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nobody waits for an answer."""
        return not self._pending

    def disconnect(self) -> None:
        """Drop the connection; the next request makes a new one."""
        if self._link is not None:
            self._link.end("the connection was dropped")

    async def close(self) -> None:
        """Fail what is in flight, and refuse what comes."""
        self._closed = True
        self.disconnect()
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()

    # --- asking ------------------------------------------------------------------------------------------

    def _ask(
        self,
        encode: Callable[[int], Sequence[Buffer]],
        expects: type[wire.Response],
        *,
        size: int = 0,
        patience_s: float = 0.0,
    ) -> "asyncio.Future[Any]":
        refusal = self._refusal(size)
        if refusal is not None:
            return _failed(refusal)
        link = self._link or self._connect()
        self._last_request_id += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        deadline = self._clock.monotonic() + self._settings.request_timeout_s + patience_s
        self._pending[self._last_request_id] = _Pending(answer, expects, deadline, size)
        self._pending_bytes += size
        link.send(encode(self._last_request_id))
        self._arm(self._settings.tick_s)
        return answer

    def _refusal(self, size: int) -> BookieError | None:
        waiting, settings = len(self._pending), self._settings
        if self._closed:
            return BookieUnavailableError(f"the handle on bookie {self.bookie_id} is closed")
        if waiting >= settings.max_requests or (waiting and self._pending_bytes + size > settings.max_bytes):
            return BookieBusyError(f"{waiting} requests wait for bookie {self.bookie_id} already")
        if self._link is None and self._clock.monotonic() < self._retry_at:
            return BookieUnavailableError(f"bookie {self.bookie_id} could not be reached just now")
        return None

    def _connect(self) -> BookieLink:
        link = BookieLink(
            self._runtime,
            self.bookie_id,
            on_response=self._on_response,
            on_ended=self._on_ended,
            secret=self._secret,
        )
        self._link = link
        self._pinged_at = None
        self._tasks.spawn(link.run(self._dial, timeout_s=self._settings.connect_timeout_s), "connection")
        return link

    async def _dial(self) -> Connection:
        info = self._resolve(self.bookie_id)
        if info is None:
            raise BookieUnavailableError("it is not registered")
        timeout_s = self._settings.connect_timeout_s
        return await self._runtime.net.connect(info.host, info.port, timeout_s=timeout_s, tls=self._tls)

    def _on_ended(self, link: BookieLink, error: BookieUnavailableError) -> None:
        """Every request in flight fails, and the next attempt waits a little."""
        settings = self._settings
        if link is not self._link:
            return
        self._link = None
        pause_s = min(settings.first_backoff_s * 2**self._failures, settings.max_backoff_s)
        self._retry_at = self._clock.monotonic() + pause_s * self._runtime.rng.uniform(0.5, 1.0)
        log.log(logging.DEBUG if self._failures or self._closed else logging.WARNING, "%s", error)
        self._failures = min(self._failures + 1, _MAX_DOUBLINGS)
        for request_id in list(self._pending):
            self._fail(request_id, error)

    # --- answers -----------------------------------------------------------------------------------------

    def _on_response(self, response: wire.Response) -> None:
        self._failures = 0
        self._pinged_at = None
        if isinstance(response, wire.Done):
            for request_id in response.request_ids:
                self._settle(request_id, response, None)
        elif isinstance(response, wire.Failed):
            self._fail(response.request_id, _as_bookie_error(error_from(response)))
        else:
            self._settle(response.request_id, response, response)

    def _settle(self, request_id: int, response: wire.Response, result: object) -> None:
        pending = self._pending.get(request_id)
        if pending is None:
            return  # it timed out here before
        if type(response) is not pending.expects:
            raise WireError(f"a {pending.expects.__name__} was expected, a {type(response).__name__} came")
        del self._pending[request_id]
        self._pending_bytes -= pending.size
        if not pending.answer.done():
            pending.answer.set_result(result)

    def _fail(self, request_id: int, error: BookieError) -> None:
        pending = self._pending.pop(request_id, None)
        if pending is not None:
            self._pending_bytes -= pending.size
            if not pending.answer.done():
                pending.answer.set_exception(error)
                pending.answer.exception()  # whoever asked may have gone; the loop need not complain

    def _checked(self, answer: wire.Entries, ledger_id: LedgerId, first: EntryId, last: EntryId) -> ReadResult:
        """The answer, if it answers what was asked; whether its entries are whole is for the reader to check."""
        if answer.ledger_id != ledger_id or any(not first <= entry_id <= last for entry_id, _ in answer.entries):
            raise BookieError(f"bookie {self.bookie_id} answered with entries that were not asked for")
        return ReadResult([*answer.entries], answer.last_confirmed)

    # --- time --------------------------------------------------------------------------------------------

    def _arm(self, delay_s: float) -> None:
        """Have `_tick` called no later than this."""
        due = self._clock.monotonic() + delay_s
        if self._timer is None or due < self._timer_due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due = due
            self._timer = self._clock.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        overdue = [request_id for request_id, pending in self._pending.items() if pending.deadline <= now]
        for request_id in overdue:
            self._fail(request_id, BookieUnavailableError(f"bookie {self.bookie_id} did not answer in time"))
        if self._link is not None and self._link.ready:
            self._keep_alive(self._link, now)
        if self._pending:
            self._arm(self._settings.tick_s)

    def _keep_alive(self, link: BookieLink, now: float) -> None:
        settings = self._settings
        if self._pinged_at is not None:
            if now - self._pinged_at >= settings.ping_timeout_s:
                link.end("it is silent, and did not answer a ping")
                return
        elif now - link.heard_at >= settings.ping_interval_s:
            self._pinged_at = now
            self._ask(lambda request_id: [wire.encode_ping(request_id)], wire.Done)
        self._arm(settings.ping_interval_s)


def _as_bookie_error(error: WeirError) -> BookieError:
    return error if isinstance(error, BookieError) else BookieError(error.what, hint=error.hint)


def _failed(error: BookieError) -> "asyncio.Future[Any]":
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    future.exception()
    return future


class RemoteBookiePool:
    """One handle per bookie. A bookie of this process is called directly. One that is no longer registered, and
    owes nobody an answer, loses its connection; handles on it stay good, should it come back."""

    def __init__(
        self,
        runtime: Runtime,
        resolve: Resolver,
        settings: RemoteSettings | None = None,
        *,
        tls: SSLContext | None = None,
        secret: ClusterSecret | None = None,
    ) -> None:
        self._runtime = runtime
        self._resolve = resolve
        self._settings = settings or RemoteSettings()
        self._tls = tls
        self._secret = secret
        self._local: dict[BookieId, Bookie] = {}
        self._remote: dict[BookieId, RemoteBookie] = {}
        self._timer: Timer | None = None

    def add_local(self, bookie_id: BookieId, bookie: Bookie) -> None:
        """Call this bookie directly from now on."""
        self._local[bookie_id] = bookie

    def remove_local(self, bookie_id: BookieId) -> None:
        self._local.pop(bookie_id, None)

    def get(self, bookie_id: BookieId) -> Bookie:
        local = self._local.get(bookie_id)
        if local is not None:
            return local
        remote = self._remote.get(bookie_id)
        if remote is None:
            remote = RemoteBookie(
                self._runtime, bookie_id, self._resolve, self._settings, tls=self._tls, secret=self._secret
            )
            self._remote[bookie_id] = remote
        if self._timer is None:
            self._timer = self._runtime.clock.call_later(self._settings.evict_interval_s, self._evict)
        return remote

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        remotes, self._remote = list(self._remote.values()), {}
        for remote in remotes:
            await remote.close()

    def _evict(self) -> None:
        self._timer = None
        for bookie_id, remote in list(self._remote.items()):
            if remote.idle and self._resolve(bookie_id) is None:
                remote.disconnect()
                del self._remote[bookie_id]
        if self._remote:
            self._timer = self._runtime.clock.call_later(self._settings.evict_interval_s, self._evict)
