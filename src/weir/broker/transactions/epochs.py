"""Ends that begin a new epoch: what a producer means that asks for one, perhaps not for the first time.

Each transaction of such a producer has an epoch of its own, so that what comes late is never taken for a part of
the next one. The epoch is counted on together with the decision, so markers carry the new one. A producer that was
not answered asks again as who it was before: that is known from the record, after a crash, too.
"""

from enum import Enum

from weir.broker.api import ProducerIdentity, TransactionState
from weir.broker.transactions.model import Transaction, TransactionEvent
from weir.broker.transactions.shard import TransactionShard
from weir.model.errors import StaleEpochError, TransactionBusyError, TransactionStateError, UnknownProducerError

_COMMITTED = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
_ENDED = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


class EndStep(Enum):
    """What is to be done."""

    #: Decide the open transaction.
    DECIDE = "decide"
    #: None is open, and a producer that gives up only needs a new epoch.
    SKIP = "skip"
    #: Nothing but to answer: that was decided before.
    REPEAT = "repeat"


def end_step(transaction: Transaction, identity: ProducerIdentity, *, commit: bool) -> EndStep:
    """UnknownProducerError, StaleEpochError: it is somebody else's by now. TransactionBusyError: the one before is
    still being ended. TransactionStateError: there is nothing to commit, or it was decided otherwise."""
    if identity == transaction.last and (transaction.decided or transaction.state in _ENDED):
        if commit is not (transaction.state in _COMMITTED):
            raise TransactionStateError(f"the transaction of {transaction.id!r} was decided otherwise")
        return EndStep.REPEAT
    check_identity(transaction, identity)
    if transaction.decided:
        raise TransactionBusyError(f"the last transaction of {transaction.id!r} is being ended")
    if transaction.state is TransactionState.ONGOING:
        return EndStep.DECIDE
    if commit:
        raise TransactionStateError(f"{transaction.id!r} has no open transaction: it is {transaction.state.value}")
    return EndStep.SKIP


def count_on(
    shard: TransactionShard, transaction: Transaction, step: EndStep, spare: int, now_ms: int, *, commit: bool
) -> None:
    """Take the step; durable with the shard's next flush. `spare`: a new producer id, if epochs are used up."""
    if step is EndStep.REPEAT:
        return
    if step is EndStep.DECIDE:
        transaction.move(TransactionEvent.COMMIT if commit else TransactionEvent.ABORT, now_ms)
        transaction.count_epoch(asked=True)
        transaction.next_id = spare
    else:
        transaction.move(TransactionEvent.SKIP, now_ms)
        if spare >= 0:
            shard.rename(transaction, spare, transaction.epoch)
        else:
            transaction.count_epoch(asked=True)
    shard.put(transaction)


def check_identity(transaction: Transaction, identity: ProducerIdentity) -> None:
    """UnknownProducerError, StaleEpochError unless this is the id's producer. One that has a new producer id by
    now may come under it before the end of its last transaction is carried out: TransactionBusyError."""
    if transaction.decided and identity == transaction.following != transaction.identity:
        raise TransactionBusyError(f"the last transaction of {transaction.id!r} is being ended")
    if transaction.producer_id != identity.producer_id:
        raise UnknownProducerError(f"{transaction.id!r} is not the transactional id of {identity.producer_id}")
    if transaction.epoch != identity.epoch:
        raise StaleEpochError(
            f"{transaction.id!r} is at epoch {transaction.epoch}, the producer at {identity.epoch}"
        )
