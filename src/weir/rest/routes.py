"""The table of routes: path, verb, parameters, body and answer of each call, for server and OpenAPI alike."""

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

#: Numbers as Pulsar's Java keeps them.
Int = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Long = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]

_NAME = Annotated[str, Meta(min_length=1, max_length=512, pattern=r"^[-=:.\w]+$")]
_TEXT = Annotated[str, Meta(min_length=1)]

#: Parameters in paths that are more than some text, by name: what they are everywhere.
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
#: What OpenAPI says of the others; whether a name may be one is decided where it is used (412 if not).
PATH_SCHEMAS: dict[str, Any] = {"tenant": _NAME, "namespace": _NAME, "cluster": _NAME}


class BadRequestError(WeirError):
    """The call's path, query or body is not what the route takes."""


class RefusedError(WeirError):
    """A refusal with a status that Pulsar gives in this one place."""

    def __init__(self, status: int, what: str, *, hint: str | None = None) -> None:
        super().__init__(what, hint=hint)
        self.status = status


@dataclass(frozen=True, slots=True)
class Call:
    """One call, decoded: path and query parameters by name, the body as the route's type, and who asks."""

    role: str
    path: Mapping[str, Any]
    query: Mapping[str, Any]
    body: Any
    request: Request
    #: What it was decoded for.
    route: "Route | None" = None


#: Lets a request in as a role, or refuses it with a response.
Gate = Callable[[Request], Awaitable[str | Response]]
#: Gives a value for JSON (None: nothing, status 204), or a ready `Response`.
Action = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Query:
    """A query parameter: its name, type, what it is, and its value if it is not given."""

    name: str
    type: Any
    summary: str
    default: Any = None


@dataclass(frozen=True, slots=True)
class RefusalForm:
    """How an API that has its own error format refuses the calls below a path prefix."""

    prefix: str
    status: Callable[[WeirError], int]
    #: Makes the response from a status, a reason and the error, if the refusal comes from one.
    refusal: Callable[[int, str, WeirError | None], Response]


@dataclass(frozen=True, slots=True)
class Route:
    """`path` has parameters in braces, each one segment: `/admin/v2/tenants/{tenant}`."""

    method: str
    path: str
    summary: str
    action: Action
    body: Any = None
    #: Whether a call without a body, or with JSON's null, is fine; its body is then None.
    body_optional: bool = False
    answer: Any = None
    #: What kind of answer it is; only JSON has a type.
    media: str = JSON
    #: Whether a call that could be answered may also have nothing to say (204).
    empty: bool = False
    #: Whether it says if it made something new (201) or not (204).
    creates: bool = False
    query: tuple[Query, ...] = ()
    #: Further statuses that this call may answer with, and why.
    refusals: Mapping[int, str] = field(default_factory=dict)
    tag: str = ""
    #: Whether it is answered without asking who asks.
    open: bool = False
    #: Who finds out who asks, where that is not said as it is to the API.
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
    """What follows on a part of a path, and the routes that end there, by verb."""

    words: "dict[str, _PathNode]" = field(default_factory=dict)
    anything: "_PathNode | None" = None
    routes: dict[str, Route] = field(default_factory=dict)


class Router:
    """Finds the route of a request: segment by segment, a word before a parameter."""

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
        """The route and its path parameters, decoded; or the verbs that the path knows (none: no such path).

        Slashes at the end of a path that is no route are ignored, as Pulsar's and RabbitMQ's servers ignore one.
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
    """Every place that the path leads to."""
    if at == len(segments):
        yield place, values
        return
    word = place.words.get(segments[at])
    if word is not None:
        yield from _matches(word, segments, at + 1, values)
    if place.anything is not None and segments[at]:
        yield from _matches(place.anything, segments, at + 1, (*values, segments[at]))


def _read(body: bytes, wanted: Any) -> Any:
    """A body as its type. JSON's null, whole or as a field, is what Java's clients send for "nothing was said"."""
    if not body.strip():
        return None
    # Not strict: JSON knows no difference between 5 and 5.0, and clients send numbers as text, too.
    if b"null" not in body:
        return msgspec.json.decode(body, type=wanted, strict=False)
    return msgspec.convert(_without_nulls(msgspec.json.decode(body)), wanted | None, strict=False)


def _without_nulls(value: Any) -> Any:
    """The same without fields that are null; what is null in a list stays, and is refused by its type."""
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
