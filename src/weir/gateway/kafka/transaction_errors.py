"""Shared parts of produce and the transaction handlers: error codes by API version, authorization, and lookups."""

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
#: Failures after which a client should look up the coordinator again.
_LOOK_AGAIN = (
    *_MOVED,
    errors.StreamError,
    errors.LedgerError,
    errors.StorageFullError,
    errors.BookieError,
    errors.MetaError,
)
#: Errors with another code in the transaction APIs than in the rest of the protocol.
_OTHERS = {
    errors.UnknownProducerError: Code.INVALID_PRODUCER_ID_MAPPING,
    errors.NotAuthorisedError: Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    errors.InvalidNameError: Code.INVALID_REQUEST,
}
#: Version of produce.
_ABORTABLE_SINCE = 11


def transactions_of(session: "Session") -> Transactions:
    """The transactions service, restricted to the client's role: the handlers use it in no other way."""
    transactions = session.services.transactions
    if transactions is None:
        raise RefusedError(Code.COORDINATOR_NOT_AVAILABLE, "this broker does not serve transactions")
    return transactions.of(session.role)


def transaction_code(
    failure: BaseException, *, fenced: Code = Code.PRODUCER_FENCED, abortable: bool = False
) -> int:
    """Kafka's code for a failed transaction request. `fenced`: this version's code for a fenced producer.
    `abortable`: whether this version knows TRANSACTION_ABORTABLE."""
    if abortable and isinstance(failure, errors.NotInTransactionError):
        return Code.TRANSACTION_ABORTABLE
    if isinstance(failure, _LOOK_AGAIN):
        return Code.NOT_COORDINATOR
    if isinstance(failure, errors.StaleEpochError):
        return fenced
    return next((code for kind, code in _OTHERS.items() if isinstance(failure, kind)), code_of(failure))


def join_code(failure: BaseException) -> int:
    """The code if a produce request cannot add a partition to its transaction. A client does not look up the
    coordinator then. A coordinator moves together with its partitions, so the client refreshes the metadata of
    these; after any other failure it retries at the same broker."""
    if isinstance(failure, _MOVED):
        return code_of(failure)
    if isinstance(failure, _LOOK_AGAIN):
        return Code.NOT_ENOUGH_REPLICAS
    return transaction_code(failure, fenced=Code.INVALID_PRODUCER_EPOCH)


def produce_code(failure: BaseException, version: int) -> int:
    """Kafka's code for a batch that was not stored."""
    if version >= _ABORTABLE_SINCE and isinstance(failure, errors.NotInTransactionError):
        return Code.TRANSACTION_ABORTABLE
    return code_of(failure)


def fenced_code(version: int, since: int) -> Code:
    """PRODUCER_FENCED; older versions only know INVALID_PRODUCER_EPOCH."""
    return Code.PRODUCER_FENCED if version >= since else Code.INVALID_PRODUCER_EPOCH


async def part_to_write(
    session: "Session", name: str, index: int, asked: set[TopicName] | None = None
) -> TopicName:
    """A partition that the client may write to; NotAuthorisedError."""
    catalog = session.services.catalog
    session.services.guard.check(session.role, catalog.base(name), Action.PRODUCE)
    return await catalog.look_part(name, index, asked)


async def find_parts(
    session: "Session", name: str, indexes: Sequence[int]
) -> tuple[dict[int, TopicName], dict[int, int]]:
    """The partitions of a topic that the client may write to, and the error codes of the others."""
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
    """Compile a pattern of transactional ids; NotAllowedError if it is invalid."""
    if not pattern:
        return lambda name: True
    return Pattern(pattern).fullmatch


def identity(producer_id: int, epoch: int) -> ProducerIdentity:
    return ProducerIdentity(producer_id, epoch)
