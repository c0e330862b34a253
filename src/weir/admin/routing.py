"""The table of routes: path, verb, parameters, body and answer of each call, for server and OpenAPI alike."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec

from weir.admin.http import Request
from weir.model.errors import WeirError


class BadRequestError(WeirError):
    """The call's path, query or body is not what the route takes."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call, decoded: path and query parameters by name, the body as the route's type, and who asks."""

    role: str
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: Any
    request: Request


#: Gives a value for JSON (None: nothing, status 204), or a ready `Response`.
Action = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Query:
    """A query parameter: its name, type, what it is, and its value if it is not given."""

    name: str
    type: type
    summary: str
    default: Any = None


@dataclass(frozen=True, slots=True)
class Route:
    """`path` has parameters in braces, each one segment: `/admin/v2/tenants/{tenant}`."""

    method: str
    path: str
    summary: str
    action: Action
    body: Any = None
    #: Whether a call without a body is fine; its body is then None.
    body_optional: bool = False
    answer: Any = None
    query: tuple[Query, ...] = ()
    #: Further statuses that this call may answer with, and why.
    refusals: Mapping[int, str] = field(default_factory=dict)
    tag: str = ""

    @property
    def parameters(self) -> list[str]:
        return re.findall(r"{(\w+)}", self.path)

    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", self.path))

    def call(self, request: Request, path: Mapping[str, str], role: str) -> Call:
        """Decode a request for this route, or BadRequestError."""
        return Call(role, path, self._query(request), self._body(request), request)

    def _query(self, request: Request) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for query in self.query:
            given = request.query.get(query.name)
            try:
                values[query.name] = (
                    query.default if given is None else msgspec.convert(given[-1], query.type, strict=False)
                )
            except msgspec.ValidationError as wrong:
                raise BadRequestError(f"query parameter {query.name}: {wrong}") from wrong
        return values

    def _body(self, request: Request) -> Any:
        if self.body is None:
            return None
        if not request.body and self.body_optional:
            return None
        try:
            return msgspec.json.decode(request.body, type=self.body)
        except (msgspec.ValidationError, msgspec.DecodeError) as wrong:
            raise BadRequestError(f"the body of the request: {wrong}") from wrong


class Router:
    """Finds the route of a request. Where several match, the one listed first wins."""

    def __init__(self, routes: list[Route]) -> None:
        self.routes = routes
        self._by_length: dict[int, list[tuple[re.Pattern[str], Route]]] = {}
        for route in routes:
            segments = route.path.count("/")
            self._by_length.setdefault(segments, []).append((route.pattern(), route))

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | list[str]:
        """The route and its path parameters, decoded; or the verbs that the path knows (none: no such path)."""
        verbs: dict[str, None] = {}
        for pattern, route in self._by_length.get(path.count("/"), ()):
            found = pattern.fullmatch(path)
            if found is None:
                continue
            if route.method == method:
                return route, {name: _decoded(value) for name, value in found.groupdict().items()}
            verbs[route.method] = None
        return list(verbs)


def _decoded(segment: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError as wrong:
        raise BadRequestError(f"the path is not UTF-8: {wrong.reason}") from wrong
