"""Operations of coordinators on the partitions of a cluster: local, or by calls to the owners.

The owner of a partition may change at any time: a former owner refuses the call, and the caller finds the new
owner. All operations are idempotent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Protocol, TypeVar

from weir.broker.api.broker import Owner
from weir.broker.coordination.partition_ops import Parts
from weir.broker.peers.peer_calls import PeerCalls, PeerHandlers
from weir.model.errors import NotOwnerError, PeerBusyError, PeerUnavailableError, TopicClosedError, WeirError
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset, TransactionEnd
from weir.runtime.interfaces import Clock
from weir.wire.peer.calls import Done
from weir.wire.peer.coordinator_calls import (
    DropPositions,
    DropRule,
    EndInPart,
    FetchPositions,
    PartDropped,
    PartPosition,
    PartPositions,
    PartsDropped,
    PlacePositions,
)
from weir.wire.peer.protocol import error_of, failure_of

R = TypeVar("R")

#: Attempts, with pauses, to reach the owner of a partition before the error is returned.
_ATTEMPTS = 4
_PAUSE_S = 0.2
#: Errors that a retry at the new owner of the partition may resolve.
PASSING = (NotOwnerError, TopicClosedError, PeerUnavailableError, PeerBusyError)
#: Limit of partitions per call.
_AT_ONCE = 1000


class _Broker(Protocol):
    async def holder(self, name: TopicName) -> Owner: ...


class RoutedParts:
    """Fills `Parts`; uses `local` for partitions of this broker."""

    def __init__(self, local: Parts, broker: _Broker, peers: PeerCalls, clock: Clock) -> None:
        self._local = local
        self._broker = broker
        self._peers = peers
        self._clock = clock

    async def end_transaction(self, part: TopicName, end: TransactionEnd) -> None:
        """No retries here: the caller repeats the call until the transaction has ended."""
        owner = await self._broker.holder(part)
        if owner.here:
            await self._local.end_transaction(part, end)
        else:
            await self._peers.ask(owner.broker_id, EndInPart(part, end))

    async def place(
        self,
        group: str,
        positions: Mapping[TopicName, CommittedOffset],
        *,
        order: int = 0,
        check: Callable[[], None] | None = None,
    ) -> dict[TopicName, WeirError | None]:
        """An error of `check` is a result per partition: positions on others may be set already. For a partition
        with an earlier unanswered call, the result is that the outcome is unknown."""
        refusal = _Refusal(check)
        asked: dict[TopicName, None] = {}

        async def here(parts: list[TopicName]) -> dict[TopicName, WeirError | None]:
            wanted = {part: positions[part] for part in parts}
            try:
                return await self._local.place(group, wanted, order=order, check=refusal)
            except WeirError as failed:
                if failed is not refusal.said:
                    raise
                return {part: _unknown(part) if part in asked else failed for part in parts}

        async def there(broker_id: str, parts: list[TopicName]) -> dict[TopicName, WeirError | None]:
            try:
                refusal()
            except WeirError as failed:
                return {part: _unknown(part) if part in asked else failed for part in parts}
            asked.update(dict.fromkeys(parts))
            wanted = tuple(PartPosition(part, positions[part]) for part in parts)
            answer = await self._peers.ask(broker_id, PlacePositions(group, order, wanted))
            return {one.part: None if one.failure is None else error_of(one.failure) for one in answer.found}

        return await self._routed(positions, here, there)

    async def fetch(self, group: str, parts: Iterable[TopicName]) -> dict[TopicName, CommittedOffset | WeirError]:
        async def here(some: list[TopicName]) -> dict[TopicName, CommittedOffset | WeirError | None]:
            return dict.fromkeys(some, None) | await self._local.fetch(group, some)

        async def there(
            broker_id: str, some: list[TopicName]
        ) -> dict[TopicName, CommittedOffset | WeirError | None]:
            answer = await self._peers.ask(broker_id, FetchPositions(group, tuple(some)))
            return {one.part: _position(one) for one in answer.found}

        found = await self._routed(parts, here, there)
        return {part: position for part, position in found.items() if position is not None}

    async def drop(
        self,
        group: str,
        parts: Iterable[TopicName],
        rule: DropRule,
        *,
        before_ms: int = 0,
        still: Callable[[TopicName], bool] = lambda part: True,
    ) -> dict[TopicName, int | WeirError]:
        async def here(some: list[TopicName]) -> dict[TopicName, int | WeirError]:
            return await self._local.drop(group, some, rule, before_ms=before_ms, still=still)

        async def there(broker_id: str, some: list[TopicName]) -> dict[TopicName, int | WeirError]:
            wanted = [part for part in some if still(part)]
            found: dict[TopicName, int | WeirError] = dict.fromkeys(some, self._clock.wall_ms())
            answer = await self._peers.ask(broker_id, DropPositions(group, tuple(wanted), rule, before_ms))
            for one in answer.results:
                found[one.part] = one.left_ms if one.failure is None else error_of(one.failure)
            return found

        return await self._routed(parts, here, there)

    async def _routed(
        self,
        parts: Iterable[TopicName],
        here: Callable[[list[TopicName]], Awaitable[dict[TopicName, R]]],
        there: Callable[[str, list[TopicName]], Awaitable[dict[TopicName, R]]],
    ) -> dict[TopicName, R | WeirError]:
        """Call the owner of each partition; repeat the call for partitions that moved."""
        wanted = list(dict.fromkeys(parts))
        results: dict[TopicName, R | WeirError] = {}
        left = wanted
        for attempt in range(_ATTEMPTS):
            if attempt:
                await self._clock.sleep(_PAUSE_S)
            work = [
                self._asked(partial(here) if broker_id is None else partial(there, broker_id), some)
                for broker_id, some in await self._by_owner(left)
            ]
            for found in await asyncio.gather(*work):
                results |= found
            left = [part for part in left if isinstance(results.get(part), PASSING)]
            if not left:
                break
        return {part: results[part] for part in wanted if part in results}

    async def _by_owner(self, parts: list[TopicName]) -> list[tuple[str | None, list[TopicName]]]:
        """Partitions by owner; None is this broker."""
        owned: dict[str | None, list[TopicName]] = {}
        for part in parts:
            owner = await self._broker.holder(part)
            owned.setdefault(None if owner.here else owner.broker_id, []).append(part)
        return [
            (broker_id, some[first : first + _AT_ONCE])
            for broker_id, some in owned.items()
            for first in range(0, len(some), _AT_ONCE)
        ]

    async def _asked(
        self, ask: Callable[[list[TopicName]], Awaitable[dict[TopicName, R]]], parts: list[TopicName]
    ) -> dict[TopicName, R | WeirError]:
        try:
            return dict(await ask(parts))
        except PASSING as failed:
            return dict.fromkeys(parts, failed)


class _Refusal:
    """A check, and the error that it raised."""

    def __init__(self, check: Callable[[], None] | None) -> None:
        self._check = check
        self.said: WeirError | None = None

    def __call__(self) -> None:
        try:
            if self._check is not None:
                self._check()
        except WeirError as failed:
            self.said = failed
            raise


def _unknown(part: TopicName) -> WeirError:
    return PeerUnavailableError(f"the outcome of the commit on {part} is unknown")


def _position(one: PartPosition) -> CommittedOffset | WeirError | None:
    return one.position if one.failure is None else error_of(one.failure)


class PartsService:
    """Serves calls from coordinators on other brokers."""

    def __init__(self, local: Parts) -> None:
        self._local = local

    def answer(self, handlers: PeerHandlers) -> None:
        handlers.on(EndInPart, self._end)
        handlers.on(PlacePositions, self._place)
        handlers.on(FetchPositions, self._fetch)
        handlers.on(DropPositions, self._drop)

    async def _end(self, request: EndInPart) -> Done:
        await self._local.end_transaction(request.part, request.end)
        return Done()

    async def _place(self, request: PlacePositions) -> PartPositions:
        wanted = {one.part: one.position for one in request.positions if one.position is not None}
        results = await self._local.place(request.group, wanted, order=request.order)
        return PartPositions(
            tuple(
                PartPosition(part, failure=None if failure is None else failure_of(failure))
                for part, failure in results.items()
            )
        )

    async def _fetch(self, request: FetchPositions) -> PartPositions:
        results = await self._local.fetch(request.group, request.parts)
        return PartPositions(tuple(_told(part, results.get(part)) for part in request.parts))

    async def _drop(self, request: DropPositions) -> PartsDropped:
        results = await self._local.drop(request.group, request.parts, request.rule, before_ms=request.before_ms)
        return PartsDropped(
            tuple(
                PartDropped(part, failure=failure_of(result))
                if isinstance(result, WeirError)
                else PartDropped(part, result)
                for part, result in results.items()
            )
        )


def _told(part: TopicName, found: CommittedOffset | WeirError | None) -> PartPosition:
    if isinstance(found, WeirError):
        return PartPosition(part, failure=failure_of(found))
    return PartPosition(part, found)
