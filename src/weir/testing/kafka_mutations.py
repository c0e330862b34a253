"""Promises to Kafka's clients broken on purpose: each patches one seam of the product (see `mutations`)."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from weir.broker.api import AbortedTransaction, Receipt
from weir.broker.committed import Committed as CommittedLog
from weir.broker.group import Group
from weir.broker.group_offsets import Committed, GroupOffsets
from weir.broker.groups import GroupCoordinator
from weir.broker.producer_state import ProducerStates
from weir.broker.publishing import Publisher
from weir.broker.publishing_stamped import StampedPublishing
from weir.broker.topic_stamps import Stamps
from weir.broker.transaction_home import TransactionHome
from weir.broker.transaction_homes import TransactionHomes
from weir.broker.transaction_index import TransactionIndex
from weir.broker.transaction_model import Transaction, TransactionState
from weir.broker.transactions import Transactions
from weir.gateway.kafka.fetch_parts import FetchPart
from weir.gateway.kafka.fetching import Fetching
from weir.model.batch import Batch, BatchFlags, Stamp
from weir.model.errors import OutOfOrderSequenceError, StaleEpochError, WeirError
from weir.model.ledger import Quorum
from weir.model.topics import TopicName
from weir.stream.appender import Appender
from weir.stream.settings import StreamSettings
from weir.stream.tail import StreamTail
from weir.testing import kafka_checkers as checkers
from weir.testing.kafka_checkers import KafkaChecker
from weir.testing.kafka_plan import KafkaPlan
from weir.testing.plan import Fault
from weir.wire.kafka.records import TRANSACTIONAL, parse_header, patched


@dataclass(frozen=True, slots=True)
class KafkaMutation:
    """One way to break a promise."""

    sin: str
    apply: Callable[[], AbstractContextManager[Any]]
    #: The checkers of the promises that this breaks: each of them must find it, whatever the others find.
    found_by: tuple[KafkaChecker, ...]
    #: Fields of the plan, and of the storage's plan below, that are set so that the mistake matters.
    focus: dict[str, Any]
    storage: dict[str, Any]

    def narrow(self, plan: KafkaPlan) -> KafkaPlan:
        snapshots = self.focus.get("snapshots")
        focus = {name: value for name, value in self.focus.items() if name != "snapshots"}
        if snapshots is not None:
            focus["broker"] = replace(plan.broker, stamps_snapshot_every=snapshots)
        return replace(plan, storage=replace(plan.storage, **self.storage), **focus)


KAFKA_MUTATIONS: dict[str, KafkaMutation] = {}


def _mutation(
    name: str, *found_by: KafkaChecker, storage: dict[str, Any] | None = None, **focus: Any
) -> Callable[[Callable[[], Iterator[None]]], None]:
    """Enter a generator function as a mutation; its docstring says the sin."""

    def enter(function: Callable[[], Iterator[None]]) -> None:
        sin = (function.__doc__ or name).strip()
        KAFKA_MUTATIONS[name] = KafkaMutation(sin, contextmanager(function), found_by, focus, storage or {})

    return enter


def _often(*faults: Fault) -> dict[str, Any]:
    return {"faults": faults, "fault_every_s": 0.4, "duration_s": 6.0}


_CRASHES = _often(Fault.CRASH_CLIENT, Fault.LEASES)
_RESTARTS = _often(Fault.CRASH_CLIENT, Fault.RESTART_BOOKIE)
_LOST = _often(Fault.LOST_CONNECTIONS, Fault.SLOW_LINK)
_SLOW_STATE = StreamSettings(quorum=Quorum(3, 2, 2), state_pause_s=5.0, retry_pause_s=0.05, roll_entries=20)
_QUICK_STATE = replace(_SLOW_STATE, state_pause_s=0.05)
#: Who is there, so that a mistake is not lost among others.
_NOBODY: dict[str, Any] = {
    "plain": 0,
    "idempotent": 0,
    "writers": 0,
    "pipelines": 0,
    "processors": 0,
    "members": 0,
    "pulsar": False,
}
_IDEMPOTENT = {**_NOBODY, "idempotent": 2, "messages": 40, "in_parts": 1}
_WRITERS = {**_NOBODY, "writers": 2, "readers": 3, "aborts": 0.4, "in_parts": 2}
_PIPELINES = {**_NOBODY, "idempotent": 1, "writers": 1, "pipelines": 1, "instances": 2, "aborts": 0.4}
_PROCESSORS = {**_NOBODY, "idempotent": 2, "processors": 3, "in_parts": 2, "aborts": 0.1}
_MEMBERS = {**_NOBODY, "idempotent": 2, "members": 3, "in_parts": 2}


# --- the log --------------------------------------------------------------------------------------------------


@_mutation(
    "seen-before-stored",
    checkers.what_was_read_stays,
    storage={**_often(Fault.CRASH_CLIENT, Fault.CRASH_BOOKIE), "sync_s": 0.05},
    **{**_IDEMPOTENT, "readers": 4},
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


@_mutation("receipt-before-stored", checkers.acknowledged_is_stored, storage=_CRASHES, **_IDEMPOTENT)
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


# --- idempotence ----------------------------------------------------------------------------------------------


@_mutation("duplicate-stored", checkers.stored_once, storage=_LOST, **_IDEMPOTENT)
def _duplicate_stored() -> Iterator[None]:
    """A batch that was stored before is stored again."""
    judge = ProducerStates.judge

    def blind(self: ProducerStates, stamp: Stamp, count: int) -> Any:
        judge(self, stamp, count)

    with patch.object(ProducerStates, "judge", blind):
        yield


@_mutation(
    "gap-accepted",
    checkers.producers_order_is_kept,
    storage=_often(Fault.CRASH_BOOKIE, Fault.LOST_CONNECTIONS, Fault.LEASES),
    **_IDEMPOTENT,
)
def _gap_accepted() -> Iterator[None]:
    """A batch whose predecessor is missing is stored all the same."""
    judge = ProducerStates.judge

    def tolerant(self: ProducerStates, stamp: Stamp, count: int) -> Any:
        try:
            return judge(self, stamp, count)
        except OutOfOrderSequenceError:
            return None

    with patch.object(ProducerStates, "judge", tolerant):
        yield


@_mutation(
    "only-the-last-batch-known",
    checkers.producers_can_go_on,
    storage=_often(Fault.LOST_CONNECTIONS),
    **_IDEMPOTENT,
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


@_mutation("duplicate-answered-wrongly", checkers.receipts_say_where, storage=_LOST, **_IDEMPOTENT)
def _duplicate_answered_wrongly() -> Iterator[None]:
    """A batch that was stored before is answered with where the log ends."""

    def wrong(self: StampedPublishing, offset: int) -> Receipt:
        return Receipt(self._stream.end_offset - 1, (-1, -1), duplicate=True)

    with patch.object(StampedPublishing, "_duplicate_of", wrong):
        yield


@_mutation(
    "producers-forgotten",
    checkers.stored_once,
    storage=_often(Fault.LOST_CONNECTIONS, Fault.SLOW_LINK, Fault.CRASH_CLIENT, Fault.RESTART_BOOKIE),
    snapshots=1,
    streams=_QUICK_STATE,
    **_IDEMPOTENT,
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


@_mutation("tail-not-read", checkers.stored_once, storage=_CRASHES, streams=_SLOW_STATE, **_IDEMPOTENT)
def _tail_not_read() -> Iterator[None]:
    """What was stored after the last snapshot is not looked at when the topic is opened."""

    async def skip(self: Stamps) -> None:
        self._known_to = self._stream.end_offset

    with patch.object(Stamps, "catch_up", skip):
        yield


# --- transactions in the log ----------------------------------------------------------------------------------


@_mutation(
    "stable-offset-ignores-open", checkers.stable_offset_is_true, checkers.only_committed_is_read, **_WRITERS
)
def _stable_offset_ignores_open() -> Iterator[None]:
    """The stable offset is the end of the log."""
    with patch.object(TransactionIndex, "stable", lambda self, end_offset: end_offset):
        yield


@_mutation(
    "open-forgotten",
    checkers.stable_offset_is_true,
    storage=_RESTARTS,
    snapshots=1,
    streams=_QUICK_STATE,
    **_WRITERS,
)
def _open_forgotten() -> Iterator[None]:
    """Transactions that a snapshot says are open are not loaded when the topic is opened."""
    with patch.object(TransactionIndex, "load_open", lambda self, data: None):
        yield


@_mutation(
    "aborted-forgotten",
    checkers.only_committed_is_read,
    storage=_RESTARTS,
    snapshots=1,
    streams=_QUICK_STATE,
    **_WRITERS,
)
def _aborted_forgotten() -> Iterator[None]:
    """Which transactions were aborted is not loaded when the topic is opened."""
    with patch.object(TransactionIndex, "load_piece", lambda self, data: None):
        yield


@_mutation("aborted-not-told", checkers.only_committed_is_read, **_WRITERS)
def _aborted_not_told() -> Iterator[None]:
    """Who reads committed is not told what was aborted."""
    with patch.object(Fetching, "_aborted", lambda self, part: []):
        yield


@_mutation("aborted-from-the-start", checkers.readers_skip_nothing, **_WRITERS)
def _aborted_from_the_start() -> Iterator[None]:
    """Of an aborted transaction it is told that it began with the log."""
    aborted = TransactionIndex.aborted

    def early(self: TransactionIndex, first: int, end: int) -> list[AbortedTransaction]:
        return [AbortedTransaction(one.producer_id, 0, one.last_offset) for one in aborted(self, first, end)]

    with patch.object(TransactionIndex, "aborted", early):
        yield


@_mutation("fetch-beyond-stable", checkers.only_committed_is_read, **_WRITERS)
def _fetch_beyond_stable() -> Iterator[None]:
    """Who reads committed is given everything up to the end."""
    limit = FetchPart.limit
    with patch.object(FetchPart, "limit", lambda self, committed: limit(self, False)):
        yield


@_mutation("offsets-shifted", checkers.offsets_are_dense, **_WRITERS)
def _offsets_shifted() -> Iterator[None]:
    """Readers are given the messages of transactions at the offsets behind theirs."""

    def shifted(batch: bytes, base_offset: int) -> Any:
        return patched(batch, base_offset + (parse_header(batch).attributes == TRANSACTIONAL))

    with patch("weir.gateway.kafka.fetching.patched", shifted):
        yield


@_mutation("aborted-delivered", checkers.only_committed_is_read, **{**_WRITERS, "pulsar": True})
def _aborted_delivered() -> Iterator[None]:
    """A subscription of another protocol is given what was aborted."""
    with patch.object(CommittedLog, "visible", lambda self, batch: None):
        yield


@_mutation("committed-not-delivered", checkers.everything_is_seen_in_the_end, **{**_WRITERS, "pulsar": True})
def _committed_not_delivered() -> Iterator[None]:
    """A subscription of another protocol is given nothing of any transaction."""
    visible = CommittedLog.visible

    def without(self: CommittedLog, batch: Batch) -> int | None:
        return 0 if batch.flags & BatchFlags.TRANSACTIONAL else visible(self, batch)

    with patch.object(CommittedLog, "visible", without):
        yield


# --- the coordinator of transactions --------------------------------------------------------------------------


@_mutation(
    "marker-before-decision",
    checkers.transactions_are_atomic,
    storage=_CRASHES,
    streams=_SLOW_STATE,
    **{**_WRITERS, "out_parts": 2, "aborts": 0.0},
)
def _marker_before_decision() -> Iterator[None]:
    """Markers are stored, one after the other, before the decision is durable."""
    end, mark = TransactionHome.end, TransactionHome._mark

    async def hasty(self: TransactionHome, transaction: Transaction) -> None:
        if transaction.decided:
            await asyncio.wait([self._end_soon(transaction)], timeout=1.0)
        await end(self, transaction)

    async def in_turn(self: TransactionHome, part: TopicName, transaction: Transaction, *, commit: bool) -> None:
        await asyncio.sleep(0.2 * list(transaction.parts).index(part))
        await mark(self, part, transaction, commit=commit)

    with patch.object(TransactionHome, "end", hasty), patch.object(TransactionHome, "_mark", in_turn):
        yield


@_mutation(
    "answered-before-decision",
    checkers.transactions_are_atomic,
    storage=_CRASHES,
    **{**_WRITERS, "aborts": 0.0},
)
def _answered_before_decision() -> Iterator[None]:
    """A producer is told that its transaction is committed before that is durable."""
    end = TransactionHome.end

    async def hasty(self: TransactionHome, transaction: Transaction) -> None:
        self._tasks.spawn(_quietly(end(self, transaction)), "end")

    with patch.object(TransactionHome, "end", hasty):
        yield


async def _quietly(work: Any) -> None:
    try:
        await work
    except WeirError:
        return


@_mutation("marker-in-one-partition", checkers.all_is_available_after_healing, **_WRITERS)
def _marker_in_one_partition() -> Iterator[None]:
    """Only the first of a transaction's partitions gets a marker."""
    mark = TransactionHome._mark

    async def first_only(
        self: TransactionHome, part: TopicName, transaction: Transaction, *, commit: bool
    ) -> None:
        if part == next(iter(transaction.parts)):
            await mark(self, part, transaction, commit=commit)

    with patch.object(TransactionHome, "_mark", first_only):
        yield


