"""Parts of a topic that other brokers have: they are asked for what a deletion needs, and are told when to
delete."""

from typing import Protocol

from weir.broker.api import Owner
from weir.broker.parts.routed import PASSING
from weir.broker.peers.calls import PeerCalls, PeerHandlers
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock
from weir.wire.peer.bundles import CheckUnused, ErasePart
from weir.wire.peer.node import Done
from weir.wire.peer.values import PeerRequest

#: The owner may change while it is asked, or be gone: then the end of its lease is waited for, and who comes next.
#: All of it may be asked twice.
_ATTEMPTS = 50
_RETRY_S = 0.2


class Parts(Protocol):
    """The broker, as far as others ask it."""

    def owner_now(self, name: TopicName) -> Owner: ...

    async def check_unused(self, part: TopicName) -> None: ...

    async def erase(self, part: TopicName) -> None: ...


class PeerParts:
    """Fills `ports.PartsElsewhere`, and answers those of other brokers."""

    def __init__(self, clock: Clock, peers: PeerCalls, handlers: PeerHandlers, broker: Parts) -> None:
        self._clock = clock
        self._peers = peers
        self._broker = broker
        handlers.on(CheckUnused, self._check_unused)
        handlers.on(ErasePart, self._erase)

    async def check_unused(self, part: TopicName) -> None:
        await self._ask(part, CheckUnused(part))

    async def erase(self, part: TopicName) -> None:
        await self._ask(part, ErasePart(part))

    async def _ask(self, part: TopicName, request: PeerRequest[Done]) -> None:
        """Of its owner, whoever that is by then: this broker, too, which is asked like others."""
        for attempt in range(_ATTEMPTS):
            try:
                await self._peers.ask(self._broker.owner_now(part).broker_id, request)
                return
            except PASSING:
                if attempt == _ATTEMPTS - 1:
                    raise
                await self._clock.sleep(_RETRY_S)

    async def _check_unused(self, request: CheckUnused) -> Done:
        await self._broker.check_unused(request.part)
        return Done()

    async def _erase(self, request: ErasePart) -> Done:
        await self._broker.erase(request.part)
        return Done()
