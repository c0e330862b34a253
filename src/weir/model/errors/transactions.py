"""The broker: idempotent producers and transactions."""

from weir.model.errors.base import BrokerError


class OutOfOrderSequenceError(BrokerError):
    """An idempotent producer's batch does not follow the last one: something between them is missing."""


class StaleEpochError(BrokerError):
    """A newer producer of the same id, or transactional id, has fenced this one."""


class UnknownProducerError(BrokerError):
    """Nothing is known of this producer id."""


class TransactionStateError(BrokerError):
    """The transaction is not in a state in which this may be asked."""


class NotInTransactionError(TransactionStateError):
    """The open transaction of this producer, if it has one, knows nothing of the partition or group."""


class SinkOfOtherQueryError(BrokerError):
    """Another query has written the last epoch of this sink: epochs of two checkpoints cannot be compared."""


class TransactionBusyError(BrokerError):
    """The last transaction of this id is still being ended."""

    hint = "try again"


class TransactionTimeoutError(BrokerError):
    """A transaction may not be left open for so long."""


class UnknownTransactionError(BrokerError):
    """Nothing is known of this transactional id."""
