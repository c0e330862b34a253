"""A transactional id with its last transaction, as JSON; and how far a sink has come, as text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weir.model.errors import WireError
from weir.model.positions import CommittedOffset
from weir.model.topics import TopicName
from weir.model.transactions import TransactionState
from weir.wire.snapshots.fields import check_version, dump, each, load, text, topic, whole

_VERSION = 1
#: Of a number of 64 bits.
_MAX_DIGITS = 20


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """What each of them means, `weir.broker.transactions.model.Transaction` says."""

    producer_id: int
    epoch: int
    last_epoch: int
    last_id: int
    next_id: int
    role: str
    state: TransactionState
    timeout_ms: int
    started_ms: int
    updated_ms: int
    parts: tuple[TopicName, ...] = ()
    groups: Mapping[str, Mapping[TopicName, CommittedOffset]] = field(default_factory=dict)
    ended_ms: int = -1
    committed: bool = False


def encode_transaction(transaction: TransactionRecord) -> bytes:
    return dump(
        {
            "version": _VERSION,
            "producer": [transaction.producer_id, transaction.epoch, transaction.last_epoch],
            "ids": [transaction.last_id, transaction.next_id],
            "role": transaction.role,
            "state": transaction.state.value,
            "ms": [transaction.timeout_ms, transaction.started_ms, transaction.updated_ms],
            "ended": [transaction.ended_ms, int(transaction.committed)],
            "parts": [str(part) for part in transaction.parts],
            "groups": {
                group: [[str(part), at.offset, at.leader_epoch, at.metadata] for part, at in positions.items()]
                for group, positions in transaction.groups.items()
            },
        }
    )


def decode_transaction(data: bytes, what: str = "a transaction") -> TransactionRecord:
    return load(data, what, _transaction)


def _transaction(fields: Any) -> TransactionRecord:
    check_version(fields["version"], _VERSION, "a transaction")
    producer_id, epoch, last_epoch = map(whole, each(fields["producer"]))
    last_id, next_id = map(whole, each(fields.get("ids", [-1, -1])))
    timeout_ms, started_ms, updated_ms = map(whole, each(fields["ms"]))
    state = TransactionState(fields["state"])
    # Records from before this was kept: the last one is known as long as nothing came behind it.
    ended = [started_ms, 1] if state is TransactionState.COMPLETE_COMMIT else [-1, 0]
    ended_ms, committed = map(whole, each(fields.get("ended", ended)))
    return TransactionRecord(
        producer_id,
        epoch,
        last_epoch,
        last_id,
        next_id,
        text(fields["role"]),
        state,
        timeout_ms,
        started_ms,
        updated_ms,
        tuple(map(topic, each(fields["parts"]))),
        {
            text(group): {
                topic(part): CommittedOffset(whole(offset), whole(leader), text(metadata))
                for part, offset, leader, metadata in each(positions)
            }
            for group, positions in fields["groups"].items()
        },
        ended_ms,
        bool(committed),
    )


# --- sinks -------------------------------------------------------------------------------------------------------


def encode_sink(epoch: int, role: str) -> bytes:
    """The last epoch that the sink has written, and whose sink it is."""
    return f"{epoch} {role}".encode()


def decode_sink(data: bytes) -> tuple[int, str]:
    try:
        number, _, role = data.decode().partition(" ")
        if len(number) > _MAX_DIGITS:
            raise ValueError("its epoch is too long")
        return whole(int(number)), role
    except ValueError as bad:
        raise WireError(f"a sink's record is malformed: {bad}") from bad
