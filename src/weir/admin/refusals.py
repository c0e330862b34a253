"""Which status a refused call gets: the one table from Weir's errors to HTTP."""

from weir.admin.routing import BadRequestError
from weir.model import errors

#: The first class that an error is an instance of decides, so narrower ones stand first.
_STATUSES: list[tuple[type[errors.WeirError], int]] = [
    (BadRequestError, 400),
    (errors.NotAuthenticatedError, 401),
    (errors.NotAuthorisedError, 403),
    (errors.InvalidNameError, 412),
    (errors.StreamBusyError, 503),
    (errors.MetaUnavailableError, 503),
    (errors.InvariantError, 500),
]


def status_of(error: errors.WeirError) -> int:
    """The status for an error; 500 if the table does not know it."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
