"""Calls of clients that reached the wrong broker: its gateway hands them on to that of the right one."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class ClientCall:
    """What a client asked, in its protocol's own bytes. `role`: who it is, by the broker that it asked. `wait_ms`:
    how long the answer may take. `about`: names that belong to the call and are not in its body."""

    gateway: str
    method: str
    role: str
    client: str
    body: bytes
    wait_ms: int
    about: tuple[str, ...] = ()


#: Answers a call that another broker's gateway handed on.
Answering: TypeAlias = Callable[[ClientCall], Awaitable[Sequence[bytes]]]


class GatewayCalls(Protocol):
    def answer(self, gateway: str, answering: Answering) -> None:
        """The gateway of this name answers such calls from now on."""

    async def hand_on(self, broker_id: str, call: ClientCall) -> Sequence[bytes]:
        """Have the other broker's gateway answer it (this broker's own, if it is this one). A PeerError if it
        cannot be asked."""
