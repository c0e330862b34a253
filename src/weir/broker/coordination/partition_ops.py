"""Operations of group and transaction coordinators on partitions: the interface, and its local implementation.

Committed offsets are cursors of durable subscriptions: a group has a subscription of its name (the plain name that
its tenant's clients use) on every partition with a committed offset. The commit's exact offset, which may be
beyond the end, its metadata and its time are stored with the cursor in the topic's state, and are valid until
another client moves the cursor.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from weir.broker.api.consumers import StartAt
from weir.broker.subscriptions.subscription import Subscription
from weir.broker.subscriptions.subscription_state import RETAINS, commit_key, parse_progress
from weir.broker.topics.topic import AnyTopic, BrokerTopic
from weir.model.errors import (
    CommitTooLargeError,
    NotAllowedError,
    NotOwnerError,
    SubscriptionBusyError,
    TopicNotFoundError,
    WeirError,
    WireError,
)
from weir.model.topics import TopicName, plain_name
from weir.model.transactions import CommittedOffset, TransactionEnd
from weir.runtime.interfaces import Clock
from weir.stream.state_log import StateLog
from weir.wire.peer.coordinator_calls import DropRule
from weir.wire.snapshots.groups import ORDER_BITS, StoredPosition, decode_position, encode_position


class Parts(Protocol):
    """Results are durable. Operations on several partitions return one result per partition."""

    async def end_transaction(self, part: TopicName, end: TransactionEnd) -> None:
        """Store the marker of a decided transaction, unless it has no open messages in the partition.
        Idempotent."""

    async def place(
        self,
        group: str,
        positions: Mapping[TopicName, CommittedOffset],
        *,
        order: int = 0,
        check: Callable[[], None] | None = None,
    ) -> dict[TopicName, WeirError | None]:
        """Set the group's position on each partition. `order`: increases with each call for the group; a late call
        has no effect, and a call by a replaced coordinator raises NotOwnerError. `check` is called right before a
        position is set or sent, and may raise."""

    async def fetch(self, group: str, parts: Iterable[TopicName]) -> dict[TopicName, CommittedOffset | WeirError]:
        """The group's positions; omits partitions without a position and partitions that do not exist."""

    async def drop(
        self,
        group: str,
        parts: Iterable[TopicName],
        rule: DropRule,
        *,
        before_ms: int = 0,
        still: Callable[[TopicName], bool] = lambda part: True,
    ) -> dict[TopicName, int | WeirError]:
        """Delete positions. The result is -1 for a deleted one, else the commit time of the remaining one. `still`
        is called for each partition right before."""


#: Topics that one request loads concurrently.
_AT_ONCE = 64
#: In characters, as in Kafka.
_MAX_METADATA = 4096


class _Broker(Protocol):
    async def load(self, name: TopicName, *, create: bool = True) -> AnyTopic: ...


