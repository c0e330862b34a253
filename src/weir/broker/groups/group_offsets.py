"""Positions of consumer groups: where each group is, on partitions of whatever broker (`weir.broker.parts`).

Which partitions these are is kept with the group, and so are positions that an open transaction holds ready: they
are placed, or forgotten, when it ends. In that a group takes part in a transaction as a partition does.

Positions that open transactions hold ready for consumer groups: in the groups' shards, durable with these.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from weir.broker.coordination.partition_ops import Parts
from weir.broker.coordination.shards import CoordinatorShard, CoordinatorShards
from weir.model.errors import (
    BrokerError,
    NotOwnerError,
    PeerError,
    StreamError,
    TooManyError,
    TopicClosedError,
    UnstablePositionError,
    WeirError,
)
from weir.model.topics import TopicName, full_name
from weir.model.transactions import CommittedOffset, TransactionEnd
from weir.runtime.interfaces import Clock
from weir.wire.peer.coordinator_calls import DropRule
from weir.wire.snapshots.groups import ORDER_BITS, decode_parts, decode_pending, encode_parts, encode_pending

_PENDING = "pending/"
#: Positions that one transaction may hold ready in one group.
_MOST = 100_000


@dataclass(slots=True)
class Pending:
    """What a producer's transaction will place. `round`: which of its transactions (`TransactionEnd`)."""

    round: int
    positions: dict[TopicName, CommittedOffset] = field(default_factory=dict)


class PendingPositions:
    """Of all groups of the shards that are here, by group and producer id."""

    def __init__(self) -> None:
        self._of: dict[CoordinatorShard, dict[str, dict[int, Pending]]] = {}

    def of(self, shard: CoordinatorShard, group: str) -> Mapping[int, Pending]:
        return self._groups(shard).get(group, {})

    def parts(self, shard: CoordinatorShard, group: str) -> Collection[TopicName]:
        """The partitions on which the group is about to move, or not."""
        return {part for pending in self.of(shard, group).values() for part in pending.positions}

    def put(
        self,
        shard: CoordinatorShard,
        group: str,
        producer_id: int,
        *,
        round: int,  # noqa: A002
        positions: Mapping[TopicName, CommittedOffset],
    ) -> None:
        """These, too."""
        known = self.of(shard, group).get(producer_id)
        merged = {**(known.positions if known is not None else {}), **positions}
        if len(merged) > _MOST:
            raise TooManyError(f"a transaction may move {_MOST} positions of {full_name(group)[:80]!r}")
        pending = Pending(max(round, known.round if known is not None else round), merged)
        self._groups(shard).setdefault(group, {})[producer_id] = pending
        shard.state.put(_key(group, producer_id), encode_pending(pending.round, merged))

    def delete(self, shard: CoordinatorShard, group: str, producer_id: int) -> None:
        """From the state; until it is durable that it is gone, it counts (`forget`)."""
        shard.state.delete(_key(group, producer_id))

    def forget(self, shard: CoordinatorShard, group: str, producer_id: int) -> None:
        groups = self._groups(shard)
        groups.get(group, {}).pop(producer_id, None)
        if not groups.get(group):
            groups.pop(group, None)

    def _groups(self, shard: CoordinatorShard) -> dict[str, dict[int, Pending]]:
        found = self._of.get(shard)
        if found is None:
            for other in [other for other in self._of if not other.alive]:
                del self._of[other]
            found = self._of[shard] = {}
            for key in shard.state.keys(_PENDING):
                producer_id, _, group = key.removeprefix(_PENDING).partition("/")
                of_round, positions = decode_pending(shard.state.get(key) or b"")
                # Where epochs are not kept, rounds of an earlier life say nothing.
                pending = Pending(of_round if shard.kept else 0, positions)
                found.setdefault(group, {})[int(producer_id)] = pending
            shard.on_death(lambda: self._lost(shard))
        return found

    def _lost(self, shard: CoordinatorShard) -> None:
        self._of.pop(shard, None)


def _key(group: str, producer_id: int) -> str:
    return f"{_PENDING}{producer_id}/{group}"


log = logging.getLogger(__name__)

_PARTS = "positions/"
_MISSING = object()
#: The broker's refusals that pass; for all others a position cannot be kept, now or later.
_PASSING = (TopicClosedError, NotOwnerError, PeerError)
_RETRY_PAUSE_S = 0.2


class _Asking:
    """A transaction's coordinator is asked whether it is open; `void` if it came to an end meanwhile."""

    __slots__ = ("void",)

    def __init__(self) -> None:
        self.void = False


