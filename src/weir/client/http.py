"""HTTP/1.1 requests over `runtime.net`, with h11: one connection that is kept between requests."""

import asyncio
from dataclasses import dataclass, field

import h11

from weir.client.addresses import ServerUrl
from weir.client.settings import ClientSettings
from weir.model.errors import ConnectFailedError, ConnectionLostError, FrameTooLargeError, WireError
from weir.runtime.interfaces import Connection, Network

_MAX_BODY_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class _Wire:
    raw: Connection
    http: h11.Connection = field(default_factory=lambda: h11.Connection(h11.CLIENT))
    used: bool = False


class HttpClient:
    """One request at a time."""

    def __init__(self, net: Network, url: ServerUrl, settings: ClientSettings) -> None:
        self._net = net
        self._url = url
        self._settings = settings
        self._wire: _Wire | None = None

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, content_type: str = "application/json"
    ) -> Answer:
        """Ask, and wait for the whole answer."""
        headers = [("Host", self._url.authority), ("Accept", "*/*"), ("User-Agent", "Weir")]
        if self._settings.token is not None:
            headers.append(("Authorization", f"Bearer {self._settings.token}"))
        if body is not None:
            headers += [("Content-Type", content_type), ("Content-Length", str(len(body)))]
        elif method in ("POST", "PUT"):
            headers.append(("Content-Length", "0"))
        request = h11.Request(method=method, target=target, headers=headers)
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                return await self._exchange(request, body or b"")
        except TimeoutError:
            self._drop()
            raise ConnectionLostError(f"{self._url} did not answer {method} {target}") from None
        except BaseException:
            self._drop()
            raise

    def close(self) -> None:
        self._drop()

    async def _exchange(self, request: h11.Request, body: bytes) -> Answer:
        wire = await self._connected()
        again = wire.used
        try:
            return await self._ask(wire, request, body)
        except ConnectionLostError:
            # A kept connection may have been closed while it was idle; a fresh one is worth one try, for requests
            # that can be repeated.
            if not again or request.method not in (b"GET", b"HEAD"):
                raise
        self._drop()
        return await self._ask(await self._connected(), request, body)

    async def _connected(self) -> _Wire:
        if self._wire is None:
            url, settings = self._url, self._settings
            if url.secure and settings.tls is None:
                raise ConnectFailedError(f"{url} wants TLS", hint="give the CA of the server with --ca")
            tls = settings.tls if url.secure else None
            self._wire = _Wire(
                await self._net.connect(url.host, url.port, timeout_s=settings.connect_timeout_s, tls=tls)
            )
        return self._wire

    async def _ask(self, wire: _Wire, request: h11.Request, body: bytes) -> Answer:
        wire.used = True
        events = (request, h11.Data(data=body), h11.EndOfMessage())
        wire.raw.write([b"".join(wire.http.send(event) or b"" for event in events)])
        await wire.raw.drain()
        head: h11.Response | None = None
        parts: list[bytes] = []
        size = 0
        while True:
            event = await self._next(wire)
            if isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
                size += len(event.data)
                if size > _MAX_BODY_BYTES:
                    raise FrameTooLargeError(f"{self._url} answered with more than {_MAX_BODY_BYTES} bytes")
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                break
            elif not isinstance(event, h11.InformationalResponse):
                raise ConnectionLostError(f"{self._url} closed the connection")
        self._settle(wire)
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in head.headers}
        return Answer(head.status_code, headers, b"".join(parts))

    async def _next(self, wire: _Wire) -> object:
        ended = False
        try:
            while (event := wire.http.next_event()) is h11.NEED_DATA:
                received = bytes(await wire.raw.receive())
                ended = not received
                wire.http.receive_data(received)
        except h11.RemoteProtocolError as wrong:
            if ended:  # an end amid an answer is not bad grammar
                raise ConnectionLostError(f"{self._url} closed the connection") from wrong
            raise WireError(f"{self._url} does not speak HTTP as we do: {wrong}") from wrong
        return event

    def _settle(self, wire: _Wire) -> None:
        """Keep the connection if both sides can go on."""
        if wire.http.our_state is h11.DONE and wire.http.their_state is h11.DONE:
            wire.http.start_next_cycle()
        else:
            self._drop()

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.raw.close()
            self._wire = None
