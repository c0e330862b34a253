"""The table of routes: path, method, parameters, body and answer of each call, for the server and OpenAPI."""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import unquote

import msgspec
from msgspec import Meta

from weir.model.errors import WeirError
from weir.rest.http import Request, Response

JSON = "application/json"
TEXT = "text/plain"
BYTES = "application/octet-stream"

#: The number types of Pulsar's Java API.
Int = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Long = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]

_NAME = Annotated[str, Meta(min_length=1, max_length=512, pattern=r"^[-=:.\w]+$")]
_TEXT = Annotated[str, Meta(min_length=1)]

#: Types of path parameters that are not text, by name, for all routes.
PATH_PARAMETERS: dict[str, Any] = {
    "position": Positive,
    "count": Natural,
    "offset": Natural,
    "seconds": Natural,
    "timestamp": Natural,
    "ledger": Long,
    "entry": Long,
    "version": Natural,
    "epoch": Natural,
}
#: OpenAPI schemas of text parameters; the actions validate the names (412 if invalid).
PATH_SCHEMAS: dict[str, Any] = {"tenant": _NAME, "namespace": _NAME, "cluster": _NAME}


class BadRequestError(WeirError):
    """The call's path, query or body does not match the route."""


class RefusedError(WeirError):
    """A refusal with a status that Pulsar uses only for this call."""

    def __init__(self, status: int, what: str, *, hint: str | None = None) -> None:
        super().__init__(what, hint=hint)
        self.status = status


@dataclass(frozen=True, slots=True)
class Call:
    """One decoded call: path and query parameters by name, the body as the route's type, and the caller's role."""

    role: str
    path: Mapping[str, Any]
    query: Mapping[str, Any]
    body: Any
    request: Request
    #: The route that decoded it.
    route: "Route | None" = None


#: Authenticates a request and returns its role, or a response that refuses it.
Gate = Callable[[Request], Awaitable[str | Response]]
#: Returns a value for JSON (None: status 204), or a `Response`.
Action = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Query:
    """A query parameter: name, type, description and default."""

    name: str
    type: Any
    summary: str
    default: Any = None


@dataclass(frozen=True, slots=True)
class RefusalForm:
    """The error format of an API, for all calls below a path prefix."""

    prefix: str
    status: Callable[[WeirError], int]
    #: Builds the response from a status, a reason and the error, if an error caused the refusal.
    refusal: Callable[[int, str, WeirError | None], Response]


@dataclass(frozen=True, slots=True)
class Route:
    """`path` has parameters in braces, each one segment: `/admin/v2/tenants/{tenant}`."""

    method: str
    path: str
    summary: str
    action: Action
    body: Any = None
    #: Whether a call may omit the body or send JSON null; its body is then None.
    body_optional: bool = False
    answer: Any = None
    #: The media type of the answer; only JSON answers have a schema.
    media: str = JSON
    #: Whether a call may also succeed without an answer (204).
    empty: bool = False
    #: Whether the status distinguishes a creation (201) from a change (204).
    creates: bool = False
    query: tuple[Query, ...] = ()
    #: Further error statuses of this call, with their reasons.
    refusals: Mapping[int, str] = field(default_factory=dict)
    tag: str = ""
    #: Whether the call needs no authentication.
    open: bool = False
    #: The route's own authentication, if it differs from the API's.
    gate: Gate | None = None
    #: The error format of the API that this route belongs to; None: Weir's own.
    form: RefusalForm | None = None

    @property
    def parameters(self) -> list[str]:
        return re.findall(r"{(\w+)}", self.path)

    def call(self, request: Request, path: Mapping[str, str], role: str) -> Call:
        """Decode a request for this route, or BadRequestError."""
        return Call(role, _path(path), self._query(request), self._body(request), request, self)

    def _query(self, request: Request) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for query in self.query:
            given = request.query.get(query.name)
            values[query.name] = (
                query.default
                if given is None
                else _converted(given[-1], query.type, f"query parameter {query.name}")
            )
        return values

    def _body(self, request: Request) -> Any:
        if self.body is None:
            return None
        try:
            body = _read(request.body, self.body)
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
            raise BadRequestError(f"the body of the request: {wrong}") from wrong
        if body is None and not self.body_optional:
            raise BadRequestError("the request needs a body")
        return body


@dataclass(slots=True)
class _PathNode:
    """A node of the path tree: its children, and the routes that end here, by method."""

    words: "dict[str, _PathNode]" = field(default_factory=dict)
    anything: "_PathNode | None" = None
    routes: dict[str, Route] = field(default_factory=dict)


class Router:
    """Finds the route of a request segment by segment; literal segments take precedence over parameters."""

    def __init__(self, routes: list[Route]) -> None:
        self._root = _PathNode()
        for route in routes:
            self._place(route.path).routes[route.method] = route

    def _place(self, path: str) -> _PathNode:
        at = self._root
        for segment in path.split("/"):
            if segment.startswith("{"):
                at.anything = at.anything or _PathNode()
                at = at.anything
            else:
                at = at.words.setdefault(segment, _PathNode())
        return at

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | list[str]:
        """The route and its decoded path parameters, or the methods of the path (empty: the path does not exist).

        If no route matches, the router ignores slashes at the end of the path, as Pulsar and RabbitMQ ignore one.
        """
        found = self._find(method, path)
        return found or self._find(method, path.rstrip("/"))

    def _find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | list[str]:
        verbs: dict[str, None] = {}
        for place, values in _matches(self._root, path.split("/"), 0, ()):
            route = place.routes.get(method)
            if route is not None:
                return route, dict(zip(route.parameters, map(_decoded, values), strict=True))
            verbs.update(dict.fromkeys(place.routes))
        return list(verbs)


def _matches(
    place: _PathNode, segments: list[str], at: int, values: tuple[str, ...]
) -> Iterator[tuple[_PathNode, tuple[str, ...]]]:
    """Every node that matches the path."""
    if at == len(segments):
        yield place, values
        return
    word = place.words.get(segments[at])
    if word is not None:
        yield from _matches(word, segments, at + 1, values)
    if place.anything is not None and segments[at]:
        yield from _matches(place.anything, segments, at + 1, (*values, segments[at]))


def _read(body: bytes, wanted: Any) -> Any:
    """Decode a body as its type. Java clients send JSON null, as the body or as a field, for an unset value."""
    if not body.strip():
        return None
    # Not strict: JSON does not distinguish 5 from 5.0, and some clients send numbers as text.
    if b"null" not in body:
        return msgspec.json.decode(body, type=wanted, strict=False)
    return msgspec.convert(_without_nulls(msgspec.json.decode(body)), wanted | None, strict=False)


def _without_nulls(value: Any) -> Any:
    """Remove fields that are null. A null in a list stays, and the type check refuses it."""
    if isinstance(value, dict):
        return {name: _without_nulls(said) for name, said in value.items() if said is not None}
    if isinstance(value, list):
        return [_without_nulls(one) if isinstance(one, dict | list) else one for one in value]
    return value


def _path(path: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: _converted(value, PATH_PARAMETERS[name], f"{name} in the path") if name in PATH_PARAMETERS else value
        for name, value in path.items()
    }


def _converted(text: str, wanted: Any, where: str) -> Any:
    try:
        return msgspec.convert(text, wanted, strict=False)
    except msgspec.ValidationError as wrong:
        raise BadRequestError(f"{where}: {wrong}") from wrong


def _decoded(segment: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError as wrong:
        raise BadRequestError(f"the path is not UTF-8: {wrong.reason}") from wrong
