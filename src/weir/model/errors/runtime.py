"""The network and the disk."""

from weir.model.errors.base import WeirError


class NetworkError(WeirError):
    """The network did not deliver."""


class ConnectionLostError(NetworkError):
    """The connection broke; what was in flight may or may not have arrived."""


class ConnectFailedError(NetworkError):
    """No connection could be made."""

    hint = "check that the address is right and that the server runs"


class AddressInUseError(NetworkError):
    """The address to listen on is taken."""

    hint = "choose another port, or port 0 for a free one"


class DiskError(WeirError):
    """The disk did not do what was asked."""


class DiskFullError(DiskError):
    """No space is left on the device."""

    hint = "free some space or add a disk"


class FileMissingError(DiskError):
    """The file or directory does not exist."""


class FileLockedError(DiskError):
    """Another process holds the lock on this file."""

    hint = "another Weir uses this folder; stop it or choose another --data folder"
