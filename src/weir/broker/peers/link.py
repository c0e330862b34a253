"""One connection to another broker, from its making to its end; it never comes back.

What is sent while it is being made waits; everything sent in one turn of the loop goes out in one write.
"""

import asyncio
from collections.abc import Callable

from weir.broker.peers.settings import PURPOSE, PeerCredentials
from weir.model.errors import NetworkError, PeerUnavailableError, WeirError, WireError
from weir.model.ids import Buffer
from weir.runtime.interfaces import Connection, Runtime
from weir.runtime.proving import prove
from weir.wire.frames import FrameSplitter
from weir.wire.peer import messages
from weir.wire.peer.errors import decode_failure
from weir.wire.peer.hello import MAX_HELLO_BYTES, VERSION, Hello, Welcome, decode_welcome, encode_hello
from weir.wire.proof import NONCE_BYTES, ProvingClient


class PeerLink:
    """A connection with proof and hello done. `run` in a task; `on_ended` is called once, whatever ended it."""

    def __init__(
        self,
        runtime: Runtime,
        hello: Hello,
        *,
        credentials: PeerCredentials,
        on_response: Callable[[messages.Response], None],
        on_ended: Callable[["PeerLink", PeerUnavailableError], None],
    ) -> None:
        self._runtime = runtime
        self._hello = hello
        self._credentials = credentials
        self._on_response = on_response
        self._on_ended = on_ended
        self._connection: Connection | None = None
        self._out: list[Buffer] = []
        self._flush_due = False
        self._ended = False
        #: Whether the other broker has welcomed this one; before, it has heard of no request.
        self.ready = False
        #: The longest frame that the other broker takes, as far as is known.
        self.max_frame_bytes = messages.MAX_FRAME_BYTES
        #: When the other broker was last heard.
        self.heard_at = runtime.clock.monotonic()

    def send(self, frame: bytes) -> None:
        """Queue for sending. Unbounded here: the one who asks bounds the requests under way."""
        self._out.append(frame)
        if self.ready and not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def end(self, why: str) -> None:
        """Break the connection, or never make it. Ending twice is fine."""
        if self._ended:
            return
        self._ended = True
        sent, self.ready = self.ready, False
        self._out = []
        if self._connection is not None:
            self._connection.abort()
        what = f"broker {self._hello.meant} cannot be reached: {why}"
        self._on_ended(self, PeerUnavailableError(what, sent=sent))

    async def run(self, host: str, port: int, *, timeout_s: float) -> None:
        """Connect, then hand out responses until the end."""
        splitter = FrameSplitter(MAX_HELLO_BYTES)
        try:
            connection = await self._connect(host, port, timeout_s)
            async with asyncio.timeout(timeout_s):
                welcome = await self._shake_hands(connection, splitter)
            self._welcomed(welcome)
            splitter.limit = messages.MAX_FRAME_BYTES
            await self._receive(connection, splitter)
        except TimeoutError:
            self.end("it did not welcome us in time")
        except WeirError as failure:
            self.end(str(failure))
        finally:
            self.end("this side stopped")

    async def _connect(self, host: str, port: int, timeout_s: float) -> Connection:
        tls = self._credentials.client_tls
        connection = await self._runtime.net.connect(host, port, timeout_s=timeout_s, tls=tls)
        if self._ended:
            connection.abort()
            raise NetworkError("no longer wanted")
        self._connection = connection
        return connection

    async def _shake_hands(self, connection: Connection, splitter: FrameSplitter) -> Welcome:
        secret = self._credentials.secret
        if secret is not None:
            nonce = self._runtime.rng.randbytes(NONCE_BYTES)
            await prove(connection, splitter, ProvingClient(secret, PURPOSE, self._hello.meant, nonce))
        connection.write([encode_hello(self._hello)])
        bodies: list[memoryview] = []
        while not bodies:
            data = await connection.receive()
            if not data:
                raise NetworkError("it hung up instead of a welcome; does the cluster have a secret?")
            bodies = list(splitter.feed(data))
        welcome = decode_welcome(bodies[0])
        if isinstance(welcome, messages.Failed):
            raise decode_failure(welcome.value)
        if welcome.version != VERSION or welcome.broker_id != self._hello.meant or len(bodies) > 1:
            raise WireError(f"broker {welcome.broker_id} welcomes with protocol version {welcome.version}")
        return welcome

    def _welcomed(self, welcome: Welcome) -> None:
        self.max_frame_bytes = min(welcome.max_frame_bytes, messages.MAX_FRAME_BYTES)
        self.heard_at = self._runtime.clock.monotonic()
        self.ready = not self._ended
        self._flush()

    async def _receive(self, connection: Connection, splitter: FrameSplitter) -> None:
        while data := await connection.receive():
            self.heard_at = self._runtime.clock.monotonic()
            for body in splitter.feed(data):
                response = messages.decode_response(body)
                if response.request_id == 0:
                    raise decode_failure(response.value)  # the other broker's last word
                self._on_response(response)
        raise NetworkError("it closed the connection")

    def _flush(self) -> None:
        self._flush_due = False
        if self._out and self.ready and self._connection is not None:
            buffers, self._out = self._out, []
            self._connection.write(buffers)
