"""Promises about transactions broken on purpose (see `kafka_mutations`)."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from weir.broker.api.topics import AbortedTransaction
from weir.broker.groups.group_offsets import GroupOffsets
from weir.broker.log.log_feed import ReadCommittedLog as CommittedLog
from weir.broker.log.producer_state import ProducerStates
from weir.broker.log.transaction_index import TransactionDelays, TransactionIndex
from weir.broker.topics import delayed_messages
from weir.broker.topics.delayed_messages import DelayedMoves
from weir.broker.transactions.transaction import Transaction
from weir.broker.transactions.transaction_coordinator import Transactions
from weir.broker.transactions.transaction_shards import TransactionShard, TransactionShards
from weir.gateway.kafka.fetch.fetch import Fetching
from weir.gateway.kafka.fetch.fetch_sessions import FetchPart
from weir.model.batch import Batch, BatchFlags, Stamp
from weir.model.errors import OutOfOrderSequenceError, StaleEpochError, WeirError
from weir.model.topics import TopicName
from weir.model.transactions import TransactionEnd
from weir.testing import log_checkers as logs
from weir.testing.kafka.checkers import groups, transactions
from weir.testing.kafka.checkers import log as kafka_logs
from weir.testing.kafka.mutations.entered import (
    CRASHES,
    DELAYS,
    PIPELINES,
    PROCESSORS,
    QUICK_STATE,
    RESTARTS,
    SLOW_STATE,
    SNAPSHOTS,
    WRITERS,
    mutation,
)
from weir.testing.mutation import often
from weir.testing.storage.plan import Fault
from weir.wire.kafka.record_batch import TRANSACTIONAL, parse_header, patched

# --- transactions in the log ----------------------------------------------------------------------------------


@mutation(
    "stable-offset-ignores-open", kafka_logs.stable_offset_is_true, kafka_logs.only_committed_is_read, **WRITERS
)
def _stable_offset_ignores_open() -> Iterator[None]:
    """The stable offset is the end of the log."""
    with patch.object(TransactionIndex, "stable", lambda self, end_offset: end_offset):
        yield


@mutation(
    "open-forgotten",
    kafka_logs.stable_offset_is_true,
    storage=RESTARTS,
    broker=SNAPSHOTS,
    streams=QUICK_STATE,
    **WRITERS,
)
def _open_forgotten() -> Iterator[None]:
    """Transactions that a snapshot says are open are not loaded when the topic is opened."""
    with patch.object(TransactionIndex, "load_open", lambda self, data: None):
        yield


@mutation(
    "aborted-forgotten",
    kafka_logs.only_committed_is_read,
    storage=RESTARTS,
    broker=SNAPSHOTS,
    streams=QUICK_STATE,
    **WRITERS,
)
def _aborted_forgotten() -> Iterator[None]:
    """Which transactions were aborted is not loaded when the topic is opened."""
    with patch.object(TransactionIndex, "load_piece", lambda self, data: None):
        yield


@mutation("aborted-not-told", kafka_logs.only_committed_is_read, **WRITERS)
def _aborted_not_told() -> Iterator[None]:
    """Who reads committed is not told what was aborted."""
    with patch.object(Fetching, "_aborted", lambda self, part: []):
        yield


@mutation("aborted-from-the-start", kafka_logs.everything_is_seen_in_the_end, **WRITERS)
def _aborted_from_the_start() -> Iterator[None]:
    """Of an aborted transaction it is told that it began with the log."""
    aborted = TransactionIndex.aborted

    def early(self: TransactionIndex, first: int, end: int) -> list[AbortedTransaction]:
        return [AbortedTransaction(one.producer_id, 0, one.last_offset) for one in aborted(self, first, end)]

    with patch.object(TransactionIndex, "aborted", early):
        yield


@mutation("batch-left-out", kafka_logs.readers_skip_nothing, **{**WRITERS, "writers": 1, "idempotent": 2})
def _batch_left_out() -> Iterator[None]:
    """The second batch of a long answer is left out for those who read committed."""
    take = Fetching._take

    def careless(self: Fetching, part: FetchPart, found: list[Batch], room: int, limit: int) -> None:
        take(self, part, found, room, limit)
        if self._committed and len(part.batches) > 2:
            del part.batches[1]

    with patch.object(Fetching, "_take", careless):
        yield


@mutation("fetch-beyond-stable", kafka_logs.only_committed_is_read, **WRITERS)
def _fetch_beyond_stable() -> Iterator[None]:
    """Who reads committed is given everything up to the end."""
    limit = FetchPart.limit
    with patch.object(FetchPart, "limit", lambda self, committed: limit(self, False)):
        yield


@mutation("offsets-shifted", kafka_logs.offsets_are_dense, **WRITERS)
def _offsets_shifted() -> Iterator[None]:
    """Readers are given the messages of transactions at the offsets behind theirs."""

    def shifted(batch: bytes, base_offset: int, leader_epoch: int) -> Any:
        return patched(batch, base_offset + (parse_header(batch).attributes == TRANSACTIONAL), leader_epoch)

    with patch("weir.gateway.kafka.fetch.fetch.patched", shifted):
        yield


@mutation("aborted-delivered", kafka_logs.only_committed_is_read, **{**WRITERS, "pulsar": True})
def _aborted_delivered() -> Iterator[None]:
    """A subscription of another protocol is given what was aborted."""
    with patch.object(CommittedLog, "visible", lambda self, batch: None):
        yield


@mutation("committed-not-delivered", kafka_logs.everything_is_seen_in_the_end, **{**WRITERS, "pulsar": True})
def _committed_not_delivered() -> Iterator[None]:
    """A subscription of another protocol is given nothing of any transaction."""
    visible = CommittedLog.visible

    def without(self: CommittedLog, batch: Batch) -> int | None:
        return 0 if batch.flags & BatchFlags.TRANSACTIONAL else visible(self, batch)

    with patch.object(CommittedLog, "visible", without):
        yield


# --- the coordinator of transactions --------------------------------------------------------------------------


@mutation(
    "marker-before-decision",
    transactions.transactions_are_atomic,
    storage=CRASHES,
    streams=SLOW_STATE,
    **{**WRITERS, "out_parts": 2, "aborts": 0.0},
)
def _marker_before_decision() -> Iterator[None]:
    """Markers are stored, one after the other, before the decision is durable."""
    end, mark = TransactionShard.end, TransactionShard._mark

    async def hasty(self: TransactionShard, transaction: Transaction) -> None:
        if transaction.decided:
            await asyncio.wait([self._end_soon(transaction)], timeout=1.0)
        await end(self, transaction)

    async def in_turn(self: TransactionShard, part: TopicName, transaction: Transaction, *, commit: bool) -> None:
        await asyncio.sleep(0.2 * list(transaction.parts).index(part))
        await mark(self, part, transaction, commit=commit)

    with patch.object(TransactionShard, "end", hasty), patch.object(TransactionShard, "_mark", in_turn):
        yield


@mutation(
    "answered-before-decision",
    transactions.transactions_are_atomic,
    storage=CRASHES,
    **{**WRITERS, "aborts": 0.0},
)
def _answered_before_decision() -> Iterator[None]:
    """A producer is told that its transaction is committed before that is durable."""
    end = TransactionShard.end

    async def hasty(self: TransactionShard, transaction: Transaction) -> None:
        self._tasks.spawn(_quietly(end(self, transaction)), "end")

    with patch.object(TransactionShard, "end", hasty):
        yield


async def _quietly(work: Any) -> None:
    try:
        await work
    except WeirError:
        return


@mutation("marker-in-one-partition", logs.all_is_available_after_healing, **WRITERS)
def _marker_in_one_partition() -> Iterator[None]:
    """Only the first of a transaction's partitions gets a marker."""
    mark = TransactionShard._mark

    async def first_only(
        self: TransactionShard, part: TopicName, transaction: Transaction, *, commit: bool
    ) -> None:
        if part == next(iter(transaction.parts)):
            await mark(self, part, transaction, commit=commit)

    with patch.object(TransactionShard, "_mark", first_only):
        yield