@_mutation("never-timed-out", checkers.all_is_available_after_healing, storage=_CRASHES, **_WRITERS)
def _never_timed_out() -> Iterator[None]:
    """A transaction that is open for too long stays so."""
    with patch.object(TransactionHome, "look_through", lambda self: None):
        yield


@_mutation(
    "epoch-not-checked",
    checkers.processed_exactly_once,
    storage=_often(Fault.PAUSE, Fault.SLOW_LINK),
    **{**_PIPELINES, "aborts": 0.1},
)
def _epoch_not_checked() -> Iterator[None]:
    """A producer whose transactional id another has taken over may go on."""
    judge = ProducerStates.judge

    def any_epoch(self: Transactions, home: TransactionHome, name: str, identity: Any, role: str) -> Transaction:
        return home.by_id[name]

    def same_epoch(self: ProducerStates, stamp: Stamp, count: int) -> Any:
        try:
            return judge(self, stamp, count)
        except (StaleEpochError, OutOfOrderSequenceError):
            return None

    with (
        patch.object(Transactions, "_checked", any_epoch),
        patch.object(TransactionHomes, "refusal", lambda self, stamp, topic: None),
        patch.object(ProducerStates, "judge", same_epoch),
    ):
        yield


@_mutation("position-moved-by-aborted", checkers.positions_are_kept, checkers.processed_exactly_once, **_PIPELINES)
def _position_moved_by_aborted() -> Iterator[None]:
    """A transaction that is aborted moves its group's positions, too."""
    end = TransactionHome._end

    async def always_move(self: TransactionHome, transaction: Transaction) -> None:
        if transaction.state is TransactionState.PREPARE_ABORT:
            for group, moved in transaction.groups.items():
                await self._place(group, moved)
        await end(self, transaction)

    with patch.object(TransactionHome, "_end", always_move):
        yield


