"""Telling the broker that gets a bundle, over the brokers' own protocol."""

from collections.abc import Awaitable, Sequence
from typing import Protocol

from weir.broker.peers.calls import PeerCalls, PeerHandlers
from weir.model.bundles import BundleName
from weir.model.errors import NotAllowedError
from weir.model.ids import LedgerId
from weir.model.topics import TopicName
from weir.stream.left import LedgerEnd, Left
from weir.wire.peer.bundles import GetReady, TakeTopic
from weir.wire.peer.node import Done
from weir.wire.state import decode_changes, encode_changes
from weir.wire.stream import decode_chain, encode_chain

#: A topic with more state than this is read by its next broker: what is sent stands in the way of others' calls.
_MOST_STATE_BYTES = 1024 * 1024
#: Its clients wait.
_PASS_ON_S = 1.0


class Expecting(Protocol):
    """Who hears what other brokers tell this one."""

    def expect(
        self, bundle: BundleName, topics: Sequence[TopicName], written: Sequence[TopicName], last_ledger: LedgerId
    ) -> Awaitable[None]: ...

    def was_left(self, topic: TopicName, left: Left, epoch: int) -> Awaitable[None]: ...


class PeerSuccessor:
    """Fills `successor.Successor`."""

    def __init__(self, peers: PeerCalls, handlers: PeerHandlers, expecting: Expecting) -> None:
        self._peers = peers
        self._expecting = expecting
        handlers.on(GetReady, self._told)
        handlers.on(TakeTopic, self._left)

    async def get_ready(
        self,
        broker_id: str,
        bundle: BundleName,
        topics: Sequence[TopicName],
        written: Sequence[TopicName],
        last_ledger: LedgerId,
    ) -> None:
        await self._peers.ask(broker_id, GetReady(bundle, tuple(topics), tuple(written), last_ledger))

    async def pass_on(self, broker_id: str, topic: TopicName, left: Left, epoch: int) -> None:
        if sum(map(len, left.state.values())) > _MOST_STATE_BYTES:
            raise NotAllowedError(f"{topic} has much state")
        end = left.ledger
        request = TakeTopic(
            topic,
            epoch,
            chain=encode_chain(left.chain),
            version=left.version,
            state=encode_changes(left.state),
            unsaved=left.unsaved,
            ledger=None if end is None else (end.end_offset, end.size_bytes, end.last_ms),
        )
        await self._peers.ask(broker_id, request, timeout_s=_PASS_ON_S)

    async def _told(self, request: GetReady) -> Done:
        last = LedgerId(request.last_ledger)
        await self._expecting.expect(request.bundle, request.topics, request.written, last)
        return Done()

    async def _left(self, request: TakeTopic) -> Done:
        state = {key: value for key, value in decode_changes(request.state).items() if value is not None}
        end = None if request.ledger is None else LedgerEnd(*request.ledger)
        left = Left(decode_chain(request.chain), request.version, end, state, request.unsaved)
        await self._expecting.was_left(request.topic, left, request.epoch)
        return Done()
