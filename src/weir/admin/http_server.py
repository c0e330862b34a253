"""HTTP on the network: the server's loop with HTTP's sessions."""

from ssl import SSLContext

from weir.admin.http import Handler, HttpSettings
from weir.admin.http_session import HttpSession
from weir.model.errors import TopicClosedError
from weir.runtime.interfaces import Connection, Runtime
from weir.runtime.serving import Server, ServingSettings


class HttpServer:
    """`start`, then `close`."""

    def __init__(
        self, runtime: Runtime, settings: HttpSettings, handler: Handler, *, tls: SSLContext | None = None
    ) -> None:
        self._settings = settings
        self._handler = handler
        serving = ServingSettings(
            settings.host, settings.port, settings.max_connections, close_grace_s=settings.drain_s
        )
        self._server: Server[HttpSession] = Server(runtime, "http", serving, self._session, tls=tls)

    @property
    def host(self) -> str:
        return self._server.host

    @property
    def port(self) -> int:
        """The bound port; differs from the settings' if that was 0."""
        return self._server.port

    async def start(self) -> None:
        """Bind the address and serve."""
        await self._server.start()

    async def close(self) -> None:
        """Take no more; requests under way are answered first, within the time given."""
        await self._server.close(TopicClosedError("the server closes"))

    def _session(self, connection: Connection) -> HttpSession:
        return HttpSession(connection, self._settings, self._handler)
