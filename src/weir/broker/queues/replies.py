"""Answers without a queue: a name says which broker has whoever waits, and that broker is asked."""

from collections.abc import Sequence

from weir.broker.api import ReplyReceiver
from weir.broker.peers.calls import PeerCalls, PeerHandlers
from weir.model.errors import WeirError
from weir.model.ids import Buffer
from weir.runtime.interfaces import Runtime
from weir.wire.peer.queues import DeliverReply, ReplyTaken

_SECRET_BITS = 128


class ReplyReceivers:
    """Fills `api.DirectReplies`: those of this broker, and through `peers` those of others."""

    def __init__(self, broker_id: str, runtime: Runtime, peers: PeerCalls | None, handlers: PeerHandlers) -> None:
        self._broker_id = broker_id
        self._rng = runtime.rng
        self._peers = peers
        self._receivers: dict[str, ReplyReceiver] = {}
        handlers.on(DeliverReply, self._answer)

    def expect(self, receiver: ReplyReceiver) -> str:
        name = f"{self._rng.getrandbits(_SECRET_BITS):032x}.{self._broker_id}"
        self._receivers[name] = receiver
        return name

    def forget(self, name: str) -> None:
        self._receivers.pop(name, None)

    async def expected(self, name: str) -> bool:
        return await self.deliver(name, ())

    async def deliver(self, name: str, parts: Sequence[Buffer]) -> bool:
        owner = name.partition(".")[2]
        if owner == self._broker_id or self._peers is None or not owner:
            return self._give(name, parts)
        try:
            answer = await self._peers.ask(owner, DeliverReply(name, tuple(map(bytes, parts))))
        except WeirError:  # it is gone, and so is whoever waited there
            return False
        return answer.taken

    def _give(self, name: str, parts: Sequence[Buffer]) -> bool:
        receiver = self._receivers.get(name)
        if receiver is not None and parts:
            receiver.take_reply(parts)
        return receiver is not None

    async def _answer(self, request: DeliverReply) -> ReplyTaken:
        return ReplyTaken(self._give(request.name, request.parts))
