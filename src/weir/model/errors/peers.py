"""Brokers among themselves: what one asked of another did not come to anything."""

from weir.model.errors.base import BrokerError


class PeerError(BrokerError):
    """Another broker could not do what this one asked of it."""


class PeerUnavailableError(PeerError):
    """The other broker cannot be reached or did not answer in time; whether it did what was asked is not known,
    unless `sent` says that it never heard of it."""

    hint = "try again; if it goes on, see `weir cluster status`"

    def __init__(self, what: str, *, hint: str | None = None, sent: bool = True) -> None:
        """`sent`: whether the request may have reached the other broker."""
        super().__init__(what, hint=hint)
        self.sent = sent


class PeerBusyError(PeerError):
    """Too much is asked of the other broker at the moment; it has done nothing about this."""

    hint = "try again in a moment"


class PeerUnsupportedError(PeerError):
    """The other broker does not know this call."""

    hint = "upgrade the older broker"


class PeerFailedError(PeerError):
    """The other broker failed with an error that has no name here."""

    hint = "see the other broker's log"
