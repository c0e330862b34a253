"""Responses to calls: values as JSON, errors as statuses (with the table from Weir's errors to HTTP), and
redirects to the broker that owns a topic."""

import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from weir.model import errors
from weir.model.errors import DiskError, NotOwnerError, WeirError
from weir.rest.http import Request, Response
from weir.rest.openapi import Refusal
from weir.rest.routes import BadRequestError, RefusalForm, RefusedError, Route

#: The first class that matches an error decides, so narrower classes come first.
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
    # Transient failures: a retry may succeed.
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
    """The status for an error; 500 if the table does not contain it."""
    if isinstance(error, RefusedError):
        return error.status
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


log = logging.getLogger(__name__)

T = TypeVar("T")

#: The largest response body; a client must request less at a time.
MAX_ANSWER_BYTES = 32 * 1024 * 1024


Forms = Sequence[RefusalForm]


def forms_of(routes: Iterable[Route]) -> Forms:
    """The error formats of these routes, each once."""
    return tuple(dict.fromkeys(route.form for route in routes if route.form is not None))


def _form(request: Request, forms: Forms) -> RefusalForm | None:
    return next((form for form in forms if request.path.startswith(form.prefix)), None)


async def answered(
    request: Request, work: Coroutine[Any, Any, T], *, secure: bool = False, forms: Forms = ()
) -> T | Response:
    """Return the result of the work, or its error as a response. `secure`: the client of a redirect used TLS."""
    form = _form(request, forms)
    try:
        return await work
    except NotOwnerError as elsewhere:
        return redirect(request, elsewhere, secure=secure)
    except WeirError as refused:
        status = status_of(refused) if form is None else form.status(refused)
        log.log(
            logging.WARNING if status >= 500 else logging.INFO,
            "http: %s %s from %s: %s",
            request.method,
            request.path,
            request.peer,
            refused,
        )
        # A disk error contains local paths, so only the log has its text.
        reason = "the server's disk failed; see its log" if isinstance(refused, DiskError) else str(refused)
        return _refused(form, status, reason, refused)
    except Exception:
        log.exception("http: %s %s failed", request.method, request.path)
        return _refused(form, 500, "an internal error; see the server's log")


def _refused(form: RefusalForm | None, status: int, reason: str, error: WeirError | None = None) -> Response:
    return refusal(status, reason) if form is None else form.refusal(status, reason, error)


def no_route(request: Request, verbs: list[str], forms: Forms = ()) -> Response:
    """The response if no route fits. `verbs`: the methods of this path; empty: the path does not exist."""
    form = _form(request, forms)
    if not verbs:
        if form is not None:
            return form.refusal(404, "Not Found", None)
        return refusal(404, "this path does not exist; GET /openapi.json lists all paths")
    refused = _refused(form, 405, f"this path supports {', '.join(verbs)}")
    return Response(405, refused.body, headers={"allow": ", ".join(verbs)})


def response(answer: object) -> Response:
    """Convert the result of a route's action."""
    if isinstance(answer, Response):
        return answer
    if answer is None:
        return Response(204)
    body = msgspec.json.encode(answer)
    if len(body) > MAX_ANSWER_BYTES:
        return refusal(413, f"the answer has {len(body)} bytes, the limit is {MAX_ANSWER_BYTES}; request less")
    return Response(200, body)


def redirect(request: Request, elsewhere: NotOwnerError, *, secure: bool) -> Response:
    """Redirect to the broker that owns the topic, on the same kind of listener. As Pulsar's clients expect, path
    and query stay, and the query gets `authoritative=true`."""
    names = ("https", "http") if secure else ("http", "https")
    url = next((elsewhere.listeners[name] for name in names if elsewhere.listeners.get(name)), "")
    if not url:
        return refusal(503, str(elsewhere))
    path, _, query = request.target.partition("?")
    kept = [said for said in query.split("&") if said and not said.startswith("authoritative=")]
    return Response(
        307, headers={"location": f"{url.rstrip('/')}{path}?{'&'.join([*kept, 'authoritative=true'])}"}
    )


def refusal(status: int, why: str) -> Response:
    return Response(status, msgspec.json.encode(Refusal(why)))
