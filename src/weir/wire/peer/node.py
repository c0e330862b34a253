"""Calls about a broker as a whole."""

from dataclasses import dataclass
from typing import Any

from weir.wire.peer.values import Call, PeerRequest


@dataclass(frozen=True, slots=True)
class Done:
    """It is done, and there is nothing to say about it."""


@dataclass(frozen=True, slots=True)
class Ping(PeerRequest[Done]):
    """Are you there? Answered by every broker, also a busy one."""


CALLS: tuple[Call[Any], ...] = (Call(1, "ping", Ping, Done),)
