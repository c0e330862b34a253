"""TCP on the asyncio event loop, with TLS on request: listeners, connections, and send buffers.

Listeners survive the limit of file descriptors. asyncio's own servers log every failed accept, and have no
descriptor left. Here a listener that cannot accept pauses, while its clients wait in the kernel's queue, and logs
the limit once; a listener whose clients need an answer even then (health) keeps one descriptor in reserve, for one
connection at a time.

`Sender` counts the bytes that its transport has not sent, and bounds those in the transport. Transports accept any
amount and differ in their reports. asyncio's `writelines` never calls `pause_writing` in Python 3.12.0 to 3.12.8
and 3.13.0 to 3.13.1, and loops forever on an empty buffer; TLS does not count data that it has encrypted and
passed on. So the sender passes one non-empty piece after the other, and reads the transport's size after each;
above the mark the rest waits in the sender, as references and not as copies.
"""

import asyncio
import errno
import logging
import os
import resource
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from ssl import SSLContext, SSLEOFError, SSLError, SSLSyscallError, SSLZeroReturnError
from typing import Any, cast

from weir.model.errors import AddressInUseError, ConnectFailedError, ConnectionLostError, TlsFailedError
from weir.model.ids import Buffer
from weir.runtime.real_buffers import BufferPool, Inbox

#: A transport has at most its high-water mark plus one such piece.
PIECE_BYTES = 256 * 1024


class Sender:
    """The send side of one connection. The protocol forwards `pause_writing` and `resume_writing` to it."""

    def __init__(self, transport: asyncio.Transport, high_bytes: int) -> None:
        self._transport = transport
        self._high_bytes = high_bytes
        self._waiting: deque[Buffer] = deque()
        #: Bytes not passed to the transport yet.
        self.waiting_bytes = 0
        self._full = False  # the transport exceeded the mark, and has not resumed yet
        self._room = asyncio.Event()
        self._room.set()
        transport.set_write_buffer_limits(high=high_bytes)

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Send these buffers after the earlier ones."""
        if not all(map(len, buffers)):
            buffers = [each for each in buffers if len(each)]
        if not buffers:
            return
        size = sum(map(len, buffers))
        if size <= PIECE_BYTES and not self._full and not self._waiting:
            self._give(buffers)
            return
        self._waiting.extend(buffers)
        self.waiting_bytes += size
        self._give_more()

    @property
    def unsent_bytes(self) -> int:
        """Bytes in the sender and in the transport (for TLS, all but a few encrypted records)."""
        return self.waiting_bytes + self._transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Wait until the transport can accept more."""
        await self._room.wait()

    def pause(self) -> None:
        """The transport exceeds the mark."""
        self._full = True
        self._room.clear()

    def resume(self) -> None:
        """The transport has sent most of its data."""
        self._full = False
        self._give_more()

    def finish(self) -> None:
        """Pass everything to the transport before its close: it sends its data before it closes."""
        if self._waiting:
            self._transport.writelines(list(self._waiting))
        self.drop()

    def drop(self) -> None:
        """Discard the waiting buffers."""
        self._waiting.clear()
        self.waiting_bytes = 0

    def end(self) -> None:
        """Discard everything and wake `drain`, because the transport has ended."""
        self.drop()
        self._room.set()

    def _give_more(self) -> None:
        while self._waiting and not self._full:
            self._give(self._next_piece())
        if self._waiting or self._full:
            self._room.clear()
        else:
            self._room.set()

    def _next_piece(self) -> list[Buffer]:
        piece: list[Buffer] = []
        room = PIECE_BYTES
        while self._waiting and room:
            buffer = self._waiting.popleft()
            if len(buffer) > room:
                view = memoryview(buffer)
                buffer = view[:room]
                self._waiting.appendleft(view[room:])
            piece.append(buffer)
            room -= len(buffer)
        self.waiting_bytes -= PIECE_BYTES - room
        return piece

    def _give(self, piece: Sequence[Buffer]) -> None:
        if len(piece) == 1:
            self._transport.write(piece[0])
        else:
            self._transport.writelines(piece)
        if not self._full and self._transport.get_write_buffer_size() > self._high_bytes:
            # The transport did not report it. Setting its limits makes every transport check again and later
            # report resumption.
            self._transport.set_write_buffer_limits(high=self._high_bytes)


log = logging.getLogger(__name__)

