"""The bookie on the network: accepts connections, bounds their number, and ends them in order."""

import asyncio
import logging
from dataclasses import dataclass, field
from ssl import SSLContext

from weir.bookie.serving import Served, SessionLimits
from weir.bookie.session import Session
from weir.model.errors import BookieBusyError, BookieUnavailableError, ConnectionLostError, NetworkError
from weir.model.ids import BookieId
from weir.runtime.interfaces import Connection, Listener, Runtime
from weir.runtime.tasks import TaskScope

log = logging.getLogger(__name__)

_ACCEPT_PAUSE_S = 0.1
#: So many connections over the limit are told why they are refused; the rest just break.
_REFUSALS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where to listen, and what clients may cost."""

    host: str = "127.0.0.1"
    port: int = 0
    max_connections: int = 1024
    limits: SessionLimits = field(default_factory=SessionLimits)
    #: How often sessions that say nothing, or read nothing, are looked for.
    sweep_interval_s: float = 1.0
    #: How long `close` lets answers go out.
    close_grace_s: float = 5.0


class BookieServer:
    """Serves one bookie. `start`, then `close`; the bookie itself belongs to whoever made it."""

    def __init__(
        self,
        runtime: Runtime,
        bookie: Served,
        bookie_id: BookieId,
        settings: ServerSettings,
        *,
        tls: SSLContext | None = None,
    ) -> None:
        self._runtime = runtime
        self._bookie = bookie
        self._bookie_id = bookie_id
        self._settings = settings
        self._tls = tls
        self._tasks = TaskScope("bookie-server")
        self._durable = TaskScope("bookie-server-durable")
        self._sessions: dict[Session, asyncio.Task[None]] = {}
        self._listener: Listener | None = None

    @property
    def host(self) -> str:
        return self._listener.host if self._listener else self._settings.host

    @property
    def port(self) -> int:
        """The bound port; differs from the settings' if that was 0."""
        return self._listener.port if self._listener else self._settings.port

    @property
    def connections(self) -> int:
        return len(self._sessions)

    async def start(self) -> None:
        """Bind, or raise AddressInUseError; then accept in the background."""
        settings = self._settings
        self._listener = await self._runtime.net.listen(settings.host, settings.port, tls=self._tls)
        self._tasks.spawn(self._accept(self._listener), "accept")
        self._tasks.spawn(self._sweep(), "sweep")
        log.info("bookie %s listens on %s:%d", self._bookie_id, self.host, self.port)

    async def close(self) -> None:
        """Accept nothing more, answer what was accepted within the grace time, and end every connection."""
        if self._listener is not None:
            self._listener.close()
        await self._tasks.close()
        running = list(self._sessions.values())
        for session in self._sessions:
            session.end(BookieUnavailableError(f"bookie {self._bookie_id} shuts down"))
        if running:
            await asyncio.wait(running, timeout=self._settings.close_grace_s)
        for session in list(self._sessions):
            session.abort()
        if running:
            await asyncio.wait(running)
        await self._durable.close()

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
        session = Session(
            self._bookie,
            self._bookie_id,
            connection,
            clock=self._runtime.clock,
            limits=self._settings.limits,
            durable=self._durable,
        )
        if len(self._sessions) >= limit:
            log.warning("connection of %s is refused: %d are open", connection.peer, limit)
            session.end(BookieBusyError(f"this bookie has {limit} connections, which is its limit"))
        task = asyncio.get_running_loop().create_task(session.run(), name=f"session {connection.peer}")
        self._sessions[session] = task
        task.add_done_callback(lambda _: self._ended(session))

    def _ended(self, session: Session) -> None:
        task = self._sessions.pop(session)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s failed", task.get_name(), exc_info=task.exception())

    async def _sweep(self) -> None:
        clock = self._runtime.clock
        while True:
            await clock.sleep(self._settings.sweep_interval_s)
            now = clock.monotonic()
            for session in list(self._sessions):
                reason = session.overdue(now)
                if reason is not None:
                    log.warning("connection of %s is ended: %s", session.peer, reason)
                    session.abort()
