"""The broker: topics, producers, consumers and subscriptions."""

from collections.abc import Mapping

from weir.model.errors.base import BrokerError, NotFoundError
from weir.model.errors.meta import MetaUnavailableError


class TopicNotFoundError(NotFoundError):
    """No such topic, and it may not be made by being asked for."""


class TopicClosedError(BrokerError):
    """This broker has let go of the topic."""

    hint = "look the topic up again and connect anew"


class NotOwnerError(BrokerError):
    """Another broker has the topic; its addresses, if they are known."""

    hint = "look the topic up again"

    def __init__(self, what: str, *, hint: str | None = None, listeners: Mapping[str, str] | None = None) -> None:
        """`listeners`: where that broker is reached, by the names of its listeners."""
        super().__init__(what, hint=hint)
        self.listeners: Mapping[str, str] = listeners or {}


class ProducerBusyError(BrokerError):
    """The topic has a producer that excludes this one, or one of the same name."""


class ProducerFencedError(BrokerError):
    """Another producer has taken the topic for itself."""


class ProducerClosedError(BrokerError):
    """The producer is closed; what it sent last may or may not have been stored."""

    hint = "connect anew and send again; deduplication drops what is there already"


class DuplicateInDoubtError(BrokerError):
    """Whether the message is there already cannot be told yet."""

    hint = "connect anew and send again"


class MessageTooLargeError(BrokerError):
    """The message is larger than the topic allows."""


class InvalidRecordError(BrokerError):
    """What the message asks for in its headers, or is, cannot be."""


class QuotaExceededError(BrokerError):
    """The topic's backlog exceeds its quota."""

    hint = "consume or skip what waits there"


class StorageFullError(QuotaExceededError):
    """Nothing new can be stored now: the disk is nearly full."""

    hint = (
        "free some space, shorten retention or delete topics; or lower storage.low_water_bytes and"
        " storage.high_water_bytes"
    )


class MetaFullError(StorageFullError, MetaUnavailableError):
    """The disk of the metadata store is full; the change may be made once it has space again."""

    hint = "free some space on that disk; Weir continues by itself"


class ProducersHeldError(QuotaExceededError):
    """The topic's backlog exceeds its quota; producers shall wait until it does not."""


class SubscriptionNotFoundError(BrokerError):
    """No such subscription."""


class SubscriptionExistsError(BrokerError):
    """There is a subscription of this name already."""


class SubscriptionBusyError(BrokerError):
    """The subscription has consumers that exclude what was asked."""


class ConsumerClosedError(BrokerError):
    """The consumer is closed."""


class FilterError(BrokerError):
    """A filter of a subscription cannot be understood. `position`: where in it, from 1; None: nowhere in
    particular."""

    hint = "see docs/reference/filters.md for what can be said"

    def __init__(self, what: str, *, hint: str | None = None, position: int | None = None) -> None:
        super().__init__(what, hint=hint)
        self.position = position


class HashRangesError(BrokerError):
    """The hash ranges that a consumer asked for are malformed or taken."""