class LocalParts:
    """Fills `Parts`; NotOwnerError for a partition that another broker owns."""

    def __init__(self, broker: _Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock

    async def end_transaction(self, part: TopicName, end: TransactionEnd) -> None:
        topic = await self._broker.load(part, create=False)
        if isinstance(topic, BrokerTopic):
            await topic.end_transaction(end.producer_id, end.epoch, commit=end.commit, round=end.round)

    async def place(
        self,
        group: str,
        positions: Mapping[TopicName, CommittedOffset],
        *,
        order: int = 0,
        check: Callable[[], None] | None = None,
    ) -> dict[TopicName, WeirError | None]:
        """Calls `check` after the load of the topics: a member may leave the group meanwhile."""
        topics, failed = await self._load(positions)
        if check is not None:
            check()
        now_ms = self._clock.wall_ms()
        for part, topic in list(topics.items()):
            try:
                _place(topic, group, replace(positions[part], commit_ms=now_ms), order)
            except WeirError as refused:
                failed[part] = refused
                del topics[part]
        failed |= await _flushed({part: topic.state for part, topic in topics.items()})
        return {part: failed.get(part) for part in positions}

    async def fetch(self, group: str, parts: Iterable[TopicName]) -> dict[TopicName, CommittedOffset | WeirError]:
        topics, failed = await self._load(parts)
        found: dict[TopicName, CommittedOffset | WeirError] = {
            part: why for part, why in failed.items() if not isinstance(why, TopicNotFoundError)
        }
        for part, topic in topics.items():
            if (subscription := _subscription(topic, group)) is not None:
                try:
                    found[part] = _committed(topic, subscription)
                except WireError as damaged:
                    found[part] = damaged
        # A crash must not revert positions that were returned.
        lost = await _flushed({part: topics[part].state for part in found if part in topics})
        return found | lost

    async def drop(
        self,
        group: str,
        parts: Iterable[TopicName],
        rule: DropRule,
        *,
        before_ms: int = 0,
        still: Callable[[TopicName], bool] = lambda part: True,
    ) -> dict[TopicName, int | WeirError]:
        wanted = list(parts)
        topics, failed = await self._load(wanted)
        results: dict[TopicName, int | WeirError] = {
            part: -1 if isinstance(why, TopicNotFoundError) else why for part, why in failed.items()
        }
        for part, topic in topics.items():
            results[part] = _drop(topic, part, group, rule, before_ms) if still(part) else self._clock.wall_ms()
        gone = {part: topics[part].state for part in topics if results[part] == -1}
        lost = await _flushed(gone)
        return {part: lost.get(part, results[part]) for part in wanted}

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
        return (
            topic
            if isinstance(topic, BrokerTopic)
            else NotAllowedError(f"{part} is not persistent and has no committed offsets")
        )


def _place(topic: BrokerTopic, group: str, position: CommittedOffset, order: int) -> None:
    if len(position.metadata) > _MAX_METADATA:
        raise CommitTooLargeError(f"the metadata of a committed offset exceeds {_MAX_METADATA} characters")
    if not _is_next(topic, group, order):
        return
    # As in Kafka, a negative offset is stored and returned like any other; clients treat it as no offset
    # (`auto.offset.reset`). For the subscription it means that no message is acknowledged.
    at = max(0, position.offset)
    start = StartAt(offset=at)
    subscription = topic.ensure_subscription(plain_name(group), start, {RETAINS: "false"})
    query = parse_progress(position.metadata)
    if query is not None and query.retain and not subscription.retains:
        subscription.properties[RETAINS] = "true"
        subscription.save()
    subscription.place(at)
    stored = StoredPosition(position, subscription.cursor.mark_delete + 1, order)
    topic.state.put(commit_key(plain_name(group)), encode_position(stored))


def _is_next(topic: BrokerTopic, group: str, order: int) -> bool:
    """Whether no later position is set already. NotOwnerError if another coordinator has set a position since
    then: a client must be able to rely on a confirmed commit."""
    data = topic.state.get(commit_key(plain_name(group))) if order else None
    if data is None:
        return True
    try:
        placed = decode_position(data).order
    except WireError:
        return True  # damaged: the new position replaces it
    if placed >> ORDER_BITS > order >> ORDER_BITS:
        raise NotOwnerError(
            "another broker is the coordinator of the group now", hint="find the coordinator again"
        )
    return placed <= order


def _subscription(topic: BrokerTopic, group: str) -> Subscription | None:
    found = topic.subscriptions.get(plain_name(group))
    return found if found is not None and found.durable else None


def _committed(topic: BrokerTopic, subscription: Subscription) -> CommittedOffset:
    """The last commit of the group, unless another client has moved the cursor since then."""
    at = subscription.cursor.mark_delete + 1
    data = topic.state.get(commit_key(subscription.name))
    if data is None:
        return CommittedOffset(at)
    stored = decode_position(data, f"the position of {subscription.name!r}")
    return stored.said if stored.placed == at else CommittedOffset(at, commit_ms=stored.said.commit_ms)


def _drop(topic: BrokerTopic, part: TopicName, group: str, rule: DropRule, before_ms: int) -> int | WeirError:
    subscription = _subscription(topic, group)
    if rule is DropRule.ALL:
        if subscription is not None and subscription.consumers:
            return SubscriptionBusyError(f"{part} has consumers of subscription {plain_name(group)!r}")
        if subscription is not None:
            subscription.end("the group's position is deleted")
        return -1
    if subscription is None or subscription.retains or subscription.consumers:
        return -1 if rule is DropRule.EXPIRED else 0
    try:
        at_ms = _committed(topic, subscription).commit_ms
    except WireError as damaged:
        return damaged
    if at_ms >= before_ms or (rule is DropRule.UNREAD and at_ms <= 0):
        return max(0, at_ms)
    subscription.end("the group's position has expired")
    return -1


async def _flushed(states: Mapping[TopicName, StateLog]) -> dict[TopicName, WeirError]:
    """Flush the states; returns the failures."""

    async def flush(state: StateLog) -> WeirError | None:
        try:
            await state.flush()
        except WeirError as failed:
            return failed
        return None

    ended: Sequence[WeirError | None] = await asyncio.gather(*map(flush, states.values()))
    return {part: failure for part, failure in zip(states, ended, strict=True) if failure is not None}
