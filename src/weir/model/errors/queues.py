"""What goes wrong with queues."""

from weir.model.errors.base import BrokerError


class QueueNotFoundError(BrokerError):
    """No such queue. AMQP: 404."""

    hint = "declare it first"


class QueueLockedError(BrokerError):
    """It belongs to another connection, or another consumer has it for itself. AMQP: 405 for the connection's
    queues, 403 for consumers."""

    hint = "use a queue of your own, or wait until the other one has gone"


class QueueInUseError(BrokerError):
    """It was to be deleted if it has no consumers, or no messages, and it has. AMQP: 406."""

    hint = "delete it without if-unused and if-empty"


class InequivalentQueueError(BrokerError):
    """There is a queue of this name that is declared otherwise. AMQP: 406."""

    hint = "declare it as it is, or delete it first"


class QueueArgumentError(BrokerError):
    """An argument of a queue, a consumer or a message has a value that it cannot have. AMQP: 406."""


class QueueRefusedError(BrokerError):
    """A name that is kept for the broker. AMQP: 403."""
