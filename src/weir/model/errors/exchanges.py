"""The broker: exchanges and bindings."""

from weir.model.errors.base import BrokerError


class ExchangeNotFoundError(BrokerError):
    """No such exchange. AMQP: 404."""

    hint = "declare it first"


class ExchangeRefusedError(BrokerError):
    """A name that is kept for the broker, or something that the default or an internal exchange does not take.
    AMQP: 403."""


class ExchangeInUseError(BrokerError):
    """It was to be deleted if nothing is bound to it, and something is. AMQP: 406."""

    hint = "unbind first, or delete it without if-unused"


class InequivalentExchangeError(BrokerError):
    """There is an exchange of this name that is declared otherwise. AMQP: 406."""

    hint = "declare it as it is, or delete it first"


class ExchangeArgumentError(BrokerError):
    """An argument of an exchange or a binding has a value that it cannot have. AMQP: 406."""


class UnknownExchangeTypeError(BrokerError):
    """There is no such type of exchange. AMQP: 503, which ends the connection."""

    hint = "use direct, fanout, topic, headers or x-delayed-message"
