"""One connection to a broker: the handshake, requests and their answers, and whom every other frame is for.

Producers and consumers attach themselves under an id; the connection hands them their frames, in the order in
which they came, from the one task that receives. When the connection is lost, everyone who waits is told why.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from weir.client.access import ClientSettings, ServerUrl, error_of
from weir.model.errors import (
    ConnectFailedError,
    ConnectionLostError,
    NetworkError,
    WeirError,
    WireError,
    WrongPortError,
)
from weir.model.ids import Buffer
from weir.runtime.interfaces import Connection, Runtime, Timer
from weir.runtime.tasks import TaskScope
from weir.wire.first_bytes import HTTP, PULSAR, TLS, protocol_of, reason_in
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.commands import Type
from weir.wire.pulsar.fast_frames import PING, PONG
from weir.wire.pulsar.frames import (
    FRAME_PADDING_BYTES,
    NO_REQUEST,
    PROTOCOL_VERSION,
    Frame,
    decode_frame,
    encode_command,
    splitter,
)
from weir.wire.pulsar.proto import Message

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

_CLIENT_VERSION = "Weir"


class Attached(Protocol):
    """A producer or consumer, as its connection sees it."""

    def on_frame(self, frame: Frame) -> None: ...

    def on_lost(self, why: WeirError) -> None:
        """The connection is gone, or the broker closed this one; nothing more will come."""


class BrokerConnection:
    """Open it with `connect`; `close` it, or wait until it is `lost`."""

    def __init__(self, runtime: Runtime, url: ServerUrl, settings: ClientSettings, raw: Connection) -> None:
        self.url = url
        self.max_message_bytes = 0
        self._split = splitter()
        self._clock = runtime.clock
        self._settings = settings
        self._raw = raw
        self._tasks = TaskScope(f"connection to {url}")
        self._requests: dict[int, asyncio.Future[Message]] = {}
        self._producers: dict[int, Attached] = {}
        self._consumers: dict[int, Attached] = {}
        self._last_id = 0
        self._connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lost: WeirError | None = None
        self._keep_alive: Timer | None = None
        self._heard = True

    @classmethod
    async def connect(cls, runtime: Runtime, url: ServerUrl, settings: ClientSettings) -> "BrokerConnection":
        """A connection that the broker has welcomed."""
        tls = settings.tls if url.secure else None
        if url.secure and tls is None:
            raise ConnectFailedError(f"{url} wants TLS", hint="give the CA of the server with --ca")
        raw = await runtime.net.connect(url.host, url.port, timeout_s=settings.connect_timeout_s, tls=tls)
        connection = cls(runtime, url, settings, raw)
        try:
            await connection._greet()
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def lost(self) -> bool:
        return self._lost is not None

    # --- what is asked of it ---

    def next_id(self) -> int:
        """A number that no request, producer or consumer of this connection has had."""
        self._last_id += 1
        return self._last_id

    async def ask(self, answer: type[M], build: Callable[[int], Message]) -> M:
        """Send the request that `build` makes for its id; the broker's answer, or the error that it stands for."""
        self.check()
        request_id = self.next_id()
        waiting: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._requests[request_id] = waiting
        try:
            self.send([encode_command(build(request_id))])
            async with asyncio.timeout(self._settings.request_timeout_s):
                found = await waiting
        except TimeoutError:
            raise ConnectionLostError(f"{self.url} did not answer") from None
        finally:
            self._requests.pop(request_id, None)
        if not isinstance(found, answer):
            raise WireError(f"{self.url} answered with {type(found).__name__} instead of {answer.__name__}")
        return found

    def send(self, buffers: list[Buffer]) -> None:
        """Queue frames. On a lost connection nothing happens; whoever waits has been told."""
        self._raw.write(buffers)

    async def drain(self) -> None:
        self.check()
        await self._raw.drain()

    def check(self) -> None:
        """Raise why the connection was lost, if it was."""
        if self._lost is not None:
            raise ConnectionLostError(f"the connection to {self.url} is gone: {self._lost.what}")

    def attach_producer(self, producer_id: int, producer: Attached) -> None:
        self._producers[producer_id] = producer

    def detach_producer(self, producer_id: int) -> None:
        self._producers.pop(producer_id, None)

    def attach_consumer(self, consumer_id: int, consumer: Attached) -> None:
        self._consumers[consumer_id] = consumer

    def detach_consumer(self, consumer_id: int) -> None:
        self._consumers.pop(consumer_id, None)

    async def close(self) -> None:
        self._end(ConnectionLostError("closed"))
        await self._tasks.close()

    # --- the conversation ---

    async def _greet(self) -> None:
        token = self._settings.token
        hello = api.CommandConnect(
            client_version=_CLIENT_VERSION,
            protocol_version=PROTOCOL_VERSION,
            auth_method_name="none" if token is None else "token",
            feature_flags=api.FeatureFlags(
                supports_auth_refresh=True, supports_broker_entry_metadata=self._settings.offsets
            ),
        )
        if token is not None:
            hello.auth_data = token.encode()
        self.send([encode_command(hello)])
        self._tasks.spawn(self._receive(), "receive")
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                await self._connected
        except TimeoutError:
            raise ConnectFailedError(f"{self.url} did not answer the greeting") from None
        self._schedule_keep_alive()

    async def _receive(self) -> None:
        split = self._split
        first = True
        try:
            while data := await self._raw.receive():
                self._heard = True
                if first:
                    first = False
                    self._check_protocol(data)
                for body in split.feed(data):
                    self._take(decode_frame(body))
            self._end(ConnectionLostError(f"{self.url} closed the connection"))
        except (NetworkError, WireError) as failure:
            self._end(failure)

    def _check_protocol(self, first: Buffer) -> None:
        """WrongPortError if the first answer is of another protocol."""
        found = protocol_of(first)
        if found is None or found == PULSAR:
            return
        hint = reason_in(first) if found == HTTP else ""
        protocol = found if found in (HTTP, TLS) else f"the {found} protocol"
        raise WrongPortError(
            f"{self.url} answered with {protocol}, not with the Pulsar protocol",
            hint=hint or "name the Pulsar port of the server, or the HTTP port (http://host:8080)",
        )

    def _take(self, frame: Frame) -> None:
        act = _FRAMES.get(frame.type)
        if act is not None:
            act(self, frame)
        elif "request_id" in frame.command.DESCRIPTOR.fields_by_name:
            self._answer(frame.command.request_id, frame.command)  # type: ignore[attr-defined]

    def _answer(self, request_id: int, answer: Message | WeirError) -> None:
        waiting = self._requests.get(request_id)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, WeirError):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    def _on_connected(self, frame: Frame) -> None:
        self.max_message_bytes = cast(api.CommandConnected, frame.command).max_message_size
        self._split.limit = max(self._split.limit, self.max_message_bytes + FRAME_PADDING_BYTES)
        if not self._connected.done():
            self._connected.set_result(None)

    def _on_error(self, frame: Frame) -> None:
        command = cast(api.CommandError, frame.command)
        error = error_of(command.error, command.message)
        if not self._connected.done():
            self._connected.set_exception(error)
        elif command.request_id == NO_REQUEST:
            self._end(error)
        else:
            self._answer(command.request_id, error)

    def _on_producer_success(self, frame: Frame) -> None:
        command = cast(api.CommandProducerSuccess, frame.command)
        if command.producer_ready:  # else it waits to be the only one, and is told again
            self._answer(command.request_id, command)

    def _on_challenge(self, _frame: Frame) -> None:
        token = self._settings.token
        response = api.AuthData(auth_method_name="none" if token is None else "token")
        if token is not None:
            response.auth_data = token.encode()
        answer = api.CommandAuthResponse(
            client_version=_CLIENT_VERSION, protocol_version=PROTOCOL_VERSION, response=response
        )
        self.send([encode_command(answer)])

    def _on_ping(self, _frame: Frame) -> None:
        self.send([PONG])

    def _on_pong(self, _frame: Frame) -> None:
        pass  # that it was heard is all that matters

    def _for_producer(self, frame: Frame) -> None:
        producer = self._producers.get(frame.command.producer_id)  # type: ignore[attr-defined]
        if producer is not None:
            producer.on_frame(frame)

    def _for_consumer(self, frame: Frame) -> None:
        consumer = self._consumers.get(frame.command.consumer_id)  # type: ignore[attr-defined]
        if consumer is not None:
            consumer.on_frame(frame)

    # --- its end ---

    def _schedule_keep_alive(self) -> None:
        self._keep_alive = self._clock.call_later(self._settings.keep_alive_s, self._look_alive)

    def _look_alive(self) -> None:
        if self._lost is not None:
            return
        if not self._heard:
            self._end(ConnectionLostError(f"{self.url} no longer answers"))
            return
        self._heard = False
        self.send([PING])
        self._schedule_keep_alive()

    def _end(self, why: WeirError) -> None:
        if self._lost is not None:
            return
        self._lost = why
        self._raw.close()
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        if not self._connected.done():
            self._connected.set_exception(why)
            self._connected.exception()  # nobody may be waiting any more
        for waiting in self._requests.values():
            if not waiting.done():
                waiting.set_exception(why)
        for attached in (*self._producers.values(), *self._consumers.values()):
            attached.on_lost(why)
        self._producers.clear()
        self._consumers.clear()


_FRAMES: dict[int, Callable[[BrokerConnection, Frame], None]] = {
    Type.CONNECTED: BrokerConnection._on_connected,
    Type.ERROR: BrokerConnection._on_error,
    Type.PRODUCER_SUCCESS: BrokerConnection._on_producer_success,
    Type.AUTH_CHALLENGE: BrokerConnection._on_challenge,
    Type.PING: BrokerConnection._on_ping,
    Type.PONG: BrokerConnection._on_pong,
    Type.SEND_RECEIPT: BrokerConnection._for_producer,
    Type.SEND_ERROR: BrokerConnection._for_producer,
    Type.CLOSE_PRODUCER: BrokerConnection._for_producer,
    Type.MESSAGE: BrokerConnection._for_consumer,
    Type.CLOSE_CONSUMER: BrokerConnection._for_consumer,
    Type.REACHED_END_OF_TOPIC: BrokerConnection._for_consumer,
    Type.ACTIVE_CONSUMER_CHANGE: BrokerConnection._for_consumer,
}
