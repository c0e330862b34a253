"""One connection to another node of the cluster, from connect to end; it is not reused.

The link queues output until the handshake is done; one write sends all output of one turn of the loop. `prove` is
the connecting side of a proof (`wire.proof`): it reads nothing else from the other side before that side has
proved itself.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from weir.model.errors import NetworkError, WeirError, WireError
from weir.model.ids import Buffer
from weir.runtime.interfaces import Connection, Runtime
from weir.wire.node.frames import FrameSplitter
from weir.wire.node.proof import NONCE_BYTES, ClusterSecret, ProvingClient

_HINT = "have both the same cluster.secret?"


async def prove(connection: Connection, splitter: FrameSplitter, proving: ProvingClient) -> None:
    """Prove that this side knows the secret, and verify that the other side does; the caller sets the time limit.
    Raises NotAuthenticatedError, WireError or NetworkError; the connection is then unusable."""
    connection.write([proving.begin()])
    while not proving.known:
        try:
            data = await connection.receive()
        except NetworkError as lost:
            raise NetworkError(f"it closed the connection during the proof: {lost.what}", hint=_HINT) from lost
        if not data:
            raise NetworkError("it closed the connection during the proof", hint=_HINT)
        for body in splitter.feed(data):
            if proving.known:
                raise WireError("unexpected data after the proof")
            reply = proving.receive(body)
            if reply is not None:
                connection.write([reply])


ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True, slots=True)
class LinkWords:
    """Constants that two kinds of nodes agree on. `purpose`: the scope of a proof between them."""

    purpose: str
    max_hello_bytes: int
    max_frame_bytes: int


class NodeLink(ABC, Generic[ResponseT]):
    """A connection with proof and hello done; each kind says what these are. `run` it in a task."""

    def __init__(
        self,
        runtime: Runtime,
        node: str,
        words: LinkWords,
        *,
        secret: ClusterSecret | None,
        on_response: Callable[[ResponseT], None],
    ) -> None:
        """`secret`: both sides prove that they know it before the hello."""
        self._runtime = runtime
        self._node = node
        self._words = words
        self._secret = secret
        self._on_response = on_response
        self._connection: Connection | None = None
        self._out: list[Buffer] = []
        self._flush_due = False
        self._ended = False
        #: Whether the other node has welcomed this one; before, it has heard of no request.
        self.ready = False
        #: The longest frame that the other node takes, as far as is known.
        self.max_frame_bytes = words.max_frame_bytes
        #: When the other node was last heard.
        self.heard_at = runtime.clock.monotonic()

    @abstractmethod
    def _hello(self) -> bytes: ...

    @abstractmethod
    def _read_welcome(self, body: memoryview) -> int:
        """The longest frame that the other node accepts; raises WireError, or the error it sent in place of a
        welcome."""

    @abstractmethod
    def _read_response(self, body: memoryview) -> ResponseT:
        """WireError, or the other node's last word."""

    @abstractmethod
    def _tell_ended(self, why: str, *, sent: bool) -> None:
        """Called once, whatever ended it. `sent`: whether the other node may have heard of requests."""

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Queue for sending. Unbounded here: callers bound their requests in progress."""
        self._out += buffers
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
        self._tell_ended(why, sent=sent)

    async def run(self, connect: Callable[[], Awaitable[Connection]], *, timeout_s: float) -> None:
        """Connect, then hand out responses until the end. `timeout_s`: for the other node's welcome."""
        splitter = FrameSplitter(self._words.max_hello_bytes)
        try:
            connection = await self._connect(connect)
            async with asyncio.timeout(timeout_s):
                most = await self._shake_hands(connection, splitter)
            self._welcomed(most)
            splitter.limit = self._words.max_frame_bytes
            await self._receive(connection, splitter)
        except TimeoutError:
            self.end("it did not welcome us in time")
        except WeirError as failure:
            self.end(str(failure))
        finally:
            self.end("this side stopped")

    async def _connect(self, connect: Callable[[], Awaitable[Connection]]) -> Connection:
        connection = await connect()
        if self._ended:
            connection.abort()
            raise NetworkError("no longer wanted")
        self._connection = connection
        return connection

    async def _shake_hands(self, connection: Connection, splitter: FrameSplitter) -> int:
        if self._secret is not None:
            nonce = self._runtime.rng.randbytes(NONCE_BYTES)
            await prove(connection, splitter, ProvingClient(self._secret, self._words.purpose, self._node, nonce))
        connection.write([self._hello()])
        bodies: list[memoryview] = []
        while not bodies:
            data = await connection.receive()
            if not data:
                raise NetworkError("it hung up instead of a welcome; does the cluster have a secret?")
            bodies = list(splitter.feed(data))
        most = self._read_welcome(bodies[0])
        if len(bodies) > 1:
            raise NetworkError("unexpected data after the welcome")
        return most

    def _welcomed(self, most: int) -> None:
        self.max_frame_bytes = min(most, self._words.max_frame_bytes)
        self.heard_at = self._runtime.clock.monotonic()
        self.ready = not self._ended
        self._flush()

    async def _receive(self, connection: Connection, splitter: FrameSplitter) -> None:
        while data := await connection.receive():
            self.heard_at = self._runtime.clock.monotonic()
            for body in splitter.feed(data):
                self._on_response(self._read_response(body))
        raise NetworkError("it closed the connection")

    def _flush(self) -> None:
        self._flush_due = False
        if self._out and self.ready and self._connection is not None:
            buffers, self._out = self._out, []
            self._connection.write(buffers)