@mutation("never-timed-out", logs.all_is_available_after_healing, storage=CRASHES, **WRITERS)
def _never_timed_out() -> Iterator[None]:
    """A transaction that is open for too long stays so."""
    with patch.object(TransactionShard, "sweep", lambda self: None):
        yield


@mutation(
    "epoch-not-checked",
    transactions.processed_exactly_once,
    storage=often(Fault.PAUSE, Fault.SLOW_LINK),
    **{**PIPELINES, "aborts": 0.1},
)
def _epoch_not_checked() -> Iterator[None]:
    """A producer whose transactional id another has taken over may go on."""
    judge = ProducerStates.judge

    def any_epoch(self: Transactions, shard: TransactionShard, name: str, identity: Any, role: str) -> Transaction:
        return shard.by_id[name]

    def same_epoch(self: ProducerStates, stamp: Stamp, count: int) -> Any:
        try:
            return judge(self, stamp, count)
        except (StaleEpochError, OutOfOrderSequenceError):
            return None

    with (
        patch.object(Transactions, "_checked", any_epoch),
        patch.object(TransactionShards, "admit", lambda self, stamp, topic: 1),
        patch.object(ProducerStates, "judge", same_epoch),
    ):
        yield


@mutation("position-moved-by-aborted", groups.positions_are_kept, transactions.processed_exactly_once, **PIPELINES)
def _position_moved_by_aborted() -> Iterator[None]:
    """A transaction that is aborted moves its group's positions, too."""
    end = GroupOffsets.end

    async def always_move(self: GroupOffsets, group: str, how: TransactionEnd) -> None:
        await end(self, group, replace(how, commit=True))

    with patch.object(GroupOffsets, "end", always_move):
        yield