#: Maximum of connections that the kernel accepted and no session has.
BACKLOG = 1024
#: Time limit of the TLS handshake.
_HANDSHAKE_S = 10.0
#: For a port shared by TLS and clear text: the time limit for a client's first byte, the maximum number of silent
#: clients (above it the listener closes the oldest), and the byte that begins a TLS handshake.
_FIRST_BYTE_S = 10.0
_MAX_SILENT = 512
_TLS_HANDSHAKE_RECORD = 0x16
_PER_TURN = 64
_PAUSE_S = 0.1
#: After this long without reaching the limit, the log reports it again.
_CALM_S = 60.0
#: OpenSSL's reasons for a peer that does not use TLS.
NOT_TLS = frozenset({"HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG"})
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class DescriptorLimit:
    """The descriptor limit of one process: how often a connection waited for it, and the descriptor in reserve."""

    def __init__(self) -> None:
        self._users = 0
        self._reserve: int | None = None
        self._reached_at: float | None = None
        #: The number of times that a connection waited for a descriptor.
        self.reached = 0

    def keep_one(self) -> None:
        """Add a listener that may use the descriptor in reserve."""
        self._users += 1
        self._fill()

    def forget_one(self) -> None:
        self._users -= 1
        if not self._users and self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None

    def accept_on_reserve(self, listening: socket.socket) -> socket.socket | None:
        """Accept a connection with the descriptor in reserve; None if that is in use."""
        if self._reserve is None:
            return None
        os.close(self._reserve)
        self._reserve = None
        try:
            return listening.accept()[0]
        except OSError:
            self.refill()
            return None

    def refill(self) -> bool:
        """Reserve the first free descriptor again; returns whether the reserve is complete, or not needed."""
        return not self._users or self._fill()

    def note_reached(self, failure: OSError) -> None:
        """Count a connection that waits for a descriptor, and log the limit."""
        self.reached += 1
        now = asyncio.get_running_loop().time()
        if self._reached_at is None or now - self._reached_at > _CALM_S:
            log.warning(
                "no file descriptor is left for new connections (%s; the limit is %d): they wait until others "
                "end; raise the limit (ulimit -n), or lower limits.*connections",
                failure.strerror,
                resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            )
        self._reached_at = now

    def _fill(self) -> bool:
        if self._reserve is None:
            try:
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return False
        return True


async def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on all addresses of a name (port 0: on the first), or AddressInUseError."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        addresses = list(dict.fromkeys((each[0], each[4]) for each in found))
        return _bound(addresses[:1] if port == 0 else addresses)
    except OSError as refused:
        if refused.errno == errno.EADDRINUSE:
            raise AddressInUseError(f"{host}:{port} is in use") from refused
        raise _refusal(host, port, refused) from refused


def _refusal(host: str, port: int, refused: OSError) -> ConnectFailedError:
    what, hint = f"cannot listen on {host}:{port}: {refused.strerror or refused}", "check host and port"
    if refused.errno in (errno.EACCES, errno.EPERM):
        hint = (
            "ports below 1024 need a privilege: use a higher port, or let systemd grant it (AmbientCapabilities="
            "CAP_NET_BIND_SERVICE)"
        )
    elif refused.errno == errno.EADDRNOTAVAIL:
        hint = (
            "this machine has no such address: listen on 0.0.0.0 or 127.0.0.1, or on one that `ip address` shows"
        )
    elif isinstance(refused, socket.gaierror):
        hint = "that name does not resolve: write 0.0.0.0, 127.0.0.1, or a name of this machine"
    return ConnectFailedError(what, hint=hint)


def _bound(addresses: Sequence[tuple[int, Any]]) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for family, address in addresses:
            sock = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


