"""Errors in the format of RabbitMQ's management API: its statuses, and bodies with error and reason."""

import msgspec

from weir.model import errors
from weir.rest.http import Response
from weir.rest.responses import status_of
from weir.rest.routes import BadRequestError, RefusalForm, RefusedError

API = "/api"
#: Header of the answer to a client with missing or wrong credentials.
CHALLENGE = {"www-authenticate": 'Basic realm="RabbitMQ Management"'}

_WORDS = {
    400: "bad_request",
    401: "not_authorised",
    404: "Object Not Found",
    405: "Method Not Allowed",
    413: "request_too_large",
    500: "internal_error",
    503: "unavailable",
}
#: Errors for which RabbitMQ's status differs from the admin API's; the first match counts.
_STATUSES: list[tuple[type[errors.WeirError], int]] = [
    (BadRequestError, 400),
    (errors.NotAuthenticatedError, 401),
    (errors.NotAuthorisedError, 401),
    (errors.ExchangeRefusedError, 401),
    (errors.QueueRefusedError, 401),
    (errors.ExchangeNotFoundError, 404),
    (errors.QueueNotFoundError, 404),
    (errors.ExchangeInUseError, 400),
    (errors.InequivalentExchangeError, 400),
    (errors.ExchangeArgumentError, 400),
    (errors.UnknownExchangeTypeError, 400),
    (errors.QueueLockedError, 400),
    (errors.QueueInUseError, 400),
    (errors.InequivalentQueueError, 400),
    (errors.QueueArgumentError, 400),
    (errors.InvalidNameError, 400),
    (errors.NotAllowedError, 400),
    (errors.TooManyError, 400),
    (errors.QuotaExceededError, 400),
    (errors.AmqpError, 400),
]


class ManagementError(RefusedError):
    """An error with a status, and possibly an error word, of RabbitMQ's API."""

    def __init__(self, status: int, reason: str, *, error: str = "", hint: str | None = None) -> None:
        super().__init__(status, reason, hint=hint)
        self.error = error


def not_found() -> ManagementError:
    return ManagementError(404, "Not Found")


def bad_request(reason: str, *, hint: str | None = None) -> ManagementError:
    return ManagementError(400, reason, hint=hint)


def management_status(refused: errors.WeirError) -> int:
    if isinstance(refused, RefusedError):
        return refused.status
    found = next((status for kind, status in _STATUSES if isinstance(refused, kind)), None)
    return status_of(refused) if found is None else found


def management_refusal(status: int, reason: str, refused: errors.WeirError | None = None) -> Response:
    """The error response. `refused`: the exception behind it, if any."""
    error = _WORDS.get(status, "error")
    headers = {}
    if isinstance(refused, errors.NotAuthenticatedError):
        error, headers = "not_authorized", CHALLENGE
    elif isinstance(refused, ManagementError) and refused.error:
        error = refused.error
    elif status == 404 and reason != "Not Found":
        error = "not_found"
    return Response(status, msgspec.json.encode({"error": error, "reason": reason}), headers=headers)


#: The error format of all routes below `/api`.
MANAGEMENT_FORM = RefusalForm(f"{API}/", management_status, management_refusal)
