"""One connection to a remote bookie, from its making to its end; it never comes back.

What is sent while it is being made waits; everything sent in one turn of the loop goes out in one write.
"""

import asyncio
from collections.abc import Callable, Sequence
from ssl import SSLContext

from weir.model.errors import BookieUnavailableError, NetworkError, WeirError, WireError
from weir.model.ids import BookieId, Buffer
from weir.runtime.interfaces import Connection, Runtime
from weir.runtime.proving import prove
from weir.wire import bookie as wire
from weir.wire.bookie_errors import error_from
from weir.wire.bookie_hello import (
    MAX_HELLO_BYTES,
    PURPOSE,
    VERSION,
    Hello,
    Welcome,
    decode_welcome,
    encode_hello,
)
from weir.wire.frames import FrameSplitter
from weir.wire.metadata import BookieInfo
from weir.wire.proof import NONCE_BYTES, ClusterSecret, ProvingClient

#: Where a bookie is, if anyone knows.
Resolver = Callable[[BookieId], BookieInfo | None]


class Link:
    """A connection with its hello done. `run` in a task; `on_ended` is called once, whatever ended it."""

    def __init__(
        self,
        runtime: Runtime,
        bookie_id: BookieId,
        *,
        on_response: Callable[[wire.Response], None],
        on_ended: Callable[["Link", BookieUnavailableError], None],
        secret: ClusterSecret | None = None,
    ) -> None:
        """`secret`: both sides prove that they know it before the hello."""
        self._secret = secret
        self._runtime = runtime
        self._bookie_id = bookie_id
        self._on_response = on_response
        self._on_ended = on_ended
        self._connection: Connection | None = None
        self._out: list[Buffer] = []
        self._flush_due = False
        self._ended = False
        #: Whether the bookie has welcomed this client.
        self.ready = False
        #: The longest frame that the bookie takes, as far as is known.
        self.max_frame_bytes = wire.MAX_FRAME_BYTES
        #: When the bookie was last heard.
        self.heard_at = runtime.clock.monotonic()

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Queue for sending. Unbounded here: the one who asks bounds the requests in flight."""
        self._out += buffers
        if self.ready and not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def end(self, why: str) -> None:
        """Break the connection, or never make it. Ending twice is fine."""
        if self._ended:
            return
        self._ended = True
        self.ready = False
        self._out = []
        if self._connection is not None:
            self._connection.abort()
        self._on_ended(self, BookieUnavailableError(f"bookie {self._bookie_id} is not reachable: {why}"))

    async def run(self, resolve: Resolver, *, timeout_s: float, tls: SSLContext | None) -> None:
        """Connect, then hand out responses until the end."""
        splitter = FrameSplitter(MAX_HELLO_BYTES)
        try:
            connection = await self._connect(resolve, timeout_s, tls)
            async with asyncio.timeout(timeout_s):
                welcome = await self._shake_hands(connection, splitter)
            self._welcomed(welcome)
            splitter.limit = wire.MAX_FRAME_BYTES
            await self._receive(connection, splitter)
        except TimeoutError:
            self.end("it did not welcome us in time")
        except WeirError as failure:
            self.end(str(failure))
        finally:
            self.end("this side stopped")

    async def _connect(self, resolve: Resolver, timeout_s: float, tls: SSLContext | None) -> Connection:
        info = resolve(self._bookie_id)
        if info is None:
            raise BookieUnavailableError("it is not registered")
        connection = await self._runtime.net.connect(info.host, info.port, timeout_s=timeout_s, tls=tls)
        if self._ended:
            connection.abort()
            raise NetworkError("no longer wanted")
        self._connection = connection
        return connection

    async def _shake_hands(self, connection: Connection, splitter: FrameSplitter) -> Welcome:
        if self._secret is not None:
            nonce = self._runtime.rng.randbytes(NONCE_BYTES)
            await prove(connection, splitter, ProvingClient(self._secret, PURPOSE, self._bookie_id, nonce))
        connection.write([encode_hello(Hello(self._bookie_id))])
        bodies: list[memoryview] = []
        while not bodies:
            data = await connection.receive()
            if not data:
                raise NetworkError("it hung up instead of a welcome; does the cluster have a secret?")
            bodies = list(splitter.feed(data))
        welcome = decode_welcome(bodies[0])
        if isinstance(welcome, wire.Failed):
            raise error_from(welcome)
        if welcome.version != VERSION or welcome.bookie_id != self._bookie_id or len(bodies) > 1:
            raise WireError(f"bookie {welcome.bookie_id} welcomes with protocol version {welcome.version}")
        return welcome

    def _welcomed(self, welcome: Welcome) -> None:
        self.max_frame_bytes = min(welcome.max_frame_bytes, wire.MAX_FRAME_BYTES)
        self.heard_at = self._runtime.clock.monotonic()
        self.ready = not self._ended
        self._flush()

    async def _receive(self, connection: Connection, splitter: FrameSplitter) -> None:
        while data := await connection.receive():
            self.heard_at = self._runtime.clock.monotonic()
            for body in splitter.feed(data):
                response = wire.decode_response(body)
                if isinstance(response, wire.Failed) and response.request_id == 0:
                    raise error_from(response)  # the bookie's last word
                self._on_response(response)
        raise NetworkError("it closed the connection")

    def _flush(self) -> None:
        self._flush_due = False
        if self._out and self.ready and self._connection is not None:
            buffers, self._out = self._out, []
            self._connection.write(buffers)
