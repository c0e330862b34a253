"""Promises to Kafka's clients broken on purpose: each patches one seam of the product (see `mutations`)."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any
from unittest.mock import patch

from weir.broker.api import Receipt
from weir.broker.group import Group
from weir.broker.group_offsets import Committed, GroupOffsets
from weir.broker.groups import GroupCoordinator
from weir.broker.producer_state import ProducerStates
from weir.broker.publishing import Publisher
from weir.broker.publishing_stamped import StampedPublishing
from weir.broker.topic_stamps import Stamps
from weir.gateway.kafka.fetch_parts import FetchParts
from weir.gateway.kafka.gaps import Gaps
from weir.model.batch import Batch, Stamp
from weir.model.errors import OutOfOrderSequenceError, WeirError
from weir.model.topics import TopicName
from weir.stream.appender import Appender
from weir.stream.tail import StreamTail
from weir.testing import kafka_checkers as checkers
from weir.testing import kafka_mutations_transactions  # noqa: F401 - it enters its own
from weir.testing.kafka_mutation import (
    CRASHES,
    IDEMPOTENT,
    KAFKA_MUTATIONS,
    LOST,
    MEMBERS,
    QUICK_STATE,
    SLOW_STATE,
    mutation,
    often,
)
from weir.testing.plan import Fault

__all__ = ["KAFKA_MUTATIONS"]


# --- the log --------------------------------------------------------------------------------------------------


@mutation(
    "seen-before-stored",
    checkers.what_was_read_stays,
    storage={**often(Fault.CRASH_CLIENT, Fault.CRASH_BOOKIE), "sync_s": 0.05},
    **{**IDEMPOTENT, "readers": 4},
)
def _seen_before_stored() -> Iterator[None]:
    """A batch is in the tail, and so can be read, as soon as it is sent to the bookies."""
    send, push = Appender._send, StreamTail.push

    def show_at_once(self: Appender, writer: Any) -> None:
        sent = list(self._queue)
        send(self, writer)
        for append in sent:
            push(self._tail, append.batch)
        self._end_offset = self._next_offset
        self._changed()

    def push_new(self: StreamTail, batch: Batch) -> None:
        if not self._bases or batch.base_offset > self._bases[-1]:
            push(self, batch)

    with patch.object(Appender, "_send", show_at_once), patch.object(StreamTail, "push", push_new):
        yield


@mutation("receipt-before-stored", checkers.acknowledged_is_stored, storage=CRASHES, **IDEMPOTENT)
def _receipt_before_stored() -> Iterator[None]:
    """A producer gets its receipt when the batch is sent on, not when it is stored."""
    append = Publisher._append

    def at_once(self: Publisher, batch: Batch, receipt: Any, answer: Any = None) -> Any:
        stored = append(self, batch, receipt, answer)
        if not receipt.done():
            receipt.set_result(Receipt(-1, (-1, -1)))
        return stored

    with patch.object(Publisher, "_append", at_once):
        yield


@mutation("growth-not-told", checkers.all_is_available_after_healing, **{**IDEMPOTENT, "follows": True})
def _growth_not_told() -> Iterator[None]:
    """A fetch session is not told that a partition has grown which it was up to date with."""
    with patch.object(FetchParts, "_grew", lambda self, part: None):
        yield


# --- idempotence ----------------------------------------------------------------------------------------------


@mutation("duplicate-stored", checkers.stored_once, storage=LOST, **IDEMPOTENT)
def _duplicate_stored() -> Iterator[None]:
    """A batch that was stored before is stored again."""
    judge = ProducerStates.judge

    def blind(self: ProducerStates, stamp: Stamp, count: int) -> Any:
        judge(self, stamp, count)

    with patch.object(ProducerStates, "judge", blind):
        yield


@mutation(
    "gap-accepted",
    checkers.producers_order_is_kept,
    storage=often(Fault.CRASH_BOOKIE, Fault.LOST_CONNECTIONS, Fault.LEASES),
    **IDEMPOTENT,
)
def _gap_accepted() -> Iterator[None]:
    """A batch whose predecessor is missing is stored all the same."""
    judge = ProducerStates.judge

    def tolerant(self: ProducerStates, stamp: Stamp, count: int) -> Any:
        try:
            return judge(self, stamp, count)
        except OutOfOrderSequenceError:
            return None

    with patch.object(ProducerStates, "judge", tolerant), patch.object(Gaps, "check", _accept):
        yield


@mutation(
    "first-batch-missed",
    checkers.producers_order_is_kept,
    storage=often(Fault.LEASES, Fault.META_LOSS, Fault.RESTART_BOOKIE),
    **{**IDEMPOTENT, "in_parts": 3},
)
def _first_batch_missed() -> Iterator[None]:
    """Nobody remembers that the first batch of a producer could not be stored."""
    with patch.object(Gaps, "check", _accept):
        yield


def _accept(self: Gaps, key: Any, stamp: Stamp | None) -> None:
    """Whatever comes."""


@mutation(
    "only-the-last-batch-known",
    checkers.producers_can_go_on,
    storage=often(Fault.LOST_CONNECTIONS),
    **IDEMPOTENT,
)
def _only_the_last_batch_known() -> Iterator[None]:
    """Only the last batch of a producer is told from a gap when it is sent again."""
    learn = ProducerStates.learn

    def forgetful(self: ProducerStates, batch: Batch) -> None:
        learn(self, batch)
        for known in self._known.values():
            while len(known.stored) > 1:
                known.stored.popleft()

    with patch.object(ProducerStates, "learn", forgetful):
        yield


@mutation("duplicate-answered-wrongly", checkers.receipts_say_where, storage=LOST, **IDEMPOTENT)
def _duplicate_answered_wrongly() -> Iterator[None]:
    """A batch that was stored before is answered with where the log ends."""

    def wrong(self: StampedPublishing, offset: int) -> Receipt:
        return Receipt(self._stream.end_offset - 1, (-1, -1), duplicate=True)

    with patch.object(StampedPublishing, "_duplicate_of", wrong):
        yield


@mutation(
    "producers-forgotten",
    checkers.stored_once,
    storage=often(Fault.LOST_CONNECTIONS, Fault.SLOW_LINK, Fault.CRASH_CLIENT, Fault.RESTART_BOOKIE),
    snapshots=1,
    streams=QUICK_STATE,
    **IDEMPOTENT,
)
def _producers_forgotten() -> Iterator[None]:
    """What a snapshot says of producers is not loaded when the topic is opened."""
    load = ProducerStates.load

    def forget(self: ProducerStates, data: bytes) -> int:
        known_to = load(self, data)
        self._known.clear()
        return known_to

    with patch.object(ProducerStates, "load", forget):
        yield


@mutation("tail-not-read", checkers.stored_once, storage=CRASHES, streams=SLOW_STATE, **IDEMPOTENT)
def _tail_not_read() -> Iterator[None]:
    """What was stored after the last snapshot is not looked at when the topic is opened."""

    async def skip(self: Stamps) -> None:
        self._known_to = self._stream.end_offset

    with patch.object(Stamps, "catch_up", skip):
        yield


# --- groups ---------------------------------------------------------------------------------------------------


@mutation("generation-not-checked", checkers.commits_are_of_their_generation, **MEMBERS)
def _generation_not_checked() -> Iterator[None]:
    """Anybody may commit positions of a group at any time."""
    with patch.object(Group, "check_commit", lambda self, *asked, **more: None):
        yield


@mutation("position-before-flush", checkers.positions_are_kept, storage=CRASHES, streams=SLOW_STATE, **MEMBERS)
def _position_before_flush() -> Iterator[None]:
    """A commit of positions is answered before it is durable."""

    async def not_now(states: Mapping[TopicName, Any]) -> dict[TopicName, WeirError]:
        return {}

    with patch("weir.broker.group_offsets._flushed", not_now):
        yield


@mutation("group-not-persisted", checkers.one_owner_at_a_time, storage=CRASHES, **MEMBERS)
def _group_not_persisted() -> Iterator[None]:
    """What a group has agreed on is forgotten with the broker."""

    def forget(self: GroupCoordinator, home: Any, group: Group) -> Any:
        stored: asyncio.Future[WeirError | None] = asyncio.get_running_loop().create_future()
        stored.set_result(None)
        return stored

    with patch.object(GroupCoordinator, "_store_in", forget):
        yield


@mutation("new-group-at-the-end", checkers.groups_read_everything, checkers.positions_are_kept, **MEMBERS)
def _new_group_at_the_end() -> Iterator[None]:
    """A group that has no position is told that it is at the end."""
    fetch = GroupOffsets.fetch

    async def latest(self: GroupOffsets, group: str, parts: Any = None, *, stable: bool = False) -> Any:
        found = await fetch(self, group, parts, stable=stable)
        topics, _ = await self._load(part for part in parts or () if part not in found)
        return found | {part: Committed(topic.end_offset) for part, topic in topics.items()}

    with patch.object(GroupOffsets, "fetch", latest):
        yield
