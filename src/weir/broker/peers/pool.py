"""The other brokers, one kept connection to each: how a broker's parts ask them."""

from collections.abc import Callable, Iterable

from weir.broker.peers.calls import PeerHandlers
from weir.broker.peers.client import PeerClient
from weir.broker.peers.metrics import PeerMetrics
from weir.broker.peers.settings import PeerClientSettings, PeerCredentials
from weir.model.errors import PeerUnavailableError
from weir.model.registry import BrokerInfo
from weir.runtime.interfaces import Runtime
from weir.wire.peer.calls import call_of
from weir.wire.peer.values import A, PeerRequest


class PeerPool:
    """Fills `PeerCalls`. Brokers are found by how they are registered; this one is called directly."""

    def __init__(
        self,
        runtime: Runtime,
        broker_id: str,
        handlers: PeerHandlers,
        brokers: Callable[[], Iterable[BrokerInfo]],
        *,
        settings: PeerClientSettings | None = None,
        credentials: PeerCredentials | None = None,
        metrics: PeerMetrics | None = None,
    ) -> None:
        """`handlers`: what this broker answers, to itself too; `brokers`: those that are registered now."""
        self._runtime = runtime
        self._broker_id = broker_id
        self._handlers = handlers
        self._brokers = brokers
        self._settings = settings or PeerClientSettings()
        self._credentials = credentials or PeerCredentials()
        self._metrics = metrics or PeerMetrics()
        self._clients: dict[str, PeerClient] = {}
        self._closed = False

    @property
    def connections(self) -> int:
        return sum(client.connected for client in self._clients.values())

    async def ask(self, broker_id: str, request: PeerRequest[A], *, timeout_s: float | None = None) -> A:
        if broker_id == self._broker_id:
            return await self._handlers.handle(request)
        with self._metrics.asked.timing(call_of(request).name, self._runtime.clock):
            return await self._client(broker_id).ask(request, timeout_s)

    async def close(self) -> None:
        """Fail what is under way, and refuse what comes."""
        self._closed = True
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.close()

    def _client(self, broker_id: str) -> PeerClient:
        client = self._clients.get(broker_id)
        if client is not None:
            return client
        if self._closed or self._find(broker_id) is None:
            # No handle for a name that may be anything.
            raise PeerUnavailableError(f"broker {broker_id} is not registered, or this one stops", sent=False)
        self._forget_the_gone()
        client = self._clients[broker_id] = PeerClient(
            self._runtime,
            self._broker_id,
            broker_id,
            find=lambda: self._find(broker_id),
            settings=self._settings,
            credentials=self._credentials,
        )
        return client

    def _find(self, broker_id: str) -> BrokerInfo | None:
        return next((broker for broker in self._brokers() if broker.broker_id == broker_id), None)

    def _forget_the_gone(self) -> None:
        """Handles without a connection on brokers that are registered no longer."""
        live = {broker.broker_id for broker in self._brokers()}
        for broker_id, client in list(self._clients.items()):
            if broker_id not in live and not client.connected and not client.pending:
                del self._clients[broker_id]
