"""The admin call: a request of the admin API that another broker has to answer, since it owns what it is about."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weir.wire.peer.values import Call, PeerRequest


@dataclass(frozen=True, slots=True)
class AdminAnswer:
    """As the admin API answers it over HTTP."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdminCall(PeerRequest[AdminAnswer]):
    """A request of somebody whom the asking broker has authenticated as `role`; what the role may do, the
    answering one decides. `path` and `query` are as they came, percent-encoded."""

    role: str
    method: str
    path: str
    query: str = ""
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


CALLS: tuple[Call[Any], ...] = (Call(64, "admin", AdminCall, AdminAnswer),)