@mutation("position-moved-at-once", groups.positions_are_kept, **PIPELINES)
def _position_moved_at_once() -> Iterator[None]:
    """Positions move when a transaction says so, not when it is decided."""
    prepare = GroupOffsets.prepare

    async def at_once(self: GroupOffsets, group: str, producer_id: int, positions: Any, **more: Any) -> None:
        await prepare(self, group, producer_id, positions, **more)
        await self.commit(group, positions)

    with patch.object(GroupOffsets, "prepare", at_once):
        yield


@mutation(
    "position-not-pending",
    transactions.processed_exactly_once,
    storage=often(),
    **{**PROCESSORS, "session_ms": 600},
)
def _position_not_pending() -> Iterator[None]:
    """A position is told while a transaction is about to move it."""
    with patch.object(GroupOffsets, "_unstable", lambda self, shard, group: ()):
        yield


# --- what transactions delay ----------------------------------------------------------------------------------


@mutation("delay-forgotten", logs.delays_are_kept, **DELAYS)
def _delay_forgotten() -> Iterator[None]:
    """What a transaction delays is seen as soon as it is committed."""
    opened = delayed_messages._opened

    def at_once(hidden: Batch) -> tuple[int, Batch] | None:
        found = opened(hidden)
        return None if found is None else (0, found[1])

    with patch.object(delayed_messages, "_opened", at_once):
        yield


@mutation("aborted-delay-seen", transactions.delayed_follow_their_transaction, **DELAYS)
def _aborted_delay_seen() -> Iterator[None]:
    """What a transaction delays is seen at its moment, also if it is aborted."""
    decide = TransactionDelays.decide

    def always(self: TransactionDelays, producer_id: int, *, aborted: bool) -> None:
        decide(self, producer_id, aborted=False)

    with patch.object(TransactionDelays, "decide", always):
        yield


@mutation("committed-delay-lost", transactions.delayed_follow_their_transaction, **DELAYS)
def _committed_delay_lost() -> Iterator[None]:
    """What is committed counts as held before it is."""

    async def held_already(self: DelayedMoves) -> None:
        self._delays.unmoved.clear()

    with patch.object(DelayedMoves, "_move_all", held_already):
        yield
