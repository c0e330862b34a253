"""An in-memory bookie with the semantics of the real one, and switches to make it misbehave."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from weir.model.errors import (
    BookieError,
    BookieReadOnlyError,
    EntryCorruptError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    WireError,
)
from weir.model.ids import NO_ENTRY, BookieId, Buffer, EntryId, LedgerId
from weir.model.ledger import ReadResult
from weir.wire.entry import entry_key, last_confirmed_of, verify_entry


@dataclass(slots=True)
class FakeLedger:
    """What the fake holds of one ledger."""

    entries: dict[EntryId, bytes] = field(default_factory=dict)
    last_confirmed: EntryId = NO_ENTRY
    fenced: bool = False


class FakeBookie:
    """Fills `weir.ledger.interfaces.Bookie` in memory. An add is stored at once and acknowledged a loop turn
    later, or when `release()` is called after `hold()`.

    Faults: `failure` refuses every call with that error; `read_only` refuses adds but those of a recovery;
    `hold()` stores adds but keeps their acknowledgements back; `damage()` makes a stored entry corrupt.
    """

    def __init__(self, bookie_id: str = "fake") -> None:
        self.bookie_id = BookieId(bookie_id)
        self.ledgers: dict[LedgerId, FakeLedger] = {}
        self._deleted: dict[LedgerId, None] = {}
        self.read_only = False
        self.failure: BookieError | None = None
        #: The highest number of adds that were accepted and not yet acknowledged.
        self.most_unacknowledged = 0
        self._unacknowledged = 0
        self._held: list[asyncio.Future[None]] | None = None
        self._pollers: dict[LedgerId, list[asyncio.Future[None]]] = {}

    # --- the bookie's verbs ------------------------------------------------------------------------------

    def add(
        self, ledger_id: LedgerId, entries: Sequence[tuple[EntryId, Buffer]], *, recovery: bool = False
    ) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        refusal = self._refuse_add(ledger_id, entries, recovery)
        if refusal is not None:
            done.set_exception(refusal)
            done.exception()  # whoever asked may have gone; the loop need not complain
            return done
        self._store(ledger_id, entries)
        self._unacknowledged += 1
        self.most_unacknowledged = max(self.most_unacknowledged, self._unacknowledged)
        if self._held is None:
            loop.call_soon(self._acknowledge, done)
        else:
            self._held.append(done)
        return done

    async def read(self, ledger_id: LedgerId, first: EntryId, last: EntryId, *, max_bytes: int) -> ReadResult:
        ledger = self._known(ledger_id)
        if first not in ledger.entries:
            raise NoSuchEntryError(f"entry {first} of ledger {ledger_id} is not on {self.bookie_id}")
        _verify(ledger.entries[first])
        found: list[tuple[EntryId, Buffer]] = []
        size = 0
        for entry_id in sorted(e for e in ledger.entries if first <= e <= last):
            data = ledger.entries[entry_id]
            if found and size + len(data) > max_bytes:
                break
            try:
                _verify(data)
            except EntryCorruptError:
                break
            found.append((entry_id, data))
            size += len(data)
        return ReadResult(found, ledger.last_confirmed)

    async def poll(self, ledger_id: LedgerId, after: EntryId, *, timeout_s: float) -> ReadResult:
        self._fail()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self._last_confirmed(ledger_id) <= after:
            woken: asyncio.Future[None] = loop.create_future()
            self._pollers.setdefault(ledger_id, []).append(woken)
            try:
                async with asyncio.timeout_at(deadline):
                    await woken
            except TimeoutError:
                break
            if ledger_id not in self.ledgers or self.ledgers[ledger_id].fenced:
                break
        confirmed = self._last_confirmed(ledger_id)
        data = self.ledgers[ledger_id].entries.get(EntryId(after + 1)) if confirmed > after else None
        return ReadResult([] if data is None else [(EntryId(after + 1), data)], confirmed)

    async def last_confirmed(self, ledger_id: LedgerId) -> EntryId:
        return self._known(ledger_id).last_confirmed

    def confirm(self, ledger_id: LedgerId, last_confirmed: EntryId) -> None:
        if self.failure is None and (ledger_id in self.ledgers or ledger_id in self._pollers):
            self._confirm(self.ledgers.setdefault(ledger_id, FakeLedger()), ledger_id, last_confirmed)

    async def fence(self, ledger_id: LedgerId) -> EntryId:
        self._fail()
        ledger = self.ledgers.setdefault(ledger_id, FakeLedger())
        ledger.fenced = True
        self._wake(ledger_id)
        return ledger.last_confirmed

    async def delete(self, ledger_id: LedgerId) -> None:
        self._fail()
        self.ledgers.pop(ledger_id, None)
        self._deleted[ledger_id] = None
        self._wake(ledger_id)

    # --- switches ----------------------------------------------------------------------------------------

    def hold(self) -> None:
        """From now on, store adds but do not acknowledge them."""
        self._held = self._held if self._held is not None else []

    def release(self, failure: BookieError | None = None) -> None:
        """Acknowledge the adds that were held, in order, or fail them; acknowledge later adds again."""
        held, self._held = self._held or [], None
        for done in held:
            if failure is not None and not done.done():
                done.set_exception(failure)
            self._acknowledge(done)

    def damage(self, ledger_id: int, entry_id: int) -> None:
        """Flip a bit in the last byte of a stored entry."""
        entries = self.ledgers[LedgerId(ledger_id)].entries
        whole = entries[EntryId(entry_id)]
        entries[EntryId(entry_id)] = whole[:-1] + bytes([whole[-1] ^ 1])

    # --- how ---------------------------------------------------------------------------------------------

    def _refuse_add(
        self, ledger_id: LedgerId, entries: Sequence[tuple[EntryId, Buffer]], recovery: bool
    ) -> BookieError | None:
        ledger = self.ledgers.get(ledger_id)
        if self.failure is not None:
            return self.failure
        if self.read_only and not recovery:  # a recovery brings back what was acknowledged: worth the space
            return BookieReadOnlyError(f"{self.bookie_id} is read-only")
        if ledger is not None and ledger.fenced and not recovery:
            return LedgerFencedError(f"ledger {ledger_id} is fenced")
        if ledger_id in self._deleted:  # ids are never given out twice
            return LedgerFencedError(f"ledger {ledger_id} is deleted")
        try:
            for entry_id, data in entries:
                _verify(data)
                if entry_key(data) != (ledger_id, entry_id):
                    raise EntryCorruptError(f"entry {entry_key(data)} came as {(ledger_id, entry_id)}")
        except EntryCorruptError as corrupt:
            return corrupt
        return None

    def _store(self, ledger_id: LedgerId, entries: Sequence[tuple[EntryId, Buffer]]) -> None:
        ledger = self.ledgers.setdefault(ledger_id, FakeLedger())
        for entry_id, data in entries:
            ledger.entries[entry_id] = bytes(data)
            self._confirm(ledger, ledger_id, last_confirmed_of(data))

    def _confirm(self, ledger: FakeLedger, ledger_id: LedgerId, last_confirmed: EntryId) -> None:
        if last_confirmed > ledger.last_confirmed:
            ledger.last_confirmed = last_confirmed
            self._wake(ledger_id)

    def _acknowledge(self, done: "asyncio.Future[None]") -> None:
        self._unacknowledged -= 1
        if not done.done():
            done.set_result(None)

    def _wake(self, ledger_id: LedgerId) -> None:
        for woken in self._pollers.pop(ledger_id, []):
            if not woken.done():
                woken.set_result(None)

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _known(self, ledger_id: LedgerId) -> FakeLedger:
        self._fail()
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            raise NoSuchLedgerError(f"ledger {ledger_id} is not on {self.bookie_id}")
        return ledger

    def _last_confirmed(self, ledger_id: LedgerId) -> EntryId:
        ledger = self.ledgers.get(ledger_id)
        return NO_ENTRY if ledger is None else ledger.last_confirmed


class FakeBookiePool:
    """Fakes by id; an id that nobody has yet gets a fake of its own."""

    def __init__(self) -> None:
        self.bookies: dict[BookieId, FakeBookie] = {}

    def get(self, bookie_id: BookieId) -> FakeBookie:
        return self.bookies.setdefault(bookie_id, FakeBookie(bookie_id))


def _verify(data: Buffer) -> None:
    try:
        verify_entry(data)
    except WireError as bad:
        raise EntryCorruptError(str(bad)) from bad