@_mutation("position-moved-at-once", checkers.positions_are_kept, **_PIPELINES)
def _position_moved_at_once() -> Iterator[None]:
    """Positions move when a transaction says so, not when it is decided."""
    commit_offsets = Transactions.commit_offsets

    async def at_once(
        self: Transactions, name: str, identity: Any, group: str, positions: Any, **more: Any
    ) -> None:
        await commit_offsets(self, name, identity, group, positions, **more)
        await self._positions.commit(group, positions)

    with patch.object(Transactions, "commit_offsets", at_once):
        yield


@_mutation(
    "position-not-pending",
    checkers.processed_exactly_once,
    storage=_often(Fault.SLOW_LINK, Fault.SLOW_DISK, Fault.PAUSE),
    **_PROCESSORS,
)
def _position_not_pending() -> Iterator[None]:
    """A position is told while a transaction is about to move it."""
    with patch.object(GroupOffsets, "pend", lambda self, group, producer_id, parts: None):
        yield


# --- groups ---------------------------------------------------------------------------------------------------


@_mutation("generation-not-checked", checkers.commits_are_of_their_generation, **_MEMBERS)
def _generation_not_checked() -> Iterator[None]:
    """Anybody may commit positions of a group at any time."""
    with patch.object(Group, "check_commit", lambda self, *asked, **more: None):
        yield


