"""The server loop: accepts connections, bounds their number, ends dead ones, and shuts all of them down in order.

`Outbox` queues the output of a session: one write sends all output of one turn of the loop, in order. `Strangers`
bounds the connections that have not authenticated yet, so that they cannot block others: above the limit it ends
the oldest, since a legitimate peer authenticates within a round trip.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from ssl import SSLContext
from typing import Generic, Protocol, TypeVar

from weir.model.errors import ConnectionLostError, NetworkError, TooManyError, WeirError
from weir.model.ids import Buffer
from weir.runtime.adjustable_clock import liveness
from weir.runtime.interfaces import Clock, Connection, Listener, Runtime
from weir.runtime.tasks import TaskScope

log = logging.getLogger(__name__)

_ACCEPT_PAUSE_S = 0.1
#: This many connections over the limit receive the reason of their refusal; the others just break.
_REFUSALS_AT_ONCE = 64


class Session(Protocol):
    """The session of one connection."""

    @property
    def peer(self) -> str: ...

    async def run(self) -> None:
        """Serve until the connection ends."""

    def end(self, why: WeirError) -> None:
        """Accept no more requests, finish the accepted ones, send the reason, and end."""

    def abort(self) -> None:
        """End immediately."""

    def overdue(self, now: float) -> str | None:
        """The reason to end it by force, or None; called periodically."""


S = TypeVar("S", bound=Session)


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """The listen address, and the maximum of connections."""

    host: str = "127.0.0.1"
    port: int = 0
    max_connections: int = 10_000
    #: How often the server checks for silent sessions and for sessions that do not read.
    sweep_interval_s: float = 1.0
    #: How long `close` waits for sessions to finish.
    close_grace_s: float = 5.0
    #: Whether to keep one file descriptor for it when the process has none left.
    reserve: bool = False


def _too_many(limit: int) -> WeirError:
    return TooManyError(f"this broker is at its limit of {limit} connections")


class Server(Generic[S]):
    """Sessions of one kind on one address. `start`, then `close`."""

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        settings: ServingSettings,
        session: Callable[[Connection], S],
        *,
        tls: SSLContext | None = None,
        too_many: Callable[[int], WeirError] = _too_many,
    ) -> None:
        """`session` creates the session of a connection; `too_many` is the reason for refusing one over the
        limit."""
        self._too_many = too_many
        self._runtime = runtime
        self._name = name
        self._settings = settings
        self._session = session
        self._tls = tls
        self._tasks = TaskScope(f"{name}-server")
        self._sessions: dict[S, asyncio.Task[None]] = {}
        self._listener: Listener | None = None

    @property
    def host(self) -> str:
        return self._listener.host if self._listener else self._settings.host

    @property
    def port(self) -> int:
        """The bound port; the settings may have 0."""
        return self._listener.port if self._listener else self._settings.port

    @property
    def sessions(self) -> list[S]:
        return list(self._sessions)

    async def start(self) -> None:
        """Bind, or raise AddressInUseError; then accept in the background."""
        settings = self._settings
        self._listener = await self._runtime.net.listen(
            settings.host, settings.port, tls=self._tls, reserve=settings.reserve
        )
        self._tasks.spawn(self._accept(self._listener), "accept")
        self._tasks.spawn(self._sweep(), "sweep")

    async def close(self, why: WeirError) -> None:
        """Accept no more connections, let sessions finish within the grace time, and end every connection."""
        if self._listener is not None:
            self._listener.close()
        await self._tasks.close()
        running = list(self._sessions.values())
        for session in self._sessions:
            session.end(why)
        if running:
            await asyncio.wait(running, timeout=self._settings.close_grace_s)
        for session in list(self._sessions):
            session.abort()
        if running:
            await asyncio.wait(running)

    async def _accept(self, listener: Listener) -> None:
        while True:
            try:
                connection = await listener.accept()
            except ConnectionLostError:
                return
            except NetworkError as failure:  # for example, out of file descriptors: continue to serve others
                log.warning("cannot accept a connection: %s", failure)
                await self._runtime.clock.sleep(_ACCEPT_PAUSE_S)
                continue
            self._serve(connection)

    def _serve(self, connection: Connection) -> None:
        limit = self._settings.max_connections
        if len(self._sessions) >= limit + _REFUSALS_AT_ONCE:
            connection.abort()
            return
        session = self._session(connection)
        if len(self._sessions) >= limit:
            log.warning("connection of %s is refused: %d are open", connection.peer, limit)
            session.end(self._too_many(limit))
        task = asyncio.get_running_loop().create_task(
            session.run(), name=f"{self._name} session {connection.peer}"
        )
        self._sessions[session] = task
        task.add_done_callback(lambda _: self._ended(session))

    def _ended(self, session: S) -> None:
        task = self._sessions.pop(session)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s failed", task.get_name(), exc_info=task.exception())

    async def _sweep(self) -> None:
        clock = liveness(self._runtime.clock)
        while True:
            await clock.sleep(self._settings.sweep_interval_s)
            now = clock.monotonic()
            for session in list(self._sessions):
                reason = session.overdue(now)
                if reason is not None:
                    log.warning("connection of %s is ended: %s", session.peer, reason)
                    session.abort()


class Unknown(Protocol):
    """A session that has not authenticated yet."""

    def abort(self) -> None:
        """End immediately."""


STRANGERS_S = TypeVar("STRANGERS_S", bound=Unknown)


class Strangers(Generic[STRANGERS_S]):
    """The unauthenticated connections of one listener."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[STRANGERS_S, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def came(self, session: STRANGERS_S) -> None:
        """Add a new connection; above the limit this ends the oldest one."""
        self._waiting[session] = None
        if len(self._waiting) > self._limit:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.abort()

    def settled(self, session: STRANGERS_S) -> None:
        """Remove a connection that has authenticated or ended."""
        self._waiting.pop(session, None)


