"""Which status a refused call gets: the one table from Weir's errors to HTTP."""

from weir.admin.routing import BadRequestError, RefusedError
from weir.model import errors

#: The first class that an error is an instance of decides, so narrower ones stand first.
_STATUSES: list[tuple[type[errors.WeirError], int]] = [
    (BadRequestError, 400),
    (errors.NotAuthenticatedError, 401),
    (errors.NotAuthorisedError, 403),
    (errors.FilterError, 400),
    (errors.SqlError, 400),
    (errors.InvalidNameError, 412),
    (errors.InvalidGroupError, 412),
    (errors.TenantNotFoundError, 404),
    (errors.NamespaceNotFoundError, 404),
    (errors.TopicNotFoundError, 404),
    (errors.ClusterNotFoundError, 404),
    (errors.SubscriptionNotFoundError, 404),
    (errors.UnknownGroupError, 404),
    (errors.SchemaNotFoundError, 404),
    (errors.StreamNotFoundError, 404),
    (errors.NotHeldError, 404),
    (errors.SqlStreamNotFoundError, 404),
    (errors.ConnectorNotFoundError, 404),
    (errors.FunctionNotFoundError, 404),
    (errors.ReplayNotFoundError, 404),
    (errors.OffsetTrimmedError, 404),
    (errors.TenantExistsError, 409),
    (errors.NamespaceExistsError, 409),
    (errors.TopicExistsError, 409),
    (errors.SubscriptionExistsError, 409),
    (errors.NotEmptyError, 409),
    (errors.GroupNotEmptyError, 409),
    (errors.UnknownMemberError, 409),
    (errors.SqlStreamExistsError, 409),
    (errors.ConnectorExistsError, 409),
    (errors.FunctionExistsError, 409),
    (errors.RunnerBusyError, 409),
    (errors.IncompatibleSchemaError, 409),
    (errors.MetaConflictError, 409),
    (errors.TransactionStateError, 409),
    (errors.HalfDecidedError, 409),
    (errors.StaleEpochError, 409),
    (errors.SinkOfOtherQueryError, 409),
    (errors.UnknownProducerError, 409),
    (errors.InvalidSchemaError, 422),
    (errors.NotAllowedError, 412),
    (errors.SubscriptionBusyError, 412),
    (errors.StreamTerminatedError, 412),
    (errors.TooManyError, 412),
    (errors.StorageFullError, 507),
    (errors.QuotaExceededError, 412),
    # What may be better at the next attempt.
    (errors.NotOwnerError, 503),
    (errors.PeerError, 503),
    (errors.TopicClosedError, 503),
    (errors.StreamError, 503),
    (errors.MetaError, 503),
    (errors.LedgerError, 503),
    (errors.BookieError, 503),
    (errors.InvariantError, 500),
]


def status_of(error: errors.WeirError) -> int:
    """The status for an error; 500 if the table does not know it."""
    if isinstance(error, RefusedError):
        return error.status
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
