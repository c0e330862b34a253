"""What a server's "no" means here: the protocol's codes, and those of HTTP, as errors of the one tree."""

from weir.model import errors
from weir.wire.pulsar.proto import api

_BY_CODE: dict[int, type[errors.WeirError]] = {
    api.AuthenticationError: errors.NotAuthenticatedError,
    api.AuthorizationError: errors.NotAuthorisedError,
    api.ConsumerBusy: errors.SubscriptionBusyError,
    api.ServiceNotReady: errors.TopicClosedError,
    api.ProducerBlockedQuotaExceededError: errors.QuotaExceededError,
    api.ProducerBlockedQuotaExceededException: errors.QuotaExceededError,
    api.ChecksumError: errors.ChecksumError,
    api.UnsupportedVersionError: errors.UnknownVersionError,
    api.TopicNotFound: errors.TopicNotFoundError,
    api.SubscriptionNotFound: errors.SubscriptionNotFoundError,
    api.ConsumerNotFound: errors.ConsumerClosedError,
    api.TooManyRequests: errors.TooManyError,
    api.TopicTerminatedError: errors.StreamTerminatedError,
    api.ProducerBusy: errors.ProducerBusyError,
    api.InvalidTopicName: errors.InvalidNameError,
    api.NotAllowedError: errors.NotAllowedError,
    api.ProducerFenced: errors.ProducerFencedError,
}

_BY_STATUS: dict[int, type[errors.WeirError]] = {
    401: errors.NotAuthenticatedError,
    403: errors.NotAuthorisedError,
    404: errors.NotFoundError,
    405: errors.NotAllowedError,
    409: errors.NotAllowedError,
    412: errors.NotAllowedError,
    429: errors.TooManyError,
    503: errors.TopicClosedError,
}

_CREDENTIALS = "give a token with --token or WEIR_TOKEN"


def error_of(code: int, message: str) -> errors.WeirError:
    """The error that a broker's answer stands for."""
    kind = _BY_CODE.get(code, errors.BrokerError)
    if kind is errors.NotAuthenticatedError:
        return kind(message, hint=_CREDENTIALS)
    what = message or f"the broker refused with {api.ServerError.Name(code)}"  # type: ignore[arg-type]
    return kind(what, hint="")  # the broker has said what can be done


def error_of_status(status: int, reason: str) -> errors.WeirError:
    """The error that an HTTP answer stands for."""
    kind = _BY_STATUS.get(status, errors.BrokerError)
    if status == 404 and reason.startswith("there is no topic "):
        kind = errors.TopicNotFoundError
    if kind is errors.NotAuthenticatedError:
        return kind(reason, hint=_CREDENTIALS)
    return kind(reason, hint="")
