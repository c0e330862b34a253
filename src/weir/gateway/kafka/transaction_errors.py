"""What the handlers of transactions have in common: who is meant, who may, what is said when not.

AddPartitionsToTxn: partitions that a transaction is going to write to. All of a request's, or none.

Clients name one transaction. The form with several, since version 4, is what Kafka's brokers send to each other;
it is understood all the same.

TxnOffsetCommit: where a group will be if the transaction commits. Since version 5 it joins it by that.

DescribeProducers: idempotent and transactional producers that wrote to partitions not long ago.

DescribeTransactions: what is open under transactional ids, since when, and where.

ListTransactions: the transactional ids that this broker coordinates, as far as the client may use them.

InitProducerId: who an idempotent or transactional producer is from now on.

EndTxn: commit a transaction, or abort it. Since version 5 with a new epoch or producer id for the next one.

AddOffsetsToTxn: a group whose positions a transaction is going to move.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weir.broker.api.broker import Pattern
from weir.broker.api.transactions import ProducerIdentity, Transactions
from weir.gateway.kafka.errors import Code, RefusedError, code_of
from weir.model import errors
from weir.model.registry import Action
from weir.model.topics import TopicName

if TYPE_CHECKING:
    from weir.gateway.kafka.session import Session

_MOVED = (errors.NotOwnerError, errors.TopicClosedError)
#: What clients meet by looking for the coordinator again.
_LOOK_AGAIN = (
    *_MOVED,
    errors.StreamError,
    errors.LedgerError,
    errors.StorageFullError,
    errors.BookieError,
    errors.MetaError,
)
#: What is called otherwise elsewhere.
_OTHERS = {
    errors.UnknownProducerError: Code.INVALID_PRODUCER_ID_MAPPING,
    errors.NotAuthorisedError: Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    errors.InvalidNameError: Code.INVALID_REQUEST,
}
#: Of produce.
_ABORTABLE_SINCE = 11


def transactions_of(session: "Session") -> Transactions:
    """Transactions as the client's role may use them: there is no other way to them from here."""
    transactions = session.services.transactions
    if transactions is None:
        raise RefusedError(Code.COORDINATOR_NOT_AVAILABLE, "transactions are not served here")
    return transactions.of(session.role)


def transaction_code(
    failure: BaseException, *, fenced: Code = Code.PRODUCER_FENCED, abortable: bool = False
) -> int:
    """Kafka's code for what went wrong with a transaction. `fenced`: what this version calls a producer that
    another has taken the place of. `abortable`: whether it has a word for what an abort mends."""
    if abortable and isinstance(failure, errors.NotInTransactionError):
        return Code.TRANSACTION_ABORTABLE
    if isinstance(failure, _LOOK_AGAIN):
        return Code.NOT_COORDINATOR
    if isinstance(failure, errors.StaleEpochError):
        return fenced
    return next((code for kind, code in _OTHERS.items() if isinstance(failure, kind)), code_of(failure))


def join_code(failure: BaseException) -> int:
    """The same where a partition is made part of a transaction by being produced to. Clients look for no
    coordinator then. One that has moved took the partitions with it, so they look for these; else they try again
    where they are."""
    if isinstance(failure, _MOVED):
        return code_of(failure)
    if isinstance(failure, _LOOK_AGAIN):
        return Code.NOT_ENOUGH_REPLICAS
    return transaction_code(failure, fenced=Code.INVALID_PRODUCER_EPOCH)


def produce_code(failure: BaseException, version: int) -> int:
    """Of a batch that is not stored."""
    if version >= _ABORTABLE_SINCE and isinstance(failure, errors.NotInTransactionError):
        return Code.TRANSACTION_ABORTABLE
    return code_of(failure)


def fenced_code(version: int, since: int) -> Code:
    """Older versions have no word of their own for it."""
    return Code.PRODUCER_FENCED if version >= since else Code.INVALID_PRODUCER_EPOCH


async def part_to_write(
    session: "Session", name: str, index: int, asked: set[TopicName] | None = None
) -> TopicName:
    """A partition, if the client may produce there."""
    catalog = session.services.catalog
    session.services.guard.check(session.role, catalog.base(name), Action.PRODUCE)
    return await catalog.look_part(name, index, asked)


async def find_parts(
    session: "Session", name: str, indexes: Sequence[int]
) -> tuple[dict[int, TopicName], dict[int, int]]:
    """Of a topic's partitions those that the client may write to, and the codes of the others."""
    found: dict[int, TopicName] = {}
    refused: dict[int, int] = {}
    asked: set[TopicName] = set()
    for index in indexes:
        try:
            found[index] = await part_to_write(session, name, index, asked)
        except errors.WeirError as failure:
            refused[index] = code_of(failure)
    return found, refused


def id_matcher(pattern: str | None) -> Callable[[str], bool]:
    """Which transactional ids a pattern means; NotAllowedError if it is none."""
    if not pattern:
        return lambda name: True
    return Pattern(pattern).fullmatch


def identity(producer_id: int, epoch: int) -> ProducerIdentity:
    return ProducerIdentity(producer_id, epoch)
