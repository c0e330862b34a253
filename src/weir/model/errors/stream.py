"""A partition's log."""

from weir.model.errors.base import WeirError


class StreamError(WeirError):
    """A stream could not do what was asked."""


class StreamNotFoundError(StreamError):
    """No such stream."""


class StreamClosedError(StreamError):
    """This broker has let go of the stream."""


class StreamFencedError(StreamError):
    """Another broker holds the stream now."""


class StreamTerminatedError(StreamError):
    """The stream takes no more messages, for good."""


class StreamBusyError(StreamError):
    """Too much waits to be stored; try again later."""


class OffsetTrimmedError(StreamError):
    """The offset is older than what the stream still holds."""


class NotHeldError(StreamError):
    """No message waits under this id: it was released, is being released, was cancelled, or never was held."""


class HalfDecidedError(StreamError):
    """The half message was decided before, and otherwise."""


class ReadFailedError(StreamError):
    """Messages are there and cannot be read now; trying again may help. Names the stream and the offset."""

    hint = "`weir doctor` and the broker's log say which storage does not answer"


class ReadStuckError(ReadFailedError):
    """The same, for so long that whoever waits for these messages is told."""
