"""Who takes part in transactions, wherever they are: partitions, and groups whose positions these move."""

from typing import Protocol

from weir.broker.coordinator_shards import CoordinatorShards
from weir.broker.parts.interface import Parts
from weir.broker.peers.calls import PeerCalls, PeerHandlers
from weir.model.topics import TopicName
from weir.model.transactions import TransactionEnd
from weir.wire.peer.coordinators import EndInGroup
from weir.wire.peer.node import Done


class _Groups(Protocol):
    """What `weir.broker.groups.offsets.GroupOffsets` offers."""

    async def end(self, group: str, end: TransactionEnd) -> None: ...


class TakingPart:
    """Fills `shard.TakesPart`. Without `peers` all of them are here."""

    def __init__(
        self, parts: Parts, groups: _Groups, shards: CoordinatorShards, peers: PeerCalls | None = None
    ) -> None:
        self._parts = parts
        self._groups = groups
        self._shards = shards
        self._peers = peers

    async def end_transaction(self, part: TopicName, end: TransactionEnd) -> None:
        await self._parts.end_transaction(part, end)

    async def end_in_group(self, group: str, end: TransactionEnd) -> None:
        if self._peers is not None:
            owner = await self._shards.owner(group)
            if not owner.here:
                await self._peers.ask(owner.broker_id, EndInGroup(group, end))
                return
        await self._groups.end(group, end)

    def answer(self, handlers: PeerHandlers) -> None:
        """Answer other brokers for the groups that are here."""
        handlers.on(EndInGroup, self._end_for)

    async def _end_for(self, request: EndInGroup) -> Done:
        await self._groups.end(request.group, request.end)
        return Done()
