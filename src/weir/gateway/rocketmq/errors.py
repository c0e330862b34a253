"""Table from Weir's errors to RocketMQ's status codes; the nearest class in the error's MRO decides."""

from typing import Any

from weir.model import errors
from weir.wire.rocketmq import rocketmq_pb2 as api

_C = api.Code

CODES: dict[type[BaseException], Any] = {
    errors.WeirError: _C.INTERNAL_SERVER_ERROR,
    errors.InvalidNameError: _C.ILLEGAL_TOPIC,
    errors.WireError: _C.BAD_REQUEST,
    errors.NetworkError: _C.INTERNAL_SERVER_ERROR,
    errors.BrokerError: _C.INTERNAL_SERVER_ERROR,
    errors.NotAuthenticatedError: _C.UNAUTHORIZED,
    errors.NotAuthorisedError: _C.FORBIDDEN,
    errors.NotAllowedError: _C.BAD_REQUEST,
    errors.TooManyError: _C.TOO_MANY_REQUESTS,
    errors.MessageTooLargeError: _C.MESSAGE_BODY_TOO_LARGE,
    errors.QuotaExceededError: _C.TOO_MANY_REQUESTS,
    errors.ProducersHeldError: _C.TOO_MANY_REQUESTS,
    errors.StorageFullError: _C.INTERNAL_SERVER_ERROR,
    errors.TopicNotFoundError: _C.TOPIC_NOT_FOUND,
    errors.TenantNotFoundError: _C.TOPIC_NOT_FOUND,
    errors.NamespaceNotFoundError: _C.TOPIC_NOT_FOUND,
    errors.SubscriptionNotFoundError: _C.CONSUMER_GROUP_NOT_FOUND,
    # Another broker owns the queue, or it is moving: clients query the route again and retry.
    errors.TopicClosedError: _C.HA_NOT_AVAILABLE,
    errors.NotOwnerError: _C.HA_NOT_AVAILABLE,
    errors.ConsumerClosedError: _C.HA_NOT_AVAILABLE,
    errors.StreamNotFoundError: _C.TOPIC_NOT_FOUND,
    errors.StreamClosedError: _C.HA_NOT_AVAILABLE,
    errors.StreamFencedError: _C.HA_NOT_AVAILABLE,
    errors.PeerError: _C.HA_NOT_AVAILABLE,
    errors.NotHeldError: _C.BAD_REQUEST,
    errors.FilterError: _C.ILLEGAL_FILTER_EXPRESSION,
    errors.UnknownGroupError: _C.CONSUMER_GROUP_NOT_FOUND,
}
#: This broker does not own the queue, or has lost it: the caller must find the owner again.
MOVED = (
    errors.NotOwnerError,
    errors.TopicClosedError,
    errors.ConsumerClosedError,
    errors.StreamClosedError,
    errors.StreamFencedError,
)
_INTERNAL = "an internal error; see the broker's log"


class Refused(errors.BrokerError):
    """Refuses a call, with the code and text of the answer."""

    def __init__(self, code: Any, what: str) -> None:
        super().__init__(what)
        self.code = code


def code_of(failure: BaseException) -> Any:
    if isinstance(failure, Refused):
        return failure.code
    return next((CODES[kind] for kind in type(failure).__mro__ if kind in CODES), _C.INTERNAL_SERVER_ERROR)


def status_of(failure: BaseException) -> Any:
    """The status for a failure. Only the log contains details of bugs and paths of this machine."""
    hidden = not isinstance(failure, errors.WeirError) or isinstance(failure, errors.DiskError)
    return api.Status(code=code_of(failure), message=_INTERNAL if hidden else _words(failure))


def _words(failure: BaseException) -> str:
    return failure.what if isinstance(failure, errors.WeirError) else _INTERNAL


def ok() -> Any:
    return api.Status(code=_C.OK, message="OK")
