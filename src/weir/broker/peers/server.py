"""The listener that other brokers come to; nobody else gets a word out of it."""

import logging

from weir.broker.peers.calls import PeerHandlers
from weir.broker.peers.metrics import PeerMetrics
from weir.broker.peers.session import PeerSession
from weir.broker.peers.settings import PURPOSE, PeerCredentials, PeerServerSettings
from weir.model.errors import PeerUnavailableError
from weir.runtime.interfaces import Connection, Runtime
from weir.runtime.request_budget import RequestBudget
from weir.runtime.serving import Server, ServingSettings
from weir.runtime.strangers import Strangers
from weir.runtime.tasks import TaskScope
from weir.wire.proof import NONCE_BYTES, ProvingServer

log = logging.getLogger(__name__)

_REQUEST_BYTES = 256 * 1024 * 1024


class PeerServer:
    """Answers other brokers with what the handlers say. `start`, then `close`."""

    def __init__(
        self,
        runtime: Runtime,
        broker_id: str,
        handlers: PeerHandlers,
        settings: PeerServerSettings,
        *,
        credentials: PeerCredentials | None = None,
        metrics: PeerMetrics | None = None,
        request_budget: RequestBudget | None = None,
    ) -> None:
        """`request_budget`: what all listeners of this process may receive together."""
        self._runtime = runtime
        self._broker_id = broker_id
        self._handlers = handlers
        self._limits = settings.limits
        self._credentials = credentials or PeerCredentials()
        self._metrics = metrics or PeerMetrics()
        self._request_budget = request_budget or RequestBudget(_REQUEST_BYTES)
        self._work = TaskScope(f"peer-server {broker_id}")
        self._strangers: Strangers[PeerSession] = Strangers(settings.max_strangers)
        serving = ServingSettings(
            settings.host,
            settings.port,
            settings.max_connections + settings.max_strangers,
            settings.sweep_interval_s,
            settings.close_grace_s,
        )
        self._server: Server[PeerSession] = Server(
            runtime, "peer", serving, self._session, tls=self._credentials.server_tls
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
        log.info("broker %s listens to other brokers on %s:%d", self._broker_id, self.host, self.port)

    async def close(self) -> None:
        """Accept nothing more, answer what was accepted within the grace time, and end every connection."""
        await self._server.close(PeerUnavailableError(f"broker {self._broker_id} shuts down"))
        await self._work.close()

    def _session(self, connection: Connection) -> PeerSession:
        secret, proving = self._credentials.secret, None
        if secret is not None:
            nonce = self._runtime.rng.randbytes(NONCE_BYTES)
            proving = ProvingServer(secret, PURPOSE, self._broker_id, nonce)
        session = PeerSession(
            self._broker_id,
            self._handlers,
            connection,
            clock=self._runtime.clock,
            limits=self._limits,
            work=self._work,
            metrics=self._metrics,
            request_budget=self._request_budget,
            proving=proving,
            on_settled=self._strangers.settled,
        )
        self._strangers.came(session)
        return session
