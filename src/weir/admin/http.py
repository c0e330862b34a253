"""What an HTTP server takes on, a request and a response."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from weir.wire.first_bytes import ServedPort


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """What one server takes on."""

    host: str = "127.0.0.1"
    port: int = 0
    #: The listener among those of the process, for clients of other protocols.
    served: ServedPort = field(default_factory=lambda: ServedPort("http"))
    max_connections: int = 512
    #: Of a request line and headers: all that is read before it is known who asks.
    max_head_bytes: int = 16 * 1024
    max_body_bytes: int = 8 * 1024 * 1024
    #: Of requests that are being received or served, over all connections; where all listeners share a budget,
    #: that one counts.
    max_received_bytes: int = 256 * 1024 * 1024
    #: A connection that brings no whole request for so long is closed, and one that does not read its answer.
    idle_s: float = 60.0
    #: So long the first head of a connection may take, and any other from its first byte on.
    head_s: float = 10.0
    #: How long a refused request is read on, and thrown away, so that its client comes to read the refusal.
    linger_s: float = 2.0
    #: Connections still busy so long after `close()` are cut.
    drain_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request; its body is empty until it was admitted and read. `path` is as it came, still
    percent-encoded; header names are lower-case."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    peer: str
    #: Path and query as they came.
    target: str = ""
    #: Of a client that proved by TLS who it is.
    certificate: bytes | None = None
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    #: What follows in pieces until it ends, or until either side ends the connection; instead of a body.
    stream: AsyncGenerator[bytes, None] | None = None


Answer = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that may be read to its end, and who answers it then."""

    max_body_bytes: int
    answer: Answer


#: Decides on a request by its head alone: who asks, and for what. A response refuses it.
Admit = Callable[[Request], Awaitable[Admission | Response]]
