"""The broker: who may do what, and how much of it."""

from weir.model.errors.base import BrokerError


class NotAuthenticatedError(BrokerError):
    """The credentials are missing, wrong or out of date."""


class NotAuthorisedError(BrokerError):
    """The role may not do this."""


class NotAllowedError(BrokerError):
    """What was asked makes no sense here, or a policy forbids it."""


class TooManyError(BrokerError):
    """A limit on producers, consumers or subscriptions is reached."""