class RealListener:
    """A bound address with its connections that the server has not accepted yet."""

    def __init__(
        self,
        sockets: list[socket.socket],
        connection: "Callable[[RealListener, bool, bool], RealConnection]",
        limit: DescriptorLimit,
        *,
        tls: SSLContext | None,
        reserve: bool,
        clear_too: bool = False,
    ) -> None:
        """`connection` creates one; its arguments say whether it uses the descriptor in reserve, and whether it
        uses TLS. `reserve`: whether a connection may use the descriptor in reserve. `clear_too`: with `tls`, the
        client's first byte decides whether its connection uses TLS."""
        self._sockets = sockets
        self._connection = connection
        self._limit = limit
        self._tls = tls
        self._reserve = reserve
        self._clear_too = clear_too and tls is not None
        #: Clients without a first byte, in order of connection.
        self._silent: dict[socket.socket, asyncio.Future[bool]] = {}
        self._address = sockets[0].getsockname()[:2]
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._waiting: deque[RealConnection] = deque()
        self._arrived = asyncio.Event()
        self._closed = False
        if reserve:
            limit.keep_one()
        for sock in sockets:
            self._loop.add_reader(sock, self._accept_some, sock)

    @property
    def host(self) -> str:
        return str(self._address[0])

    @property
    def port(self) -> int:
        return int(self._address[1])

    async def accept(self) -> "RealConnection":
        while not self._waiting:
            if self._closed:
                raise ConnectionLostError("the listener is closed")
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()

    def take(self, connection: "RealConnection") -> None:
        """Add a new connection, after its TLS handshake if any."""
        if self._closed or len(self._waiting) >= BACKLOG:
            connection.abort()
            return
        self._waiting.append(connection)
        self._arrived.set()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()
        if self._reserve:
            self._limit.forget_one()
        for silent in self._silent.values():
            _resolve(silent, said=False)
        while self._waiting:
            self._waiting.popleft().abort()
        self._arrived.set()

    def gone(self) -> None:
        """A connection with the descriptor in reserve has ended: refill the reserve."""
        self._loop.call_soon(self._limit.refill)  # its socket closes after this call

    def _accept_some(self, listening: socket.socket) -> None:
        if not self._limit.refill():  # the reserve is in use
            self._pause(listening)
            return
        for _ in range(_PER_TURN):
            on_reserve = False
            try:
                sock: socket.socket | None = listening.accept()[0]
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as failure:
                if failure.errno not in _EXHAUSTED:
                    log.warning("cannot accept a connection: %s", failure)
                    self._pause(listening)
                    return
                self._limit.note_reached(failure)
                sock = self._limit.accept_on_reserve(listening) if self._reserve else None
                on_reserve = True
            if sock is None:
                self._pause(listening)
                return
            sock.setblocking(False)
            opening = self._loop.create_task(self._open(sock, on_reserve), name="accept")
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    def _pause(self, listening: socket.socket) -> None:
        self._loop.remove_reader(listening)
        self._loop.call_later(_PAUSE_S, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if not self._closed:
            self._loop.add_reader(listening, self._accept_some, listening)

    async def _open(self, sock: socket.socket, on_reserve: bool) -> None:
        try:
            tls = await self._tls_of(sock) if self._clear_too else self._tls
            await self._loop.connect_accepted_socket(
                lambda: self._connection(self, on_reserve, tls is not None),
                sock,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else _HANDSHAKE_S,
            )
        except OSError as failed:  # TLS errors are such, too
            if isinstance(failed, SSLError) and failed.reason in NOT_TLS:
                used = "HTTP" if failed.reason == "HTTP_REQUEST" else "a protocol"
                log.warning("a client uses %s without TLS on port %d, which serves TLS only", used, self.port)
            log.debug("a connection failed during setup: %r", failed)
            sock.close()
            if on_reserve:
                self.gone()

    async def _tls_of(self, sock: socket.socket) -> SSLContext | None:
        """The TLS context if the client starts with TLS; ConnectionAbortedError if it sends nothing in time."""
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            if not await self._says_something(sock):
                raise ConnectionAbortedError("the client sent nothing") from None
            first = sock.recv(1, socket.MSG_PEEK)
        if not first:
            raise ConnectionAbortedError("the client closed the connection before it sent anything")
        return self._tls if first[0] == _TLS_HANDSHAKE_RECORD else None

    async def _says_something(self, sock: socket.socket) -> bool:
        """Wait for a client's first byte, or its end; False on a timeout, or if too many are silent."""
        if self._closed:
            return False
        if len(self._silent) >= _MAX_SILENT:
            for longest in self._silent.values():
                if not longest.done():
                    longest.set_result(False)
                    break
        came: asyncio.Future[bool] = self._loop.create_future()
        self._silent[sock] = came
        timer = self._loop.call_later(_FIRST_BYTE_S, _resolve_silent, came)
        self._loop.add_reader(sock, _resolve_said, came)
        try:
            return await came
        finally:
            self._loop.remove_reader(sock)
            timer.cancel()
            del self._silent[sock]


def _resolve(came: "asyncio.Future[bool]", *, said: bool) -> None:
    if not came.done():
        came.set_result(said)


def _resolve_said(came: "asyncio.Future[bool]") -> None:
    _resolve(came, said=True)


def _resolve_silent(came: "asyncio.Future[bool]") -> None:
    _resolve(came, said=False)


#: The connection stops reading above this many unread bytes, and pushes back on writers above the other.
_INBOX_HIGH_BYTES = 1024 * 1024
_OUTBOX_HIGH_BYTES = 1024 * 1024
#: Total for all send buffers; a new connection gets less of it the more there are, as all may stop reading at
#: once.
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
        self._ended = False  # the peer ended its stream, or this side closed
        self._lost: str | None = None  # why the connection broke, if it did
        self._closed = False  # by this side: received bytes are dropped
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
            self._inbox.finish()  # a waiting connection keeps no buffer
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
                # Without this the kernel ends the stream normally, and the peer mistakes it for the regular end.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        if self._sender is not None:
            self._sender.drop()
        self._wake()

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
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
    """TCP of the operating system. All connections share one pool of receive buffers."""

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
            # The server may have just stopped.
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
