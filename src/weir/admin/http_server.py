"""HTTP on the network: the server's loop with HTTP's sessions."""

from ssl import SSLContext

from weir.admin.http import Admit, HttpSettings
from weir.admin.http_session import HttpSession
from weir.model.errors import TopicClosedError
from weir.runtime.interfaces import Connection, Runtime
from weir.runtime.request_budget import RequestBudget, RequestShare
from weir.runtime.serving import Server, ServingSettings


class HttpServer:
    """`start`, then `close`."""

    def __init__(
        self,
        runtime: Runtime,
        settings: HttpSettings,
        admit: Admit,
        *,
        tls: SSLContext | None = None,
        request_budget: RequestBudget | None = None,
    ) -> None:
        """`request_budget`: what all listeners together may receive; None: as the settings say, for this one."""
        self._clock = runtime.clock
        self._settings = settings
        self._admit = admit
        self.request_budget = (
            request_budget if request_budget is not None else RequestBudget(settings.max_received_bytes)
        )
        serving = ServingSettings(
            settings.host, settings.port, settings.max_connections, close_grace_s=settings.drain_s, reserve=True
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
        share = RequestShare(self.request_budget, self._clock)
        return HttpSession(connection, self._settings, self._admit, share, self._clock)
