"""A small Kafka client for simulations: one connection, requests in flight on it, answers in their order."""

import asyncio
from collections import deque
from typing import Any, Protocol

from weir.gateway.kafka.errors import Code
from weir.model.errors import ConnectionLostError, WeirError
from weir.runtime.interfaces import Connection, Runtime
from weir.runtime.tasks import TaskScope
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.codec import decode_response
from weir.wire.kafka.frames import RequestHeader, decode_response_header, request_frame, splitter

PORT = 9092
_CONNECT_S = 1.0


class KafkaRefusedError(WeirError):
    """The broker answered with an error code."""

    def __init__(self, code: int) -> None:
        self.code = Code(code)
        super().__init__(f"the broker says {self.code.name}")


class StandstillError(WeirError):
    """What should be so soon is not so yet."""


def check_code(code: int) -> None:
    if code:
        raise KafkaRefusedError(code)


class Link(Protocol):
    """Where a client's requests go: one broker, or whichever has what is asked for."""

    @property
    def host(self) -> str:
        """The broker that answered last."""

    @property
    def alive(self) -> bool: ...

    async def close(self) -> None: ...

    async def prepare(self) -> None:
        """Know whom to ask, and be connected, before a request is sent by `ask`. ConnectionLostError."""

    def ask(self, key: ApiKey, version: int, request: m.Message) -> "asyncio.Future[Any]":
        """Send a request; the future has its answer, or ConnectionLostError."""

    async def call(self, key: ApiKey, version: int, request: m.Message, *, timeout_s: float = 2.0) -> Any:
        """Send a request, and wait for its answer."""

    async def within(self, timeout_s: float, answer: "asyncio.Future[Any]") -> Any:
        """The answer, if it comes in time; if not, the connection is given up."""


class KafkaLink:
    """A connection to one broker. Once anything fails, all that is under way does, and it is of no more use."""

    def __init__(self, runtime: Runtime, name: str, connection: Connection, host: str) -> None:
        self.host = host
        self._clock = runtime.clock
        self._name = name
        self._connection = connection
        self._asked: deque[tuple[int, int, int, asyncio.Future[Any]]] = deque()
        self._count = 0
        self._lost: WeirError | None = None
        self._tasks = TaskScope(f"link of {name}")
        self._tasks.spawn(self._listen(), "listen")

    @classmethod
    async def open(cls, runtime: Runtime, name: str, host: str) -> "KafkaLink":
        return cls(runtime, name, await runtime.net.connect(host, PORT, timeout_s=_CONNECT_S), host)

    @property
    def alive(self) -> bool:
        return self._lost is None

    async def close(self) -> None:
        self._fail(ConnectionLostError("closed by its client"))
        await self._tasks.close()

    async def prepare(self) -> None:
        """There is one broker to ask."""

    def ask(self, key: ApiKey, version: int, request: m.Message) -> "asyncio.Future[Any]":
        """Send a request; the future has its answer, or ConnectionLostError."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._lost is not None:
            answer.set_exception(self._lost)
            return answer
        self._count += 1
        self._asked.append((key, version, self._count, answer))
        self._connection.write(request_frame(RequestHeader(key, version, self._count, self._name), request))
        return answer

    async def call(self, key: ApiKey, version: int, request: m.Message, *, timeout_s: float = 2.0) -> Any:
        return await self.within(timeout_s, self.ask(key, version, request))

    async def within(self, timeout_s: float, answer: "asyncio.Future[Any]") -> Any:
        """The answer, if it comes in time; if not, the connection is given up."""
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            self._fail(ConnectionLostError("no answer came"))
            raise ConnectionLostError("no answer came") from None

    async def _listen(self) -> None:
        cut = splitter()
        try:
            while data := await self._connection.receive():
                for frame in cut.feed(bytes(data)):
                    self._heard(bytes(frame))
            self._fail(ConnectionLostError("the broker has hung up"))
        except WeirError as lost:
            self._fail(ConnectionLostError(f"the connection broke: {lost}"))

    def _heard(self, frame: bytes) -> None:
        key, version, number, answer = self._asked.popleft()
        header, body = decode_response_header(key, version, frame)
        if header.correlation_id != number:
            raise ConnectionLostError(f"an answer to {header.correlation_id} came instead of one to {number}")
        if not answer.done():
            answer.set_result(decode_response(key, version, body))

    def _fail(self, why: WeirError) -> None:
        if self._lost is not None:
            return
        self._lost = why
        self._connection.abort()
        for _, _, _, answer in self._asked:
            if not answer.done():
                answer.set_exception(why)
                answer.exception()  # it may be nobody's any more
        self._asked.clear()
