"""One connection to a served metadata store, from its making to its end; it never comes back."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from weir.model.errors import ConnectionLostError, NetworkError, WeirError, WireError
from weir.runtime import Connection, Runtime
from weir.runtime.proving import prove
from weir.wire.error_codes import Failed
from weir.wire.frames import FrameSplitter
from weir.wire.meta.hello import (
    MAX_HELLO_BYTES,
    PURPOSE,
    VERSION,
    Hello,
    decode_welcome,
    encode_hello,
)
from weir.wire.meta.kinds import CODES, MAX_FRAME_BYTES
from weir.wire.meta.requests import Request, encode_request
from weir.wire.meta.responses import Response, decode_response
from weir.wire.proof import NONCE_BYTES, ClusterSecret, ProvingClient


class Answer(Protocol):
    """What gathers the responses to one request."""

    def take(self, response: Response) -> bool:
        """Whether that was the last one."""

    def fail(self, why: WeirError) -> None: ...


class MetaLink:
    """A connection on which both ends have proved themselves. `run` in a task; made by `open`."""

    def __init__(self, connection: Connection, splitter: FrameSplitter, instance: int) -> None:
        self._connection = connection
        self._splitter = splitter
        #: The store's, since it was opened.
        self.instance = instance
        self._pending: dict[int, Answer] = {}
        self._last_id = 0
        self._ended: WeirError | None = None

    @staticmethod
    async def open(
        runtime: Runtime, host: str, port: int, *, secret: ClusterSecret | None, timeout_s: float
    ) -> "MetaLink":
        """Connect and shake hands; NetworkError if nobody is there, another WeirError if it is not to be."""
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
        """Ask; whoever asks bounds how much is asked at once. The id of the request."""
        self._last_id += 1
        request_id = self._last_id
        if self._ended is not None:
            answer.fail(self._ended)
            return request_id
        self._pending[request_id] = answer
        self._connection.write([encode_request(request(request_id))])
        return request_id

    def forget(self, request_id: int) -> None:
        """Nobody waits for this answer any more."""
        self._pending.pop(request_id, None)

    async def run(self) -> None:
        """Hand out responses until the end."""
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
        """Break the connection; what waits for an answer fails. Ending twice is fine."""
        if self._ended is None:
            self._ended = why
            self._connection.abort()
            pending, self._pending = self._pending, {}
            for answer in pending.values():
                answer.fail(why)

    def _on_response(self, response: Response) -> None:
        if isinstance(response, Failed) and response.request_id == 0:
            raise CODES.error(response)  # the store's last word
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
            raise NetworkError("the metadata store hung up instead of a welcome")
        bodies = list(splitter.feed(data))
    welcome = decode_welcome(bodies[0])
    if isinstance(welcome, Failed):
        raise CODES.error(welcome)
    if welcome.version != VERSION or len(bodies) > 1:
        raise WireError(f"the metadata store welcomes with version {welcome.version}")
    splitter.limit = MAX_FRAME_BYTES
    return MetaLink(connection, splitter, welcome.instance)
