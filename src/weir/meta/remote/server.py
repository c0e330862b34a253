"""The embedded metadata store on the network, for the workers of one Weir (docs/internals/meta.md)."""

from dataclasses import dataclass, field
from ssl import SSLContext

from weir.meta.local import LocalCore
from weir.meta.remote.session import MetaSession, SessionLimits
from weir.model.errors import MetaUnavailableError
from weir.runtime import Connection, Runtime
from weir.runtime.serving import Server, ServingSettings
from weir.runtime.tasks import TaskScope
from weir.wire.meta.hello import PURPOSE
from weir.wire.proof import NONCE_BYTES, ClusterSecret, ProvingServer

_INSTANCE_BITS = 31


@dataclass(frozen=True, slots=True)
class MetaServerSettings:
    """Where to listen, what both ends must know, and what clients may cost."""

    host: str = "127.0.0.1"
    port: int = 0
    #: None: everyone is let in, which is for tests.
    secret: ClusterSecret | None = None
    max_connections: int = 1024
    limits: SessionLimits = field(default_factory=SessionLimits)


class MetaServer:
    """`start`, then `close`; the store itself belongs to whoever opened it."""

    def __init__(
        self,
        runtime: Runtime,
        core: LocalCore,
        settings: MetaServerSettings,
        *,
        tls: SSLContext | None = None,
    ) -> None:
        self._runtime = runtime
        self._core = core
        self._settings = settings
        self._instance = runtime.rng.getrandbits(_INSTANCE_BITS)
        self._durable = TaskScope("meta-server-durable")
        serving = ServingSettings(settings.host, settings.port, settings.max_connections)
        self._server: Server[MetaSession] = Server(runtime, "meta", serving, self._session, tls=tls)

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

    async def close(self) -> None:
        """Accept nothing more, tell clients, and end every connection."""
        await self._server.close(MetaUnavailableError("the metadata store shuts down"))
        await self._durable.close()

    def _session(self, connection: Connection) -> MetaSession:
        secret, proving = self._settings.secret, None
        if secret is not None:
            proving = ProvingServer(secret, PURPOSE, "", self._runtime.rng.randbytes(NONCE_BYTES))
        return MetaSession(
            self._core,
            connection,
            clock=self._runtime.clock,
            instance=self._instance,
            proving=proving,
            limits=self._settings.limits,
            durable=self._durable,
        )
