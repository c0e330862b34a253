"""What a ledger asks of a bookie, wherever the bookie runs.

`weir.bookie.Bookie` fills this in process by direct call, `weir.ledger.remote_bookie.RemoteBookie` over the
network; neither imports the other. Every refusal is a `BookieError`; one whose outcome is unknown (lost
connection,
time-out) is a `BookieUnavailableError`.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from weir.model.ids import BookieId, Buffer, EntryId, LedgerId
from weir.model.ledger import ReadResult


class Bookie(Protocol):
    """One storage node."""

    def add(
        self, ledger_id: LedgerId, entries: Sequence[tuple[EntryId, Buffer]], *, recovery: bool = False
    ) -> "asyncio.Future[None]":
        """Store encoded entries (`weir.wire.entry`); done when all of them are as durable as the sync policy
        says. Adding an entry again replaces it. A fenced ledger takes only `recovery` adds. Decides at once
        and never blocks: a refusal is an already failed future."""

    async def read(self, ledger_id: LedgerId, first: EntryId, last: EntryId, *, max_bytes: int) -> ReadResult:
        """The entries that this bookie holds in [first, last], from `first` on, stopping after `max_bytes` (but
        never before one entry). NoSuchEntryError if `first` is not here, EntryCorruptError if it is damaged;
        later entries that are missing are left out, and the result ends before a later damaged one."""

    async def poll(self, ledger_id: LedgerId, after: EntryId, *, timeout_s: float) -> ReadResult:
        """Wait until the last-add-confirmed exceeds `after`; then answer it, with entry `after + 1` if it is
        held here. After the time-out, answer the last-add-confirmed as it is and no entry. A ledger that this
        bookie has not seen yet is waited for, not an error; a ledger that gets fenced or deleted is answered."""

    async def last_confirmed(self, ledger_id: LedgerId) -> EntryId:
        """The highest last-add-confirmed that any entry or `confirm` brought. NoSuchLedgerError if unknown."""

    def confirm(self, ledger_id: LedgerId, last_confirmed: EntryId) -> None:
        """Tell the bookie of a last-add-confirmed ahead of the next entry, so that readers of an idle ledger see
        its tail. A hint: not durable, not answered."""

    async def fence(self, ledger_id: LedgerId) -> EntryId:
        """Refuse every later non-recovery add, durably; answers the last-add-confirmed (NO_ENTRY if the bookie
        holds nothing of the ledger, which it fences all the same)."""

    async def delete(self, ledger_id: LedgerId) -> None:
        """Forget the ledger, durably; space comes back with garbage collection. Fine if it is not here."""


class BookiePool(Protocol):
    """Finds the bookie behind an id: in process, or a connection that is kept and renewed."""

    def get(self, bookie_id: BookieId) -> Bookie:
        """A handle, at once; whether the bookie answers shows when it is used."""
