"""What a bookie knows of each ledger beside its entries: fenced or not, last-add-confirmed, who waits for it."""

import asyncio

from pyroaring import BitMap64

from weir.model.check import check
from weir.model.ids import NO_ENTRY, EntryId, LedgerId


class LedgerTable:
    """Plain state. A ledger is known once it has a last-add-confirmed; a fence may stand for an unknown one."""

    def __init__(self, gone: bytes = b"") -> None:
        #: Deleted ledgers. Their ids are never given out again, and a writer that has not heard of its ledger's
        #: deletion must get no acknowledgement for what nobody will ever read: the fence outlives the ledger.
        self._gone = BitMap64.deserialize(gone) if gone else BitMap64()
        self._confirmed: dict[LedgerId, EntryId] = {}
        self._fenced: dict[LedgerId, None] = {}
        #: Fences on their way to the journal: in force already, and whatever is committed before them.
        self._fencing: dict[LedgerId, int] = {}
        self._waiting: dict[LedgerId, dict[asyncio.Future[bool], None]] = {}
        self.waiters = 0

    def is_known(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._confirmed

    def is_fenced(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._fenced or ledger_id in self._fencing

    def is_gone(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._gone

    def highest_gone(self) -> LedgerId:
        """The highest id of a deleted ledger, or 0."""
        return LedgerId(self._gone.max()) if self._gone else LedgerId(0)

    def gone(self) -> bytes:
        """The deleted ledgers as a checkpoint keeps them."""
        self._gone.run_optimize()
        return self._gone.serialize() if self._gone else b""

    def is_fenced_durably(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._fenced

    def last_confirmed(self, ledger_id: LedgerId) -> EntryId:
        return self._confirmed.get(ledger_id, NO_ENTRY)

    def fenced(self) -> list[LedgerId]:
        return sorted(self._fenced)

    def raise_confirmed(self, ledger_id: LedgerId, last_confirmed: EntryId) -> None:
        """An entry or a hint brought a last-add-confirmed: it never goes back."""
        known = self._confirmed.get(ledger_id)
        if known is None or last_confirmed > known:
            self._confirmed[ledger_id] = last_confirmed
            if ledger_id in self._waiting:
                self._wake(ledger_id, for_good=False)

    def hint_confirmed(self, ledger_id: LedgerId, last_confirmed: EntryId) -> None:
        """The same, without making a ledger known that nobody here asks for."""
        if ledger_id in self._confirmed or ledger_id in self._waiting:
            self.raise_confirmed(ledger_id, last_confirmed)

    def begin_fence(self, ledger_id: LedgerId) -> None:
        """Refuse adds from now on, though the fence is not durable yet; ended by `end_fence`."""
        self._fencing[ledger_id] = self._fencing.get(ledger_id, 0) + 1

    def end_fence(self, ledger_id: LedgerId) -> None:
        self._fencing[ledger_id] -= 1
        if not self._fencing[ledger_id]:
            del self._fencing[ledger_id]

    def fence(self, ledger_id: LedgerId) -> None:
        self._fenced[ledger_id] = None
        self._wake(ledger_id, for_good=True)

    def refuse(self, ledger_id: LedgerId) -> None:
        """Take no more adds of a ledger that is about to be deleted: one that came later would outlive it."""
        self._gone.add(ledger_id)

    def forget(self, ledger_id: LedgerId) -> None:
        """The ledger was deleted."""
        self._confirmed.pop(ledger_id, None)
        self._fenced.pop(ledger_id, None)
        self._gone.add(ledger_id)
        self._wake(ledger_id, for_good=True)

    def wait(self, ledger_id: LedgerId) -> "asyncio.Future[bool]":
        """False when the ledger's last-add-confirmed moved, True when it was fenced or deleted. To be given back
        with `stop_waiting`."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(ledger_id, {})[future] = None
        self.waiters += 1
        return future

    def stop_waiting(self, ledger_id: LedgerId, future: "asyncio.Future[bool]") -> None:
        self.waiters -= 1
        check(self.waiters >= 0, "who waits for a ledger stops once")
        waiting = self._waiting.get(ledger_id)
        if waiting is not None:
            waiting.pop(future, None)
            if not waiting:
                del self._waiting[ledger_id]

    def wake_all(self) -> None:
        """The bookie closes: nobody waits on."""
        for ledger_id in list(self._waiting):
            self._wake(ledger_id, for_good=True)

    def _wake(self, ledger_id: LedgerId, *, for_good: bool) -> None:
        for future in self._waiting.pop(ledger_id, ()):
            if not future.done():
                future.set_result(for_good)
