"""The metadata store."""

from weir.model.errors.base import WeirError


class MetaError(WeirError):
    """The metadata store refused or failed."""


class MetaConflictError(MetaError):
    """The key is not at the expected version: someone else changed it first."""


class MetaUnavailableError(MetaError):
    """The store did not answer; the change may or may not have been made."""

    hint = "check that the metadata store runs and is reachable"


class LeaseExpiredError(MetaError):
    """The lease is gone, and with it every key that it held."""


class MetaKeyMissingError(MetaError):
    """The key to change does not exist."""


class MetaCorruptError(MetaError):
    """The embedded store lost acknowledged bytes; it may not start on what is left."""

    hint = (
        "restore the folder from a copy (weir restore); or save what can be read: weir salvage DATA --into NEW; or"
        " start once with --accept-loss to go on without what is missing"
    )


class MetaHistoryLostError(MetaError):
    """The store has forgotten changes that a watch has not seen yet: what its reader knows may be out of date."""