#: The outbox joins buffers below this average size; a write per tiny frame costs more than the copy.
_JOIN_BELOW_BYTES = 4096


class SentBytes(Protocol):
    """Counts sent bytes for many clients together."""

    bytes_out: int


class Outbox:
    """Frames on their way to one client. Senders of much data must await `drain` in between."""

    def __init__(self, connection: Connection, clock: Clock, counted: SentBytes | None = None) -> None:
        self._counted = counted
        self._connection = connection
        self._clock = liveness(clock)
        self._loop = asyncio.get_running_loop()
        self._out: list[Buffer] = []
        #: Callbacks for the end of this turn, and whether that is scheduled.
        self._last_words: list[Callable[[], None]] = []
        self._due = False
        #: Totals, for observers.
        self.sent_bytes = self.writes = 0
        #: When the client stopped reading.
        self.stalled_at: float | None = None

    def say(self, frame: Buffer) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn_ends)
        self._out.append(frame)

    def say_all(self, buffers: list[Buffer]) -> None:
        """Queue frames in pieces, in order."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn_ends)
        self._out += buffers

    def say_last(self, words: Callable[[], None]) -> None:
        """Call a function at the end of this turn, to send one frame for everything in it."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn_ends)
        self._last_words.append(words)

    def _turn_ends(self) -> None:
        if self._last_words:
            said, self._last_words = self._last_words, []
            for words in said:
                words()
        self._due = False
        self.flush()

    def flush(self) -> None:
        """Write the queued frames now."""
        out = self._out
        if not out:
            return
        self._out = []
        size = sum(map(len, out))
        self.sent_bytes += size
        if self._counted is not None:
            self._counted.bytes_out += size
        self.writes += len(out)
        if len(out) > 1 and size < _JOIN_BELOW_BYTES * len(out):
            self._connection.write([b"".join(out)])
        else:
            self._connection.write(out)

    @property
    def is_clear(self) -> bool:
        """Whether no output waits, so that `drain` would not wait."""
        return not self._out and not self._connection.unsent_bytes

    async def drain(self) -> None:
        """Wait while the client has too much to read; ConnectionLostError if the connection broke."""
        self.flush()
        if self.stalled_at is None:
            self.stalled_at = self._clock.monotonic()
        try:
            await self._connection.drain()
        finally:
            self.stalled_at = None