@_mutation("position-before-flush", checkers.positions_are_kept, storage=_CRASHES, streams=_SLOW_STATE, **_MEMBERS)
def _position_before_flush() -> Iterator[None]:
    """A commit of positions is answered before it is durable."""

    async def not_now(states: Mapping[TopicName, Any]) -> dict[TopicName, WeirError]:
        return {}

    with patch("weir.broker.group_offsets._flushed", not_now):
        yield


@_mutation("group-not-persisted", checkers.one_owner_at_a_time, storage=_CRASHES, **_MEMBERS)
def _group_not_persisted() -> Iterator[None]:
    """What a group has agreed on is forgotten with the broker."""

    def forget(self: GroupCoordinator, home: Any, group: Group) -> Any:
        stored: asyncio.Future[WeirError | None] = asyncio.get_running_loop().create_future()
        stored.set_result(None)
        return stored

    with patch.object(GroupCoordinator, "_store_in", forget):
        yield


@_mutation("new-group-at-the-end", checkers.groups_read_everything, checkers.positions_are_kept, **_MEMBERS)
def _new_group_at_the_end() -> Iterator[None]:
    """A group that has no position is told that it is at the end."""
    fetch = GroupOffsets.fetch

    async def latest(self: GroupOffsets, group: str, parts: Any = None, *, stable: bool = False) -> Any:
        found = await fetch(self, group, parts, stable=stable)
        topics, _ = await self._load(part for part in parts or () if part not in found)
        return found | {part: Committed(topic.end_offset) for part, topic in topics.items()}

    with patch.object(GroupOffsets, "fetch", latest):
        yield
