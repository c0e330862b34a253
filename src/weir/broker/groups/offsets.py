"""Positions of consumer groups: the cursors of durable subscriptions, placed by whoever consumes.

A group has a subscription of its name (as its tenant's clients say it) on every partition that it has committed a
position for. What it said with the position (the exact number, which may lie beyond the end; a note; when) lies
beside the cursor in the topic's state, and holds for as long as nobody else moves the cursor. Which partitions
these are is kept with the group.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from weir.broker.api import CommittedOffset, StartAt
from weir.broker.coordinator_shards import CoordinatorShard, CoordinatorShards
from weir.broker.dispatch.subscription import RETAINS, Subscription, commit_key
from weir.broker.groups.query_progress import parse_progress
from weir.broker.topic.opening import AnyTopic
from weir.broker.topic.topic import BrokerTopic
from weir.model.errors import (
    CommitTooLargeError,
    NotAllowedError,
    SubscriptionBusyError,
    TopicNotFoundError,
    UnstablePositionError,
    WeirError,
    WireError,
)
from weir.model.owned_names import full_name, plain_name
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock
from weir.stream.state import StateLog
from weir.wire.snapshots.groups import decode_parts, encode_parts
from weir.wire.snapshots.positions import StoredPosition, decode_position, encode_position

#: Topics that are loaded at the same time for one request.
_AT_ONCE = 64
#: Characters, as Kafka counts.
_MAX_METADATA = 4096


class _Broker(Protocol):
    async def load(self, name: TopicName, *, create: bool = True) -> AnyTopic: ...


class GroupOffsets:
    """Everything of every group that this broker coordinates. What it answers is durable."""

    def __init__(self, broker: _Broker, shards: CoordinatorShards, clock: Clock) -> None:
        self._broker = broker
        self._shards = shards
        self._clock = clock
        self._known: dict[str, tuple[CoordinatorShard, dict[TopicName, None]]] = {}
        #: Positions that an open transaction will move: producer ids by partition, by group.
        self._pending: dict[str, dict[TopicName, dict[int, None]]] = {}

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
        topics, failed = await self._load(positions)
        if check is not None:
            check()
        now_ms = self._clock.wall_ms()
        for part, topic in list(topics.items()):
            try:
                _place(topic, group, replace(positions[part], commit_ms=now_ms))
            except WeirError as refused:
                failed[part] = refused
                del topics[part]
        learned = self._learn(shard, group, topics)
        failed |= await _flushed({part: topic.state for part, topic in topics.items()})
        if learned:
            await shard.state.flush()
        return {part: failed.get(part) for part in positions}

    async def delete(
        self, group: str, parts: Iterable[TopicName] | None = None
    ) -> dict[TopicName, WeirError | None]:
        """Forget positions; of all partitions, unless some are named. One that other consumers use stays, and
        is named with SubscriptionBusyError."""
        shard = await self._shards.of(group)
        wanted = list(self._parts(shard, group) if parts is None else parts)
        topics, failed = await self._load(wanted)
        for part, topic in list(topics.items()):
            subscription = _subscription(topic, group)
            if subscription is None:
                continue
            if subscription.consumers:
                failed[part] = SubscriptionBusyError(f"{part} has consumers of subscription {plain_name(group)!r}")
                del topics[part]
            else:
                subscription.end("the group's position is deleted")
        failed |= await _flushed({part: topic.state for part, topic in topics.items()})
        gone = [part for part in wanted if isinstance(failed.get(part), TopicNotFoundError | None)]
        if self._forget(shard, group, gone):
            await shard.state.flush()
        return {part: None if part in gone else failed[part] for part in wanted}

    async def expire(self, group: str, before_ms: int) -> int | None:
        """Forget positions that were committed before then, as far as they are the group's alone; answers when
        the oldest of the others was committed, or None if none is left."""
        shard = await self._shards.of(group)
        parts = self._parts(shard, group)
        topics, failed = await self._load(parts)
        gone = [part for part, why in failed.items() if isinstance(why, TopicNotFoundError)]
        left: int | None = None if len(gone) == len(failed) else self._clock.wall_ms()
        for part, topic in topics.items():
            subscription = _subscription(topic, group)
            if subscription is not None and not subscription.retains and not subscription.consumers:
                at_ms = _committed(topic, subscription).commit_ms
                if at_ms >= before_ms:
                    left = at_ms if left is None else min(left, at_ms)
                    continue
                subscription.end("the group's position has expired")
            gone.append(part)
        await _flushed({part: topics[part].state for part in gone if part in topics})
        if self._forget(shard, group, gone):
            await shard.state.flush()
        return left

    async def expire_unread(
        self, group: str, before_ms: int, topics_read: Callable[[], Collection[TopicName] | None]
    ) -> None:
        """Forget positions that were committed before then on topics that members do not read, as far as they are
        the group's alone; none if what they read cannot be told."""
        shard = await self._shards.of(group)
        read = topics_read()
        unread = [] if read is None else [part for part in self._parts(shard, group) if part.base not in read]
        topics, failed = await self._load(unread)
        read = topics_read()  # it may have changed meanwhile
        if read is None:
            return
        gone = [part for part, why in failed.items() if isinstance(why, TopicNotFoundError)]
        for part, topic in topics.items():
            subscription = _subscription(topic, group)
            if subscription is None or subscription.retains or subscription.consumers or part.base in read:
                continue
            if 0 < _committed(topic, subscription).commit_ms < before_ms:
                subscription.end("the group reads other topics by now, and its position has expired")
                gone.append(part)
        await _flushed({part: topics[part].state for part in gone if part in topics})
        if self._forget(shard, group, gone):
            await shard.state.flush()

    # --- asking -----------------------------------------------------------------------------------------

    async def fetch(
        self, group: str, parts: Iterable[TopicName] | None = None, *, stable: bool = False
    ) -> dict[TopicName, CommittedOffset | WeirError]:
        """Where the group is on these partitions, or on all; those that it has no position on are missing.
        `stable`: a position that a transaction is about to move is an UnstablePositionError."""
        shard = await self._shards.of(group)
        wanted = list(self._parts(shard, group) if parts is None else parts)
        topics, failed = await self._load(wanted)
        found: dict[TopicName, CommittedOffset | WeirError] = {
            part: why for part, why in failed.items() if not isinstance(why, TopicNotFoundError)
        }
        pending = self._pending.get(group, {})
        for part, topic in topics.items():
            if stable and part in pending:
                found[part] = UnstablePositionError(f"a transaction moves {full_name(group)!r} on {part}")
            elif (subscription := _subscription(topic, group)) is not None:
                try:
                    found[part] = _committed(topic, subscription)
                except WireError as damaged:
                    found[part] = damaged
        # What was told must not be taken back by a crash.
        lost = await _flushed({part: topics[part].state for part in found if part in topics})
        return found | lost

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

    def pend(self, group: str, producer_id: int, parts: Iterable[TopicName]) -> None:
        """A transaction will move these positions, or not: until it is settled they are not stable."""
        pending = self._pending.setdefault(group, {})
        for part in parts:
            pending.setdefault(part, {})[producer_id] = None

    def settle(self, group: str, producer_id: int) -> None:
        """The transaction is decided, and its positions, if it moved any, are committed."""
        pending = self._pending.get(group, {})
        for part in [part for part, producers in pending.items() if producer_id in producers]:
            del pending[part][producer_id]
            if not pending[part]:
                del pending[part]
        if not pending:
            self._pending.pop(group, None)

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

    async def _load(
        self, parts: Iterable[TopicName]
    ) -> tuple[dict[TopicName, BrokerTopic], dict[TopicName, WeirError]]:
        topics: dict[TopicName, BrokerTopic] = {}
        failed: dict[TopicName, WeirError] = {}
        wanted = list(dict.fromkeys(parts))
        for first in range(0, len(wanted), _AT_ONCE):
            some = wanted[first : first + _AT_ONCE]
            for part, loaded in zip(some, await asyncio.gather(*map(self._topic, some)), strict=True):
                if isinstance(loaded, WeirError):
                    failed[part] = loaded
                else:
                    topics[part] = loaded
        return topics, failed

    async def _topic(self, part: TopicName) -> BrokerTopic | WeirError:
        try:
            topic = await self._broker.load(part, create=False)
        except WeirError as failed:
            return failed
        return topic if isinstance(topic, BrokerTopic) else NotAllowedError(f"{part} keeps no positions")


