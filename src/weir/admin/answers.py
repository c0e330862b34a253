"""What came of a call, as a response: values as JSON, errors as statuses, another broker's topic as a redirect."""

import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec

from weir.admin.amqp.refusals import is_management, management_refusal, management_status
from weir.admin.http import Request, Response
from weir.admin.openapi import Refusal
from weir.admin.refusals import status_of
from weir.model.errors import DiskError, NotOwnerError, WeirError

log = logging.getLogger(__name__)

T = TypeVar("T")

#: No answer is larger; who asks for so much shall ask for less.
MAX_ANSWER_BYTES = 32 * 1024 * 1024


async def answered(request: Request, work: Coroutine[Any, Any, T], *, secure: bool = False) -> T | Response:
    """What came of the work; its errors as statuses. `secure`: whether who is sent on came by TLS."""
    try:
        return await work
    except NotOwnerError as elsewhere:
        return redirect(request, elsewhere, secure=secure)
    except WeirError as refused:
        status = management_status(refused) if is_management(request.path) else status_of(refused)
        log.log(
            logging.WARNING if status >= 500 else logging.INFO,
            "http: %s %s from %s: %s",
            request.method,
            request.path,
            request.peer,
            refused,
        )
        # Where the disk is at fault, what happened names paths of this machine; the log has it.
        told = "the server's disk failed; see its log" if isinstance(refused, DiskError) else str(refused)
        return _told(request, status, told, refused)
    except Exception:
        log.exception("http: %s %s failed", request.method, request.path)
        return _told(request, 500, "an internal error; see the server's log")


def _told(request: Request, status: int, why: str, refused: WeirError | None = None) -> Response:
    """A refusal in the words of the API that was called."""
    if is_management(request.path):
        return management_refusal(status, why, refused)
    return refusal(status, why)


def no_route(request: Request, verbs: list[str]) -> Response:
    """`verbs`: those that the path knows; none: there is no such path."""
    if not verbs:
        if is_management(request.path):
            return management_refusal(404, "Not Found")
        return refusal(404, "there is no such path; GET /openapi.json lists them")
    refused = _told(request, 405, f"this path knows {', '.join(verbs)}")
    return Response(405, refused.body, headers={"allow": ", ".join(verbs)})


def response(answer: object) -> Response:
    """Of what a route's action gave."""
    if isinstance(answer, Response):
        return answer
    if answer is None:
        return Response(204)
    body = msgspec.json.encode(answer)
    if len(body) > MAX_ANSWER_BYTES:
        return refusal(413, f"the answer has {len(body)} bytes, more than {MAX_ANSWER_BYTES}; ask for less")
    return Response(200, body)


def redirect(request: Request, elsewhere: NotOwnerError, *, secure: bool) -> Response:
    """To the broker that has the topic, by the kind of listener that the client came by, as Pulsar's clients
    expect it: path and query are kept, and the query says that the client was sent."""
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
