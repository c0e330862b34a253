"""Client for calls to other brokers: a pool with one connection per broker.

A connection is opened on demand, and queues requests until it is ready. When it breaks, its pending requests fail
with PeerUnavailableError, which records whether the other broker may have received the request. The client sends
no request twice.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from weir.broker.peers.peer_calls import (
    LISTENER,
    PURPOSE,
    PeerClientSettings,
    PeerCredentials,
    PeerHandlers,
    PeerMetrics,
)
from weir.model.errors import PeerBusyError, PeerError, PeerUnavailableError, WeirError, WireError
from weir.model.registry import BrokerInfo
from weir.runtime.interfaces import Runtime
from weir.runtime.node_link import LinkWords, NodeLink
from weir.runtime.tasks import TaskScope
from weir.wire.node.proof import ClusterSecret
from weir.wire.peer import protocol
from weir.wire.peer import protocol as messages
from weir.wire.peer.call_table import call_of, decode_answer_value
from weir.wire.peer.calls import Ping
from weir.wire.peer.protocol import (
    MAX_HELLO_BYTES,
    VERSION,
    A,
    Call,
    Hello,
    PeerRequest,
    decode_failure,
    decode_welcome,
    encode_hello,
    encode_value,
)

_WORDS = LinkWords(PURPOSE, MAX_HELLO_BYTES, messages.MAX_FRAME_BYTES)


class PeerLink(NodeLink[messages.Response]):
    """A connection to another broker. `on_ended` is called once, whatever the reason."""

    def __init__(
        self,
        runtime: Runtime,
        hello: Hello,
        *,
        secret: ClusterSecret | None,
        on_response: Callable[[messages.Response], None],
        on_ended: Callable[["PeerLink", PeerUnavailableError], None],
    ) -> None:
        super().__init__(runtime, hello.meant, _WORDS, secret=secret, on_response=on_response)
        self._said = hello
        self._on_ended = on_ended

    def _hello(self) -> bytes:
        return encode_hello(self._said)

    def _read_welcome(self, body: memoryview) -> int:
        welcome = decode_welcome(body)
        if isinstance(welcome, messages.Failed):
            raise decode_failure(welcome.value)
        if welcome.version != VERSION or welcome.broker_id != self._node:
            raise WireError(f"broker {welcome.broker_id} answered with protocol version {welcome.version}")
        return welcome.max_frame_bytes

    def _read_response(self, body: memoryview) -> messages.Response:
        response = messages.decode_response(body)
        if response.request_id == 0:
            raise decode_failure(response.value)
        return response

    def _tell_ended(self, why: str, *, sent: bool) -> None:
        self._on_ended(self, PeerUnavailableError(f"broker {self._node} cannot be reached: {why}", sent=sent))


log = logging.getLogger(__name__)

_MAX_DOUBLINGS = 16
_MAX_MS = 2**32 - 1


class _Pending:
    """A request without an answer so far."""

    __slots__ = ("answer", "call", "size")

    def __init__(self, answer: "asyncio.Future[Any]", call: Call[Any], size: int) -> None:
        self.answer = answer
        self.call = call
        self.size = size


class PeerClient:
    """A client of one broker. It connects on demand, and reconnects after the broker was away."""

    def __init__(
        self,
        runtime: Runtime,
        asker: str,
        broker_id: str,
        *,
        find: Callable[[], BrokerInfo | None],
        settings: PeerClientSettings,
        credentials: PeerCredentials,
    ) -> None:
        """`find`: returns the broker's present registration, if any."""
        self._runtime = runtime
        self._clock = runtime.clock
        self._asker = asker
        self._broker_id = broker_id
        self._find = find
        self._settings = settings
        self._credentials = credentials
        self._tasks = TaskScope(f"peer {broker_id}")
        self._link: PeerLink | None = None
        self._closed = False
        self._last_request_id = 0
        self._pending: dict[int, _Pending] = {}
        self._pending_bytes = 0
        self._asked_at = 0.0
        self._failures = 0
        self._retry_at = 0.0
        self._last_end = ""

    @property
    def pending(self) -> int:
        """The number of requests without an answer."""
        return len(self._pending)

    @property
    def connected(self) -> bool:
        return self._link is not None

    async def ask(self, request: PeerRequest[A], timeout_s: float | None = None) -> A:
        """See `PeerCalls.ask`."""
        self._asked_at = self._clock.monotonic()
        return await self._ask(request, self._settings.request_timeout_s if timeout_s is None else timeout_s)

    async def close(self) -> None:
        """Fail pending requests, and refuse new ones."""
        self._closed = True
        if self._link is not None:
            self._link.end("this broker stops")
        await self._tasks.close()

    # --- requests ------------------------------------------------------------------------------------------------

    async def _ask(self, request: PeerRequest[A], timeout_s: float) -> A:
        call, value = call_of(request), encode_value(request)
        link = self._usable(len(value))
        self._last_request_id += 1
        request_id, size = self._last_request_id, len(value)
        pending = _Pending(asyncio.get_running_loop().create_future(), call, size)
        self._pending[request_id] = pending
        self._pending_bytes += size
        link.send([protocol.encode_request(request_id, call.number, min(int(timeout_s * 1000), _MAX_MS), value)])
        try:
            async with asyncio.timeout(timeout_s):
                answer: A = await pending.answer
        except TimeoutError:
            # If the link was never ready, the request was not sent.
            raise PeerUnavailableError(
                f"broker {self._broker_id} did not answer {call.name} in time", sent=link.ready
            ) from None
        finally:
            if self._pending.pop(request_id, None) is not None:
                self._pending_bytes -= size
        return answer

    def _usable(self, size: int) -> PeerLink:
        """Return the connection, opened if necessary. Raises a PeerError if it cannot send a request of that
        size."""
        waiting, settings = len(self._pending), self._settings
        if self._closed:
            raise PeerUnavailableError(
                f"this broker is stopping and sends no requests to broker {self._broker_id}", sent=False
            )
        if waiting >= settings.max_requests or (waiting and self._pending_bytes + size > settings.max_bytes):
            raise PeerBusyError(f"{waiting} requests are already pending for broker {self._broker_id}")
        most = protocol.MAX_FRAME_BYTES if self._link is None else self._link.max_frame_bytes
        if size + protocol.OVERHEAD_BYTES > most:
            raise PeerError(f"request of {size} bytes exceeds the limit of broker {self._broker_id}, {most} bytes")
        return self._link or self._connect()

    def _connect(self) -> PeerLink:
        if self._clock.monotonic() < self._retry_at:
            raise PeerUnavailableError(f"{self._last_end}; the next attempt is not due yet", sent=False)
        address = self._address()
        link = PeerLink(
            self._runtime,
            Hello(self._asker, self._broker_id),
            secret=self._credentials.secret,
            on_response=self._on_response,
            on_ended=self._on_ended,
        )
        self._link = link
        timeout_s, tls = self._settings.connect_timeout_s, self._credentials.client_tls
        dial = partial(self._runtime.net.connect, *address, timeout_s=timeout_s, tls=tls)
        self._tasks.spawn(link.run(dial, timeout_s=timeout_s), "connection")
        self._tasks.spawn(self._watch(link, address), "watch")
        return link

    def _address(self) -> tuple[str, int]:
        info = self._find()
        host, _, port = (info.listeners.get(LISTENER, "") if info is not None else "").rpartition(":")
        if not host or not port.isdigit():
            known = "is not registered" if info is None else "has no listener for other brokers"
            raise PeerUnavailableError(f"broker {self._broker_id} {known}", sent=False)
        return host.removeprefix("[").removesuffix("]"), int(port)

    def _on_ended(self, link: PeerLink, error: PeerUnavailableError) -> None:
        """Fail all pending requests, and schedule the next attempt."""
        if link is not self._link:
            return
        settings = self._settings
        self._link, self._last_end = None, error.what
        pause_s = min(settings.first_backoff_s * 2**self._failures, settings.max_backoff_s)
        self._retry_at = self._clock.monotonic() + pause_s * self._runtime.rng.uniform(0.5, 1.0)
        log.log(logging.DEBUG if self._failures or self._closed else logging.WARNING, "%s", error)
        self._failures = min(self._failures + 1, _MAX_DOUBLINGS)
        for request_id in list(self._pending):
            self._settle(request_id, error)

    # --- answers -------------------------------------------------------------------------------------------------

    def _on_response(self, response: protocol.Response) -> None:
        self._failures = 0
        if isinstance(response, protocol.Failed):
            self._settle(response.request_id, decode_failure(response.value))
        elif (pending := self._pending.get(response.request_id)) is not None:
            answer = decode_answer_value(pending.call, response.value)
            self._settle(response.request_id, None, answer)

    def _settle(self, request_id: int, error: WeirError | None, answer: object = None) -> None:
        pending = self._pending.pop(request_id, None)
        if pending is None:
            return  # timed out on this side already
        self._pending_bytes -= pending.size
        if pending.answer.done():
            return
        if error is None:
            pending.answer.set_result(answer)
        else:
            pending.answer.set_exception(error)
            pending.answer.exception()  # mark it as retrieved: the caller may be gone

    # --- keep-alive ----------------------------------------------------------------------------------------------

    async def _watch(self, link: PeerLink, address: tuple[str, int]) -> None:
        """Close a connection that is silent or idle, or whose broker has registered another address."""
        settings = self._settings
        while link is self._link:
            await self._clock.sleep(settings.ping_interval_s)
            now = self._clock.monotonic()
            if link is not self._link:
                return
            if not self._pending and (now - self._asked_at > settings.idle_s or not self._still_at(address)):
                link.end("it is no longer needed")
            elif link.ready and now - link.heard_at >= settings.ping_interval_s:
                try:
                    await self._ask(Ping(), settings.ping_timeout_s)
                except PeerUnavailableError:
                    link.end("it is silent, and did not answer a ping")
                except PeerError as busy:
                    log.debug("ping of broker %s was not sent: %s", self._broker_id, busy)

    def _still_at(self, address: tuple[str, int]) -> bool:
        try:
            return self._address() == address
        except PeerUnavailableError:
            return False