_PARTS = "positions/"
_MISSING = object()


def _place(topic: BrokerTopic, group: str, position: CommittedOffset) -> None:
    if len(position.metadata) > _MAX_METADATA:
        raise CommitTooLargeError(f"a position may have {_MAX_METADATA} characters of metadata")
    # A number below zero is kept as any other, as Kafka does: who asks is told it, and takes it for none at all
    # (`auto.offset.reset`). Of a subscription that means that nothing counts as read.
    at = max(0, position.offset)
    start = StartAt(offset=at)
    subscription = topic.ensure_subscription(plain_name(group), start, {RETAINS: "false"})
    query = parse_progress(position.metadata)
    if query is not None and query.retain and not subscription.retains:
        subscription.properties[RETAINS] = "true"
        subscription.save()
    subscription.place(at)
    stored = StoredPosition(position, subscription.cursor.mark_delete + 1)
    topic.state.put(commit_key(plain_name(group)), encode_position(stored))


def _subscription(topic: BrokerTopic, group: str) -> Subscription | None:
    found = topic.subscriptions.get(plain_name(group))
    return found if found is not None and found.durable else None


def _committed(topic: BrokerTopic, subscription: Subscription) -> CommittedOffset:
    """What the group said last, unless somebody else has moved the cursor since."""
    at = subscription.cursor.mark_delete + 1
    data = topic.state.get(commit_key(subscription.name))
    if data is None:
        return CommittedOffset(at)
    stored = decode_position(data, f"the position of {subscription.name!r}")
    return stored.said if stored.placed == at else CommittedOffset(at, commit_ms=stored.said.commit_ms)


async def _flushed(states: Mapping[TopicName, StateLog]) -> dict[TopicName, WeirError]:
    """Make what was set durable; answers what could not be."""

    async def flush(state: StateLog) -> WeirError | None:
        try:
            await state.flush()
        except WeirError as failed:
            return failed
        return None

    ended: Sequence[WeirError | None] = await asyncio.gather(*map(flush, states.values()))
    return {part: failure for part, failure in zip(states, ended, strict=True) if failure is not None}