class GroupOffsets:
    """Everything of every group that this broker coordinates. What it answers is durable."""

    def __init__(self, parts: Parts, shards: CoordinatorShards, clock: Clock) -> None:
        self._at_parts = parts
        self._shards = shards
        self._clock = clock
        self._known: dict[str, tuple[CoordinatorShard, dict[TopicName, None]]] = {}
        self._pending = PendingPositions()
        self._asking: dict[tuple[str, int], dict[_Asking, None]] = {}
        self._ending: dict[tuple[str, int], asyncio.Future[None]] = {}
        #: How many placings there were, for their order.
        self._placings = 0

    # --- committing -------------------------------------------------------------------------------------

    async def commit(
        self,
        group: str,
        positions: Mapping[TopicName, CommittedOffset],
        *,
        check: Callable[[], None] | None = None,
    ) -> dict[TopicName, WeirError | None]:
        """Place the group on each partition, back or on; answers what went wrong with which. `check` is called
        right before anything is placed, and may raise: a member may lose its place while topics are loaded."""
        shard = await self._shards.of(group)
        results = await self._at_parts.place(group, positions, order=self._order(shard), check=check)
        if self._learn(shard, group, (part for part, failure in results.items() if failure is None)):
            await shard.state.flush()
        return {part: results.get(part) for part in positions}

    def _order(self, shard: CoordinatorShard) -> int:
        """Of the next placing; 0 where there is nobody who could come too late."""
        if not self._shards.several_brokers:
            return 0
        self._placings += 1
        return shard.epoch << ORDER_BITS | self._placings

    async def delete(
        self, group: str, parts: Iterable[TopicName] | None = None
    ) -> dict[TopicName, WeirError | None]:
        """Forget positions; of all partitions, unless some are named. One that other consumers use stays, and
        is named with SubscriptionBusyError."""
        shard = await self._shards.of(group)
        wanted = list(self._parts(shard, group) if parts is None else parts)
        results = await self._at_parts.drop(group, wanted, DropRule.ALL)
        await self._forget_gone(shard, group, results)
        return {part: result if isinstance(result, WeirError) else None for part, result in results.items()}

    async def expire(self, group: str, before_ms: int) -> int | None:
        """Forget positions that were committed before then, as far as they are the group's alone; answers when
        the oldest of the others was committed, or None if none is left."""
        shard = await self._shards.of(group)
        wanted = list(self._parts(shard, group))
        results = await self._at_parts.drop(group, wanted, DropRule.EXPIRED, before_ms=before_ms)
        await self._forget_gone(shard, group, results)
        now_ms = self._clock.wall_ms()
        left = [now_ms if isinstance(result, WeirError) else result for result in results.values()]
        return min((left_ms for left_ms in left if left_ms >= 0), default=None)

    async def expire_unread(
        self, group: str, before_ms: int, topics_read: Callable[[], Collection[TopicName] | None]
    ) -> None:
        """Forget positions that were committed before then on topics that members do not read, as far as they are
        the group's alone; none if what they read cannot be told."""
        shard = await self._shards.of(group)

        def unread(part: TopicName) -> bool:
            read = topics_read()  # it may change at any time
            return read is not None and part.base not in read

        wanted = [part for part in self._parts(shard, group) if unread(part)]
        results = await self._at_parts.drop(group, wanted, DropRule.UNREAD, before_ms=before_ms, still=unread)
        await self._forget_gone(shard, group, results)

    async def _forget_gone(
        self, shard: CoordinatorShard, group: str, results: Mapping[TopicName, int | WeirError]
    ) -> None:
        if self._forget(shard, group, [part for part, result in results.items() if result == -1]):
            await shard.state.flush()

    # --- asking -----------------------------------------------------------------------------------------

    async def fetch(
        self, group: str, parts: Iterable[TopicName] | None = None, *, stable: bool = False
    ) -> dict[TopicName, CommittedOffset | WeirError]:
        """Where the group is on these partitions, or on all; those that it has no position on are missing.
        `stable`: a position that a transaction is about to move is an UnstablePositionError."""
        shard = await self._shards.of(group)
        wanted = list(self._parts(shard, group) if parts is None else parts)
        unstable = self._unstable(shard, group) if stable else ()
        found = await self._at_parts.fetch(group, wanted)
        unstable = {*unstable, *self._unstable(shard, group)} if stable else ()
        for part in wanted:
            if part in unstable:
                found[part] = UnstablePositionError(f"a transaction moves {full_name(group)!r} on {part}")
        return found

    def _unstable(self, shard: CoordinatorShard, group: str) -> Collection[TopicName]:
        return self._pending.parts(shard, group)

    async def parts(self, group: str) -> list[TopicName]:
        """The partitions that the group has committed positions on."""
        return list(self._parts(await self._shards.of(group), group))

    def knows(self, shard: CoordinatorShard, group: str) -> bool:
        """Whether the group has positions."""
        return shard.state.get(_PARTS + group) is not None

    def groups(self, shard: CoordinatorShard) -> list[str]:
        """Every group that has positions, as its shard knows it."""
        return [key.removeprefix(_PARTS) for key in shard.state.keys(_PARTS)]

    # --- transactions -----------------------------------------------------------------------------------

    async def prepare(
        self,
        group: str,
        producer_id: int,
        positions: Mapping[TopicName, CommittedOffset],
        *,
        join: Callable[[], Awaitable[int]],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Hold positions ready until the producer's transaction ends; until then they are not stable. `join` asks
        its coordinator whether the group is part of it, and answers which transaction that is (`round`). `check`
        raises if the group does not allow it, and is called at the moment at which they are taken, and before."""
        shard = await self._shards.of(group)
        check()
        while True:
            with self._asked(group, producer_id) as asking:
                of_round = await join()
            if not asking.void:  # else that was perhaps about the one that has ended
                break
        if not shard.alive:
            raise NotOwnerError(f"group {full_name(group)!r} has moved to another broker")
        check()
        self._pending.put(shard, group, producer_id, round=of_round, positions=positions)
        await _flush(shard)

    def adopt(
        self,
        shard: CoordinatorShard,
        group: str,
        producer_id: int,
        positions: Mapping[TopicName, CommittedOffset],
    ) -> None:
        """Those that a coordinator of before kept with the transaction; durable with the shard's next flush."""
        self._pending.put(shard, group, producer_id, round=0, positions=positions)

    async def end(self, group: str, end: TransactionEnd) -> None:
        """Place what the transaction holds ready, or forget it; nothing if that is done. Fine to ask again."""
        key = group, end.producer_id
        while (busy := self._ending.get(key)) is not None:
            await asyncio.wait([busy])
        ending = self._ending[key] = asyncio.get_running_loop().create_future()
        try:
            for asking in self._asking.get(key, {}):
                asking.void = True
            await self._end(group, end)
        finally:
            del self._ending[key]
            ending.set_result(None)

    async def _end(self, group: str, end: TransactionEnd) -> None:
        shard = await self._shards.of(group)
        pending = self._pending.of(shard, group).get(end.producer_id)
        if pending is None or end.round < pending.round:
            return
        if end.commit:
            await self._place(shard, group, pending.positions)
        self._pending.delete(shard, group, end.producer_id)
        await _flush(shard)  # only once they will not be moved again may others go on from there
        self._pending.forget(shard, group, end.producer_id)

    async def _place(
        self, shard: CoordinatorShard, group: str, positions: Mapping[TopicName, CommittedOffset]
    ) -> None:
        """Until each of them is placed, or cannot be for good."""
        left = dict(positions)
        while left:
            results = await self.commit(group, left)
            left = {part: left[part] for part, failure in results.items() if _is_passing(failure)}
            for part, failure in results.items():
                if failure is not None:
                    word = "is tried again" if part in left else "is not kept"
                    log.warning("the position of %s on %s %s: %s", group, part, word, failure)
            if left:
                await self._clock.sleep(_RETRY_PAUSE_S)
            if not shard.alive:
                raise NotOwnerError(f"group {full_name(group)!r} has moved to another broker")

    @contextmanager
    def _asked(self, group: str, producer_id: int) -> Iterator[_Asking]:
        key, asking = (group, producer_id), _Asking()
        self._asking.setdefault(key, {})[asking] = None
        try:
            yield asking
        finally:
            del self._asking[key][asking]
            if not self._asking[key]:
                del self._asking[key]

    # --- which partitions a group has positions on --------------------------------------------------------

    def _parts(self, shard: CoordinatorShard, group: str) -> dict[TopicName, None]:
        known = self._known.get(group)
        if known is not None and known[0] is shard:
            return known[1]
        parts = dict.fromkeys(decode_parts(shard.state.get(_PARTS + group) or b"[]"))
        if parts:  # of groups that nobody ever heard of, nothing is remembered
            self._known[group] = (shard, parts)
        return parts

    def _learn(self, shard: CoordinatorShard, group: str, parts: Iterable[TopicName]) -> bool:
        known = self._parts(shard, group)
        new = [part for part in parts if part not in known]
        known.update(dict.fromkeys(new))
        if new:
            self._known[group] = (shard, known)
            shard.state.put(_PARTS + group, encode_parts(known))
        return bool(new)

    def _forget(self, shard: CoordinatorShard, group: str, parts: Iterable[TopicName]) -> bool:
        known = self._parts(shard, group)
        gone = [part for part in parts if known.pop(part, _MISSING) is None]
        if not known:
            shard.state.delete(_PARTS + group)
            self._known.pop(group, None)
        elif gone:
            shard.state.put(_PARTS + group, encode_parts(known))
        return bool(gone)


def _is_passing(failure: WeirError | None) -> bool:
    return failure is not None and (not isinstance(failure, BrokerError) or isinstance(failure, _PASSING))


async def _flush(shard: CoordinatorShard) -> None:
    try:
        await shard.state.flush()
    except StreamError as lost:
        raise NotOwnerError(f"the group's coordinator has moved: {lost.what}") from lost
