"""Promises about transactions with an epoch each broken on purpose (see `kafka_mutations`)."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from weir.broker.api.transactions import ProducerIdentity
from weir.broker.transactions.transaction import Transaction
from weir.broker.transactions.transaction_coordinator import Transactions
from weir.broker.transactions.transaction_shards import EndStep, TransactionShard, count_on, end_step
from weir.model.transactions import TransactionState
from weir.testing import log_checkers as logs
from weir.testing.kafka.checkers import transactions
from weir.testing.kafka.mutations.entered import CRASHES, LOST, MODERN, SLOW_STATE, mutation

_BEFORE = (TransactionState.EMPTY, TransactionState.ONGOING)


@mutation(
    "repeated-end-is-always-right", transactions.transactions_are_atomic, storage=LOST, **{**MODERN, "aborts": 0.1}
)
def _repeated_end_is_always_right() -> Iterator[None]:
    """A producer that asks for its last transaction to be aborted is told that it was, though it was committed."""

    def hasty(transaction: Transaction, identity: ProducerIdentity, *, commit: bool) -> EndStep:
        if identity == transaction.last and transaction.state not in _BEFORE:
            return EndStep.REPEAT
        return end_step(transaction, identity, commit=commit)

    with patch("weir.broker.transactions.transaction_coordinator.end_step", hasty):
        yield


@mutation(
    "joined-before-durable", logs.all_is_available_after_healing, storage=CRASHES, streams=SLOW_STATE, **MODERN
)
def _joined_before_durable() -> Iterator[None]:
    """What is sent to a partition is stored before it is durable that the partition is part of the transaction."""

    async def at_once(self: Transactions, name: str, identity: Any, parts: Any, *, role: str = "") -> None:
        shard, transaction = await self._find(name, identity, role)
        self._begin(transaction)
        transaction.parts.update(dict.fromkeys(parts))
        transaction.confirmed.update(dict.fromkeys(parts))
        shard.put(transaction)

    with patch.object(Transactions, "add_partitions", at_once):
        yield


@mutation("renamed-before-its-markers", logs.all_is_available_after_healing, **{**MODERN, "last_epoch": 2})
def _renamed_before_its_markers() -> Iterator[None]:
    """Where epochs are used up, the new producer id is in force before the transaction of the old one is ended."""

    def early(
        shard: TransactionShard, transaction: Transaction, step: EndStep, spare: int, now_ms: int, *, commit: bool
    ) -> None:
        count_on(shard, transaction, step, spare, now_ms, commit=commit)
        if transaction.next_id >= 0:
            shard.rename(transaction, transaction.next_id, transaction.last_epoch)
            shard.put(transaction)

    with patch("weir.broker.transactions.transaction_coordinator.count_on", early):
        yield


@mutation("epoch-not-counted-on", transactions.transactions_are_atomic, storage=LOST, **{**MODERN, "aborts": 0.4})
def _epoch_not_counted_on() -> Iterator[None]:
    """The next transaction has the same epoch, and takes what was sent late in the last one."""

    def same(
        shard: TransactionShard, transaction: Transaction, step: EndStep, spare: int, now_ms: int, *, commit: bool
    ) -> None:
        epoch = transaction.epoch
        count_on(shard, transaction, step, -1, now_ms, commit=commit)
        transaction.epoch, transaction.last_epoch = epoch, -1
        shard.put(transaction)

    with patch("weir.broker.transactions.transaction_coordinator.count_on", same):
        yield
