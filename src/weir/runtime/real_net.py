"""Connections over TCP, with TLS if asked, on the asyncio event loop."""

import asyncio
import socket
import struct
from collections.abc import Sequence
from ssl import SSLContext, SSLEOFError, SSLError, SSLSyscallError, SSLZeroReturnError
from typing import cast

from weir.model.errors import ConnectFailedError, ConnectionLostError, TlsFailedError
from weir.model.ids import Buffer
from weir.runtime.real_buffers import BufferPool, Inbox
from weir.runtime.real_listening import NOT_TLS, DescriptorLimit, RealListener, bind
from weir.runtime.real_sending import Sender

#: Reading stops while this much waits to be received, writing pushes back above the other.
_INBOX_HIGH_BYTES = 1024 * 1024
_OUTBOX_HIGH_BYTES = 1024 * 1024
#: The more connections, the less of that each new one has: they may all stop reading at once.
_OUTBOXES_BYTES = 512 * 1024 * 1024
_OUTBOX_LEAST_BYTES = 64 * 1024


class RealConnection(asyncio.BufferedProtocol):
    """One TCP connection: the event loop fills the inbox, one task receives from it."""

    def __init__(
        self,
        pool: BufferPool,
        *,
        half_close: bool,
        accepted: RealListener | None = None,
        on_reserve: bool = False,
    ) -> None:
        self._pool = pool
        self._inbox = Inbox(pool)
        self._half_close = half_close
        self._accepted = accepted
        self.on_reserve = on_reserve
        self._transport: asyncio.Transport | None = None
        self._sender: Sender | None = None
        self._peer = "?"
        self._certificate: bytes | None = None
        self._ended = False  # the peer will send no more, or we closed
        self._lost: str | None = None  # why the connection broke, if it did
        self._closed = False  # by this side: nobody takes what comes
        self._gone = False
        self._paused_reading = False
        self._receiver: asyncio.Future[None] | None = None

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def certificate(self) -> bytes | None:
        return self._certificate

    async def receive(self) -> Buffer:
        while True:
            if self._inbox.size:
                taken = self._inbox.take()
                if self._paused_reading and self._transport is not None and not self._gone:
                    self._paused_reading = False
                    self._transport.resume_reading()
                return taken
            if self._lost is not None:
                raise ConnectionLostError(f"connection to {self._peer} broke: {self._lost}")
            if self._ended:
                return b""
            self._inbox.finish()  # whoever waits holds no buffer
            self._receiver = asyncio.get_running_loop().create_future()
            try:
                await self._receiver
            finally:
                self._receiver = None

    def write(self, buffers: Sequence[Buffer]) -> None:
        if self._gone or self._transport is None or self._transport.is_closing():
            return
        if self._sender is not None:
            self._sender.write(buffers)

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._gone or self._sender is None else self._sender.unsent_bytes

    async def drain(self) -> None:
        if self._sender is not None:
            await self._sender.drain()
        if self._gone:
            raise ConnectionLostError(f"connection to {self._peer} broke: {self._lost or 'closed'}")

    def close(self) -> None:
        self._ended = self._closed = True
        self._inbox.drop()
        if self._transport is not None:
            self._send_the_rest()
            self._transport.close()
        self._wake()

    def abort(self) -> None:
        if self._lost is None and not self._gone:
            self._lost, self._closed = "aborted", True
            self._inbox.drop()
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            if sock is not None and not self._gone:
                # Without this the kernel ends the stream politely, and the peer takes it for the end.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        if self._sender is not None:
            self._sender.drop()
        self._wake()

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._pool.connections += 1
        high = max(_OUTBOX_LEAST_BYTES, min(_OUTBOX_HIGH_BYTES, _OUTBOXES_BYTES // self._pool.connections))
        self._sender = Sender(transport, high)
        name = transport.get_extra_info("peername")
        self._peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:
            self._certificate = secured.getpeercert(binary_form=True)
        if self._accepted is not None:
            self._accepted.take(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._inbox.space()

    def buffer_updated(self, nbytes: int) -> None:
        self._inbox.filled(nbytes)
        if self._closed:
            self._inbox.drop()
            return
        high = 0 if self._pool.crowded else _INBOX_HIGH_BYTES
        if self._inbox.size > high and not self._paused_reading and self._transport is not None:
            self._paused_reading = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._ended = True
        if not self._half_close:  # the transport closes itself next
            self._send_the_rest()
        self._wake()
        return self._half_close

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True
        self._pool.connections -= 1
        self._inbox.finish()
        if not self._ended:
            self._lost = str(exc) if exc else "closed without an end of stream"
        if self._sender is not None:
            self._sender.end()
        if self.on_reserve and self._accepted is not None:
            self._accepted.gone()
        self._wake()

    def pause_writing(self) -> None:
        if self._sender is not None:
            self._sender.pause()

    def resume_writing(self) -> None:
        if self._sender is not None:
            self._sender.resume()

    def _send_the_rest(self) -> None:
        if self._sender is not None and self._transport is not None and not self._transport.is_closing():
            self._sender.finish()

    def _wake(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)


class RealNetwork:
    """TCP as the operating system gives it. All connections share one pool of receive buffers."""

    def __init__(self) -> None:
        self._pool = BufferPool()
        self._descriptors = DescriptorLimit()

    @property
    def descriptor_waits(self) -> int:
        return self._descriptors.reached

    async def connect(
        self, host: str, port: int, *, timeout_s: float = 10.0, tls: SSLContext | None = None
    ) -> RealConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: RealConnection(self._pool, half_close=tls is None), host, port, ssl=tls
                )
        except TimeoutError as late:
            raise ConnectFailedError(f"no answer from {host}:{port} within {timeout_s:g} s") from late
        except (SSLEOFError, SSLZeroReturnError, SSLSyscallError) as ended:
            # Whoever was there may have gone just then.
            raise ConnectFailedError(f"{host}:{port} ended the handshake of TLS") from ended
        except SSLError as refused:
            if refused.reason in NOT_TLS:
                hint = "use the TLS port of the server, or connect without TLS (http://, pulsar://)"
                raise TlsFailedError(f"{host}:{port} answered without TLS", hint=hint) from refused
            raise TlsFailedError(f"TLS with {host}:{port} failed: {refused.reason or refused}") from refused
        except (OSError, OverflowError) as refused:
            raise ConnectFailedError(f"cannot connect to {host}:{port}: {refused}") from refused
        return connection

    async def listen(
        self,
        host: str,
        port: int,
        *,
        tls: SSLContext | None = None,
        reserve: bool = False,
        clear_too: bool = False,
    ) -> RealListener:
        sockets = await bind(host, port)

        def connection(listener: RealListener, on_reserve: bool, secure: bool) -> RealConnection:
            return RealConnection(self._pool, half_close=not secure, accepted=listener, on_reserve=on_reserve)

        return RealListener(sockets, connection, self._descriptors, tls=tls, reserve=reserve, clear_too=clear_too)
