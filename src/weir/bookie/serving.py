"""What the network side of a bookie asks of the storage behind it, and what one connection may cost."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from weir.model.ids import Buffer, EntryId, LedgerId
from weir.model.reading import ReadResult
from weir.wire import bookie as wire


class Served(Protocol):
    """The bookie behind the server; `weir.ledger.interfaces.Bookie` says what each verb promises."""

    def add(
        self, ledger_id: LedgerId, entries: Sequence[tuple[EntryId, Buffer]], *, recovery: bool = False
    ) -> "asyncio.Future[None]": ...

    async def read(self, ledger_id: LedgerId, first: EntryId, last: EntryId, *, max_bytes: int) -> ReadResult: ...

    async def poll(self, ledger_id: LedgerId, after: EntryId, *, timeout_s: float) -> ReadResult: ...

    async def last_confirmed(self, ledger_id: LedgerId) -> EntryId: ...

    def confirm(self, ledger_id: LedgerId, last_confirmed: EntryId) -> None: ...

    async def fence(self, ledger_id: LedgerId) -> EntryId: ...

    async def delete(self, ledger_id: LedgerId) -> None: ...


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What one connection may cost."""

    max_frame_bytes: int = wire.MAX_FRAME_BYTES
    max_requests: int = 4096
    max_bytes: int = 64 * 1024 * 1024
    #: Waiting polls cost little, so they do not count as load; beyond these, a poll is refused as busy.
    max_polls: int = 4096
    max_poll_s: float = 60.0
    #: A read's answer is cut here (but never before one entry).
    max_read_bytes: int = 4 * 1024 * 1024
    #: How long a client may take to say hello, to say anything at all, and to read its answers.
    hello_timeout_s: float = 10.0
    idle_timeout_s: float = 120.0
    stall_timeout_s: float = 60.0
    #: How long an ended session waits for the client to hang up first, so that the reason reaches it: closing
    #: with bytes unread resets the connection and may take the reason with it.
    linger_s: float = 1.0
