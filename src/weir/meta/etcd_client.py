"""Requests to an etcd cluster: endpoints in turn, time-outs, and what is known when there was no answer."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from ssl import SSLContext
from typing import TypeVar

from weir.meta.interfaces import Listing, Versioned
from weir.model.errors import (
    ConnectFailedError,
    FrameTooLargeError,
    MetaError,
    MetaUnavailableError,
    NetworkError,
    WeirError,
    WireError,
)
from weir.runtime import Runtime
from weir.runtime.http_client import HttpConnection, HttpEndpoint
from weir.wire import etcd as wire
from weir.wire.etcd import Failure, RangeAnswer

T = TypeVar("T")

_HTTP_OK = 200
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """Where the cluster is, and how patient to be with it."""

    endpoints: tuple[tuple[str, int], ...]
    tls: SSLContext | None = None
    connect_timeout_s: float = 2.0
    #: For each endpoint that is tried.
    request_timeout_s: float = 5.0
    #: Keys per request of a long listing.
    list_page: int = 1000
    #: Operations of one request that makes many keys; etcd itself takes 128, each in turn with those inside it.
    create_page: int = 100
    #: A watch that heard nothing for so long asks anew: a connection may be dead without a sign.
    watch_renew_s: float = 60.0
    backoff_s: float = 0.02
    backoff_max_s: float = 1.0


class EtcdClient:
    """One client of the cluster. A request goes to the endpoint that last answered, then to the others."""

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
        """The decoded answer, or etcd's refusal. MetaUnavailableError if there is none; a request that is not
        `repeatable` is sent once at most, as it may have been carried out."""

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
        """Send a request whose answer is a stream; the connection is the caller's, until `end_stream`."""

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
        """Do `work` on a connection to one endpoint after the other, until one gives a final answer."""
        problem = "there are no endpoints"
        for endpoint in self._in_turn():
            try:
                connection = await endpoint.connect(timeout_s=self.settings.connect_timeout_s)
            except ConnectFailedError as failed:
                problem = failed.what  # nothing was sent, so any request may go to the next
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
                problem = f"{endpoint.address} says: {answer.message}"
            if not repeatable:
                break
        self._preferred += 1
        raise MetaUnavailableError(f"etcd did not answer: {problem}")

    def end_stream(self, connection: HttpConnection) -> None:
        self._streams.pop(connection, None)
        connection.close()

    async def list(self, prefix: str, *, revision: int = 0, keys_only: bool = False) -> Listing | Failure:
        """Everything under the prefix at one revision (0: the latest), page by page."""
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
            revision = revision or answer.revision  # later pages show the same moment
            items += [Versioned(kv.key, kv.value, kv.mod_revision) for kv in answer.items]
            if not answer.more or not answer.items:
                return Listing(items, revision)
            start = answer.items[-1].key + "\0"

    async def page(self, prefix: str, after: str, limit: int) -> RangeAnswer | Failure:
        """At most so many keys under the prefix that come after a key, as of now."""
        start = after + "\0" if after else None
        request = wire.list_request(prefix, start=start, limit=limit)
        return await self.ask(wire.PATH_RANGE, request, wire.decode_range, repeatable=True)

    async def back_off(self, failures: int) -> None:
        """Wait before another try, longer each time, but not longer than until `close`."""
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
    """Whether the cluster has decided, rather than failed to."""
    return failure.code in (wire.CODE_NOT_FOUND, wire.CODE_OUT_OF_RANGE) or failure.code in wire.REFUSALS


def refused(failure: Failure) -> MetaError:
    """The error for a refusal that no caller expects."""
    kind = wire.REFUSALS.get(failure.code, f"code {failure.code}")
    return MetaError(f"etcd refused ({kind}): {failure.message}")
