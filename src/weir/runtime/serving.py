"""The loop of a server: accepts connections, bounds their number, ends the dead ones, and all of them in order."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from ssl import SSLContext
from typing import Generic, Protocol, TypeVar

from weir.model.errors import ConnectionLostError, NetworkError, TooManyError, WeirError
from weir.runtime.interfaces import Connection, Listener, Runtime
from weir.runtime.movable import liveness
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