class PeerPool:
    """Fills `PeerCalls`. Finds brokers by their registration; requests to this broker are direct calls."""

    def __init__(
        self,
        runtime: Runtime,
        broker_id: str,
        handlers: PeerHandlers,
        brokers: Callable[[], Iterable[BrokerInfo]],
        *,
        settings: PeerClientSettings | None = None,
        credentials: PeerCredentials | None = None,
        metrics: PeerMetrics | None = None,
    ) -> None:
        """`handlers`: the handlers of this broker, for requests to itself; `brokers`: returns the registered
        brokers."""
        self._runtime = runtime
        self._broker_id = broker_id
        self._handlers = handlers
        self._brokers = brokers
        self._settings = settings or PeerClientSettings()
        self._credentials = credentials or PeerCredentials()
        self._metrics = metrics or PeerMetrics()
        self._clients: dict[str, PeerClient] = {}
        self._closed = False

    @property
    def connections(self) -> int:
        return sum(client.connected for client in self._clients.values())

    async def ask(self, broker_id: str, request: PeerRequest[A], *, timeout_s: float | None = None) -> A:
        if broker_id == self._broker_id:
            return await self._handlers.handle(request)
        with self._metrics.asked.timing(call_of(request).name, self._runtime.clock):
            return await self._client(broker_id).ask(request, timeout_s)

    async def close(self) -> None:
        """Fail pending requests, and refuse new ones."""
        self._closed = True
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.close()

    def _client(self, broker_id: str) -> PeerClient:
        client = self._clients.get(broker_id)
        if client is not None:
            return client
        if self._closed or self._find(broker_id) is None:
            # Without this check any name would create a client.
            raise PeerUnavailableError(
                f"broker {broker_id} is not registered, or this broker is stopping", sent=False
            )
        self._drop_unregistered()
        client = self._clients[broker_id] = PeerClient(
            self._runtime,
            self._broker_id,
            broker_id,
            find=lambda: self._find(broker_id),
            settings=self._settings,
            credentials=self._credentials,
        )
        return client

    def _find(self, broker_id: str) -> BrokerInfo | None:
        return next((broker for broker in self._brokers() if broker.broker_id == broker_id), None)

    def _drop_unregistered(self) -> None:
        """Drop disconnected clients of brokers that are not registered any more."""
        live = {broker.broker_id for broker in self._brokers()}
        for broker_id, client in list(self._clients.items()):
            if broker_id not in live and not client.connected and not client.pending:
                del self._clients[broker_id]
