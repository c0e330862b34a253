"""The network and the disk."""

from weir.model.errors.base import WeirError


class NetworkError(WeirError):
    """The network did not deliver."""


class ConnectionLostError(NetworkError):
    """The connection broke; what was in flight may or may not have arrived."""


class ConnectFailedError(NetworkError):
    """No connection could be made."""

    hint = "check that the address is right and that the server runs"


class TlsFailedError(ConnectFailedError):
    """The handshake of TLS failed: the two do not agree, or one does not take the other's certificate. It would
    fail again."""

    hint = "check certificate and CA"


class TlsRefusedError(ConnectionLostError):
    """The other end closed a TLS connection before it said a word: a server learns of a client's certificate after
    the client is done with the handshake. One that does so several times in a row does not take it."""


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
