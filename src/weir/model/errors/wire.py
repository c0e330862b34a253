"""Bytes that do not follow a protocol."""

from weir.model.errors.base import WeirError


class WireError(WeirError):
    """Bytes that do not follow the protocol: the only error that a codec raises."""


class WrongPortError(WireError):
    """A client uses another protocol than its port serves."""


class FrameTooLargeError(WireError):
    """A frame announces more bytes than the limit allows."""


class ChecksumError(WireError):
    """Bytes whose checksum does not match."""


class UnknownVersionError(WireError):
    """A format or protocol version that this build does not know."""


class AmqpError(WireError):
    """What ends a connection or a channel of AMQP 0-9-1, with the reply code that its close says.

    `class_id` and `method_id` name the method that was at fault; 0 if it was none.
    """

    def __init__(
        self, what: str, *, code: int = 541, class_id: int = 0, method_id: int = 0, hint: str | None = None
    ) -> None:
        """`code`: an internal error, if nothing else is said."""
        super().__init__(what, hint=hint)
        self.code = code
        self.class_id = class_id
        self.method_id = method_id


class AmqpHeaderError(WireError):
    """A peer that opens with another protocol than AMQP 0-9-1: a server answers its own header, and closes."""
