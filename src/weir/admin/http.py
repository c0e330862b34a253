"""What an HTTP server takes on, a request and a response."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """What one server takes on."""

    host: str = "127.0.0.1"
    port: int = 0
    max_connections: int = 512
    max_head_bytes: int = 32 * 1024
    max_body_bytes: int = 8 * 1024 * 1024
    #: A connection that brings no whole request for so long is closed, and one that does not read its answer.
    idle_s: float = 60.0
    #: Connections still busy so long after `close()` are cut.
    drain_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request, whole. `path` is as it came, still percent-encoded; header names are lower-case."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes
    peer: str
    #: Path and query as they came.
    target: str = ""
    #: Of a client that proved by TLS who it is.
    certificate: bytes | None = None


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Response]]
