"""A transaction as its coordinator knows it: the states as a table, the record that is kept, what is shown.

    Empty --begin--> Ongoing --commit--> PrepareCommit --done--> CompleteCommit --begin--> Ongoing ...
                         \\----abort---> PrepareAbort  --done--> CompleteAbort  --begin--> Ongoing ...

A transaction is decided once its Prepare state is durable; the rest can be done again after a crash. A producer
may also skip one: give it up without having begun it, for the sake of a new epoch (`transaction_epochs`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from weir.broker.api.transactions import ProducerIdentity, TransactionInfo
from weir.model.check import check
from weir.model.errors import TransactionStateError
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset, Fate, TransactionState
from weir.wire.snapshots import transactions as records

#: Epochs have 15 bits. The last one is left to fence with.
MAX_EPOCH = 0x7FFF - 1


class TransactionEvent(Enum):
    BEGIN = "begin"
    COMMIT = "commit"
    ABORT = "abort"
    #: Every partition has its marker, every group its positions.
    DONE = "done"
    #: A producer takes the id over.
    INIT = "init"
    #: A producer gives up what it has not begun.
    SKIP = "skip"


S, E = TransactionState, TransactionEvent

STATES: Mapping[TransactionState, Mapping[TransactionEvent, TransactionState]] = {
    S.EMPTY: {E.BEGIN: S.ONGOING, E.INIT: S.EMPTY, E.SKIP: S.COMPLETE_ABORT},
    S.ONGOING: {E.BEGIN: S.ONGOING, E.COMMIT: S.PREPARE_COMMIT, E.ABORT: S.PREPARE_ABORT},
    S.PREPARE_COMMIT: {E.DONE: S.COMPLETE_COMMIT},
    S.PREPARE_ABORT: {E.DONE: S.COMPLETE_ABORT},
    S.COMPLETE_COMMIT: {E.BEGIN: S.ONGOING, E.INIT: S.EMPTY, E.SKIP: S.COMPLETE_ABORT},
    S.COMPLETE_ABORT: {E.BEGIN: S.ONGOING, E.INIT: S.EMPTY, E.SKIP: S.COMPLETE_ABORT},
}

PREPARED = (S.PREPARE_COMMIT, S.PREPARE_ABORT)


def next_state(state: TransactionState, event: TransactionEvent) -> TransactionState:
    following = STATES[state].get(event)
    if following is None:
        raise TransactionStateError(f"a transaction in state {state.value} cannot {event.value}")
    return following


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    max_timeout_ms: int = 15 * 60_000
    #: How often open transactions are checked for having been open too long.
    sweep_s: float = 1.0
    #: An id that nobody used for so long is forgotten.
    forget_s: float = 7 * 24 * 3600.0
    #: Transactional ids, and sinks, that one role may have unless it is a superuser.
    most_per_role: int = 10_000
    #: Transactional ids in one shard.
    most: int = 100_000
    #: Partitions, and positions, in one transaction.
    most_parts: int = 100_000
    #: Who ends a transaction waits so long for its markers before being told; it is decided in any case.
    end_wait_s: float = 5.0
    #: Before a marker that could not be stored is tried again.
    retry_pause_s: float = 0.2


@dataclass(slots=True)
class Transaction:
    """A transactional id and its current, or last, transaction. What is here was put into the shard's state last,
    and is durable with the next flush."""

    id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    role: str = ""
    state: TransactionState = TransactionState.EMPTY
    #: The epoch of the producer that asked for the current one: it may ask again. -1 if nobody did.
    last_epoch: int = -1
    started_ms: int = 0
    updated_ms: int = 0
    parts: dict[TopicName, None] = field(default_factory=dict)
    #: Positions that become the groups' if it commits.
    groups: dict[str, dict[TopicName, CommittedOffset]] = field(default_factory=dict)
    #: Not kept: partitions that are known, durably, to be part of it; how many transactions there were.
    confirmed: dict[TopicName, None] = field(default_factory=dict)
    serial: int = 0
    #: The producer id that `last_epoch` is of, if epochs were used up since; -1 if it is the current one.
    last_id: int = -1
    #: The producer id that it goes on under once it has ended, since epochs are used up; -1 if that is the same.
    next_id: int = -1
    #: When the last transaction that has ended was begun (-1: there was none), and whether it was committed.
    ended_ms: int = -1
    committed: bool = False

    def move(self, event: TransactionEvent, now_ms: int) -> None:
        """TransactionStateError if the state does not allow it."""
        state = next_state(self.state, event)
        if event is E.BEGIN and self.state is not S.ONGOING:
            self.serial += 1
            self.started_ms = now_ms
        if event is E.DONE:
            self.ended_ms, self.committed = self.started_ms, state is S.COMPLETE_COMMIT
        if event in (E.DONE, E.INIT):
            self.parts, self.groups, self.confirmed = {}, {}, {}
        self.state = state
        self.updated_ms = now_ms

    def count_epoch(self, *, asked: bool) -> None:
        """Those before are fenced. `asked`: by the producer itself, which goes on."""
        check(self.epoch <= MAX_EPOCH, "an epoch is counted on as long as it fits into 15 bits")
        self.last_id, self.last_epoch = -1, self.epoch if asked else -1
        self.epoch += 1

    def rename(self, producer_id: int, last_epoch: int) -> None:
        """Go on under another producer id. `last_epoch`: of the producer that goes on so; -1 if none does."""
        check(0 <= producer_id != self.producer_id, "epochs begin anew under another producer id alone")
        self.last_id, self.last_epoch = self.producer_id, last_epoch
        self.producer_id, self.epoch, self.next_id = producer_id, 0, -1

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.epoch)

    @property
    def last(self) -> ProducerIdentity | None:
        """Who the producer was before it asked for the current epoch; None if it did not."""
        if self.last_epoch < 0:
            return None
        return ProducerIdentity(self.last_id if self.last_id >= 0 else self.producer_id, self.last_epoch)

    @property
    def following(self) -> ProducerIdentity:
        """Who the producer is from the end of the transaction on."""
        return self.identity if self.next_id < 0 else ProducerIdentity(self.next_id, 0)

    def fate(self, topic: TopicName, seen_ms: int) -> Fate:
        """Of what the producer has open in a topic to which it wrote last at `seen_ms`."""
        if topic in self.parts and (self.state is S.ONGOING or self.decided):
            return Fate.OPEN
        if not 0 <= self.ended_ms <= seen_ms:
            return Fate.UNKNOWN
        return Fate.COMMITTED if self.committed else Fate.ABORTED

    @property
    def decided(self) -> bool:
        return self.state in PREPARED

    def info(self) -> "TransactionInfo":
        return TransactionInfo(
            self.id,
            self.producer_id,
            self.epoch,
            self.state,
            self.timeout_ms,
            self.started_ms if self.state is S.ONGOING or self.decided else -1,
            tuple(self.parts),
            tuple(self.groups),
            self.role,
        )


def encode_transaction(transaction: Transaction) -> bytes:
    return records.encode_transaction(
        records.TransactionRecord(
            transaction.producer_id,
            transaction.epoch,
            transaction.last_epoch,
            transaction.last_id,
            transaction.next_id,
            transaction.role,
            transaction.state,
            transaction.timeout_ms,
            transaction.started_ms,
            transaction.updated_ms,
            tuple(transaction.parts),
            transaction.groups,
            transaction.ended_ms,
            transaction.committed,
        )
    )


def decode_transaction(name: str, data: bytes) -> Transaction:
    """The transactional id's; WireError if it is none."""
    record = records.decode_transaction(data, f"the transaction of {name[:80]!r}")
    parts = dict.fromkeys(record.parts)
    return Transaction(
        name,
        record.producer_id,
        record.epoch,
        record.timeout_ms,
        record.role,
        record.state,
        record.last_epoch,
        record.started_ms,
        record.updated_ms,
        parts,
        {group: dict(positions) for group, positions in record.groups.items()},
        dict(parts),
        last_id=record.last_id,
        next_id=record.next_id,
        ended_ms=record.ended_ms,
        committed=record.committed,
    )
