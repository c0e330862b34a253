"""The bookie on the network."""

import logging
from dataclasses import dataclass, field
from ssl import SSLContext

from weir.bookie.serving import Served, SessionLimits
from weir.bookie.session import Session
from weir.model.errors import BookieBusyError, BookieUnavailableError, WeirError
from weir.model.ids import BookieId
from weir.runtime.interfaces import Connection, Runtime
from weir.runtime.serving import Server, ServingSettings
from weir.runtime.strangers import Strangers
from weir.runtime.tasks import TaskScope
from weir.wire.bookie_hello import PURPOSE
from weir.wire.proof import NONCE_BYTES, ClusterSecret, ProvingServer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where to listen, and what clients may cost."""

    host: str = "127.0.0.1"
    port: int = 0
    max_connections: int = 1024
    #: Connections that have not proved yet that they are of the cluster; of more, the oldest goes.
    max_strangers: int = 128
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
        secret: ClusterSecret | None = None,
    ) -> None:
        """`secret`: clients prove that they know it before anything else is read of them."""
        self._rng = runtime.rng
        self._secret = secret
        self._strangers: Strangers[Session] = Strangers(settings.max_strangers)
        self._clock = runtime.clock
        self._bookie = bookie
        self._bookie_id = bookie_id
        self._limits = settings.limits
        self._durable = TaskScope("bookie-server-durable")
        serving = ServingSettings(
            settings.host,
            settings.port,
            settings.max_connections,
            settings.sweep_interval_s,
            settings.close_grace_s,
        )
        self._server: Server[Session] = Server(
            runtime, "bookie", serving, self._session, tls=tls, too_many=_too_many
        )

    @property
    def host(self) -> str:
        return self._server.host

    @property
    def port(self) -> int:
        """The bound port; differs from the settings' if that was 0."""
        return self._server.port

    @property
    def connections(self) -> int:
        return len(self._server.sessions)

    async def start(self) -> None:
        """Bind, or raise AddressInUseError; then accept in the background."""
        await self._server.start()
        log.info("bookie %s listens on %s:%d", self._bookie_id, self.host, self.port)

    async def close(self) -> None:
        """Accept nothing more, answer what was accepted within the grace time, and end every connection."""
        await self._server.close(BookieUnavailableError(f"bookie {self._bookie_id} shuts down"))
        await self._durable.close()

    def _session(self, connection: Connection) -> Session:
        proving = None
        if self._secret is not None:
            nonce = self._rng.randbytes(NONCE_BYTES)
            proving = ProvingServer(self._secret, PURPOSE, self._bookie_id, nonce)
        session = Session(
            self._bookie,
            self._bookie_id,
            connection,
            clock=self._clock,
            limits=self._limits,
            durable=self._durable,
            proving=proving,
            on_settled=self._strangers.settled,
        )
        if proving is not None:
            self._strangers.came(session)
        return session


def _too_many(limit: int) -> WeirError:
    return BookieBusyError(f"this bookie has {limit} connections, which is its limit")
