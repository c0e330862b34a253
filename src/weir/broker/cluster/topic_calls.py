"""Calls between brokers about topics: handover to the successor, deletion of partitions, check-backs of half
messages.

`PeerSuccessor` announces bundles and sends the final state of topics to the next owner; `PeerParts` runs the steps
of a deletion on the owners of partitions; `CheckersElsewhere` finds producers of half messages on other brokers.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from weir.broker.api.broker import Owner
from weir.broker.api.security import Guard
from weir.broker.api.topics import HalfCheck
from weir.broker.coordination.remote_partition_ops import PASSING
from weir.broker.peers.peer_calls import PeerCalls, PeerHandlers
from weir.broker.prepared.decision_checks import DecisionCheckers
from weir.model.cluster import BundleName
from weir.model.errors import NotAllowedError, WeirError
from weir.model.ids import LedgerId
from weir.model.registry import BrokerInfo
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock
from weir.stream.handover import LedgerEnd, Left
from weir.wire.batch import decode_batch, encode_batch
from weir.wire.peer.calls import AskHalf, CheckUnused, Done, ErasePart, GetReady, HalfAsked, TakeTopic
from weir.wire.peer.protocol import PeerRequest
from weir.wire.stream import decode_chain, decode_changes, encode_chain, encode_changes

#: The next broker reads larger state from the log instead: a large request would delay other calls.
_MOST_STATE_BYTES = 1024 * 1024
#: Short, because clients of the topic wait.
_PASS_ON_S = 1.0


class Expecting(Protocol):
    """Receives announcements of handovers from other brokers."""

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
            raise NotAllowedError(f"the state of {topic} exceeds {_MOST_STATE_BYTES} bytes")
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


#: Retries cover a change of ownership, and the wait for the end of a dead owner's lease. All requests are
#: idempotent.
_ATTEMPTS = 50
_RETRY_S = 0.2


class Parts(Protocol):
    """The operations of the broker that other brokers call."""

    def owner_now(self, name: TopicName) -> Owner: ...

    async def check_unused(self, part: TopicName) -> None: ...

    async def erase(self, part: TopicName) -> None: ...


class PeerParts:
    """Fills `ports.PartsElsewhere`, and serves the requests of other brokers."""

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
        """Send a request to the current owner of the partition, which may be this broker."""
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


log = logging.getLogger(__name__)

#: Timeout of the request to another broker.
_ASK_S = 3.0


class CheckersElsewhere:
    """Queries other brokers in turn, from a different first one each time, until one has a connected producer;
    also serves such requests for producers connected to this broker."""

    def __init__(
        self,
        here: DecisionCheckers,
        guard: Guard,
        peers: PeerCalls,
        handlers: PeerHandlers,
        *,
        broker_id: str,
        brokers: Callable[[], Iterable[BrokerInfo]],
    ) -> None:
        self._here = here
        self._guard = guard
        self._peers = peers
        self._broker_id = broker_id
        self._brokers = brokers
        self._turn = 0
        handlers.on(AskHalf, self._answer)

    async def ask(self, check: HalfCheck) -> bool:
        others = [one.broker_id for one in self._brokers() if one.broker_id != self._broker_id]
        if not others:
            return False
        question = AskHalf(check.topic, check.message, b"".join(map(bytes, encode_batch(check.batch))))
        self._turn += 1
        for at in range(len(others)):
            other = others[(self._turn + at) % len(others)]
            try:
                if (await self._peers.ask(other, question, timeout_s=_ASK_S)).asked:
                    return True
            except WeirError as silent:
                log.debug(
                    "check-back request to broker %s for producers of %s failed: %s", other, check.topic, silent
                )
        return False

    async def _answer(self, asked: AskHalf) -> HalfAsked:
        check = HalfCheck(asked.topic, asked.message, decode_batch(asked.batch))
        return HalfAsked(self._here.ask(check, self._guard))
