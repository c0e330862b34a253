"""Bytes that do not follow a protocol."""

from weir.model.errors.base import WeirError


class WireError(WeirError):
    """Bytes that do not follow the protocol: the only error that a codec raises."""


class FrameTooLargeError(WireError):
    """A frame announces more bytes than the limit allows."""


class ChecksumError(WireError):
    """Bytes whose checksum does not match."""


class UnknownVersionError(WireError):
    """A format or protocol version that this build does not know."""
