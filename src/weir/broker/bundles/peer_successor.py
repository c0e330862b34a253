"""Telling the broker that gets a bundle, over the brokers' own protocol."""

from collections.abc import Awaitable, Callable, Sequence

from weir.broker.peers.calls import PeerCalls, PeerHandlers
from weir.model.bundles import BundleName
from weir.model.topics import TopicName
from weir.wire.peer.bundles import GetReady
from weir.wire.peer.node import Done


class PeerSuccessor:
    """Fills `successor.Successor`, and lets `expect` hear what other brokers tell this one."""

    def __init__(
        self,
        peers: PeerCalls,
        handlers: PeerHandlers,
        expect: Callable[[BundleName, Sequence[TopicName], Sequence[TopicName]], Awaitable[None]],
    ) -> None:
        self._peers = peers
        self._expect = expect
        handlers.on(GetReady, self._told)

    async def get_ready(
        self, broker_id: str, bundle: BundleName, topics: Sequence[TopicName], written: Sequence[TopicName]
    ) -> None:
        await self._peers.ask(broker_id, GetReady(bundle, tuple(topics), tuple(written)))

    async def _told(self, request: GetReady) -> Done:
        await self._expect(request.bundle, request.topics, request.written)
        return Done()
