"""The loop of a server: accepts connections, bounds their number, ends the dead ones, and all of them in order.

What a session says: everything of one turn of the loop goes out in one write, in order.

Connections that have not said yet who they are: a bounded number, so that strangers keep nobody out.

Of too many the one that has waited longest goes: whoever belongs here says so within a round trip.
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
#: So many connections over the limit are told why they are refused; the rest just break.
_REFUSALS_AT_ONCE = 64


class Session(Protocol):
    """One connection, served."""

    @property
    def peer(self) -> str: ...

    async def run(self) -> None:
        """Serve until the connection ends."""

    def end(self, why: WeirError) -> None:
        """Take nothing more, finish what was taken, say why, and end."""

    def abort(self) -> None:
        """End at once."""

    def overdue(self, now: float) -> str | None:
        """Why it should be ended by force, if it should; asked from time to time."""


S = TypeVar("S", bound=Session)


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """Where to listen, and how many may come."""

    host: str = "127.0.0.1"
    port: int = 0
    max_connections: int = 10_000
    #: How often sessions that say nothing, or read nothing, are looked for.
    sweep_interval_s: float = 1.0
    #: How long `close` lets sessions finish.
    close_grace_s: float = 5.0
    #: Whether one file descriptor is kept for it when the process has none left.
    reserve: bool = False


def _too_many(limit: int) -> WeirError:
    return TooManyError(f"this broker has {limit} connections, which is its limit")


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
        """`session` makes the session of a new connection; `too_many` says why one over the limit is refused."""
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
        """The bound port; differs from the settings' if that was 0."""
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
        """Accept nothing more, let sessions finish within the grace time, and end every connection."""
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
            except NetworkError as failure:  # out of file descriptors, say: others must still be served
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
    """A session whose other side is not known yet."""

    def abort(self) -> None:
        """End at once."""


STRANGERS_S = TypeVar("STRANGERS_S", bound=Unknown)


class Strangers(Generic[STRANGERS_S]):
    """Those of one listener."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[STRANGERS_S, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def came(self, session: STRANGERS_S) -> None:
        """A new connection; it may cost the oldest stranger its own."""
        self._waiting[session] = None
        if len(self._waiting) > self._limit:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.abort()

    def settled(self, session: STRANGERS_S) -> None:
        """It has proved itself, or is gone: it counts no more."""
        self._waiting.pop(session, None)


#: Buffers that are smaller than this on average are joined; a write per tiny frame costs more than the copy.
_JOIN_BELOW_BYTES = 4096


class SentBytes(Protocol):
    """Where what is sent is counted, for many clients together."""

    bytes_out: int


class Outbox:
    """Frames on their way to one client. Whoever says much waits in `drain` before saying more."""

    def __init__(self, connection: Connection, clock: Clock, counted: SentBytes | None = None) -> None:
        self._counted = counted
        self._connection = connection
        self._clock = liveness(clock)
        self._loop = asyncio.get_running_loop()
        self._out: list[Buffer] = []
        #: Who has something to say at the end of this turn, and whether somebody has.
        self._last_words: list[Callable[[], None]] = []
        self._due = False
        #: What was written, for whoever looks.
        self.sent_bytes = self.writes = 0
        #: Since when the client has not been reading what it is sent.
        self.stalled_at: float | None = None

    def say(self, frame: Buffer) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn_ends)
        self._out.append(frame)

    def say_all(self, buffers: list[Buffer]) -> None:
        """Frames in pieces, to be written one after the other."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn_ends)
        self._out += buffers

    def say_last(self, words: Callable[[], None]) -> None:
        """Call somebody at the end of this turn, who then says all that the turn has brought."""
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
        """Write what was said so far now."""
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
        """Whether nothing waits to be sent: nobody has to wait in `drain` then."""
        return not self._out and not self._connection.unsent_bytes

    async def drain(self) -> None:
        """Wait while the client has too much to read; ConnectionLostError if it is gone."""
        self.flush()
        if self.stalled_at is None:
            self.stalled_at = self._clock.monotonic()
        try:
            await self._connection.drain()
        finally:
            self.stalled_at = None
