"""The Pulsar gateway on the network: accepts connections, bounds their number, and ends them in order."""

import asyncio
import logging
from ssl import SSLContext

from weir.broker.api import Broker
from weir.gateway.pulsar.ports import NoSchemas, NoTopicLists, Schemas, TopicLists
from weir.gateway.pulsar.registry import load_handlers
from weir.gateway.pulsar.session import Services, Session
from weir.gateway.pulsar.settings import PulsarSettings
from weir.model.errors import ConnectionLostError, NetworkError, TooManyError, TopicClosedError
from weir.runtime.interfaces import Connection, Listener, Runtime
from weir.runtime.tasks import TaskScope

log = logging.getLogger(__name__)

_ACCEPT_PAUSE_S = 0.1
#: So many connections over the limit are told why they are refused; the rest just break.
_REFUSALS_AT_ONCE = 64


class PulsarServer:
    """Serves one broker on one address. `start`, then `close`; the broker belongs to whoever made it."""

    def __init__(
        self,
        runtime: Runtime,
        broker: Broker,
        settings: PulsarSettings,
        *,
        schemas: Schemas | None = None,
        lists: TopicLists | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        load_handlers()
        self._runtime = runtime
        self._services = Services(broker, schemas or NoSchemas(), lists or NoTopicLists())
        self._settings = settings
        self._tls = tls
        self._tasks = TaskScope("pulsar-server")
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
    def service_url(self) -> str:
        """How clients reach it."""
        scheme = "pulsar" if self._tls is None else "pulsar+ssl"
        return self._settings.advertise or f"{scheme}://{self.host}:{self.port}"

    @property
    def connections(self) -> int:
        return len(self._sessions)

    async def start(self) -> None:
        """Bind, or raise AddressInUseError; then accept in the background."""
        settings = self._settings
        self._listener = await self._runtime.net.listen(settings.host, settings.port, tls=self._tls)
        self._tasks.spawn(self._accept(self._listener), "accept")
        self._tasks.spawn(self._sweep(), "sweep")
        log.info("Pulsar clients are served on %s", self.service_url)

    async def close(self) -> None:
        """Accept nothing more, store what was accepted within the grace time, and end every connection."""
        if self._listener is not None:
            self._listener.close()
        await self._tasks.close()
        running = list(self._sessions.values())
        for session in self._sessions:
            session.end(TopicClosedError("the broker shuts down"))
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
        session = Session(
            self._services,
            connection,
            clock=self._runtime.clock,
            limits=self._settings.limits,
            service_url=self.service_url,
        )
        if len(self._sessions) >= limit:
            log.warning("connection of %s is refused: %d are open", connection.peer, limit)
            session.end(TooManyError(f"this broker has {limit} connections, which is its limit"))
        task = asyncio.get_running_loop().create_task(session.run(), name=f"pulsar session {connection.peer}")
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
                else:
                    session.look_around()
