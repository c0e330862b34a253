"""Bookies for tests: tiny settings that make everything happen soon, and a model of what one has promised."""

from dataclasses import dataclass, field, replace
from random import Random

from weir.bookie.bookie import Bookie
from weir.bookie.settings import (
    BookieSettings,
    CacheSettings,
    FlushSettings,
    GcSettings,
    JournalSettings,
    SpaceSettings,
)
from weir.model.errors import BookieError, LedgerFencedError, NoSuchEntryError, NoSuchLedgerError
from weir.model.ids import BookieId, Buffer, EntryId, LedgerId
from weir.wire.entry import encode_entry

KIB = 1024


def tiny_settings(directory: str = "/bookie", bookie_id: str = "b1") -> BookieSettings:
    """Files, caches and intervals so small that a few hundred entries go through every part."""
    return BookieSettings(
        bookie_id=BookieId(bookie_id),
        directory=directory,
        journal=JournalSettings(
            file_bytes=64 * KIB, max_free_files=2, max_write_bytes=16 * KIB, max_queued_bytes=256 * KIB
        ),
        cache=CacheSettings(
            write_bytes=48 * KIB,
            read_bytes=32 * KIB,
            read_ahead_bytes=4 * KIB,
            index_bytes=16 * KIB,
            max_open_logs=3,
        ),
        flush=FlushSettings(interval_s=0.05, chunk_bytes=4 * KIB, sync_every_bytes=8 * KIB, retry_s=0.02),
        gc=GcSettings(
            interval_s=0.03, small_bytes=16 * KIB, merge_logs=3, target_bytes=64 * KIB, bytes_per_s=4096 * KIB
        ),
        space=SpaceSettings(low_water_bytes=0, high_water_bytes=0, interval_s=0.02),
    )


def periodic(settings: BookieSettings, interval_s: float) -> BookieSettings:
    """The same, acknowledging what is written and syncing it this often."""
    return replace(settings, journal=replace(settings.journal, sync_interval_s=interval_s))


def entry(ledger_id: int, entry_id: int, payload: bytes = b"payload", last_confirmed: int | None = None) -> bytes:
    """An encoded entry that confirms the one before it unless told otherwise."""
    confirmed = entry_id - 1 if last_confirmed is None else last_confirmed
    return encode_entry(ledger_id, entry_id, confirmed, 0, payload)


def batch(ledger_id: int, first: int, count: int, payload: bytes = b"payload") -> list[tuple[EntryId, Buffer]]:
    """Consecutive entries, as `add` takes them."""
    return [(EntryId(e), entry(ledger_id, e, payload)) for e in range(first, first + count)]


@dataclass(slots=True)
class Promises:
    """What a bookie said yes to, and what it was asked for without an answer."""

    #: Every entry that was ever offered: if it is there, it must be this.
    offered: dict[tuple[LedgerId, EntryId], bytes] = field(default_factory=dict)
    acknowledged: dict[tuple[LedgerId, EntryId], None] = field(default_factory=dict)
    fenced: dict[LedgerId, None] = field(default_factory=dict)
    #: Ledgers whose deletion was asked for (False), or confirmed (True).
    deleted: dict[LedgerId, bool] = field(default_factory=dict)

    async def broken_by(self, bookie: Bookie) -> list[str]:
        """How the bookie breaks its promises; empty if it keeps them all."""
        broken: list[str] = []
        for ledger_id, entry_id in self.offered:
            try:
                result = await bookie.read(ledger_id, entry_id, entry_id, max_bytes=1)
            except (NoSuchEntryError, NoSuchLedgerError):
                if (ledger_id, entry_id) in self.acknowledged and ledger_id not in self.deleted:
                    broken.append(f"acknowledged entry {entry_id} of ledger {ledger_id} is gone")
                continue
            except BookieError as refused:
                broken.append(f"entry {entry_id} of ledger {ledger_id}: {refused!r}")
                continue
            if self.deleted.get(ledger_id):
                broken.append(f"deleted ledger {ledger_id} came back")
            if result.entries != [(entry_id, self.offered[ledger_id, entry_id])]:
                broken.append(f"entry {entry_id} of ledger {ledger_id} is not what was offered")
        broken += [
            f"the fence of ledger {ledger} is gone" for ledger in self.fenced if not await _fenced(bookie, ledger)
        ]
        return broken


async def _fenced(bookie: Bookie, ledger_id: LedgerId) -> bool:
    try:
        await bookie.add(ledger_id, [(EntryId(1 << 40), entry(ledger_id, 1 << 40))])
    except LedgerFencedError:
        return True
    return False


class Workload:
    """Random adds, fences, deletions and reads, whose outcomes go into `promises`."""

    def __init__(self, dice: Random, promises: Promises, *, ledgers: int = 6, max_payload: int = 600) -> None:
        self._dice = dice
        self.promises = promises
        self._ledgers = ledgers
        self._max_payload = max_payload
        self._next: dict[LedgerId, int] = {}
        self._first = 1

    async def step(self, bookie: Bookie) -> None:
        """One request, and what came of it."""
        dice = self._dice
        ledger_id = LedgerId(self._first + dice.randrange(self._ledgers))
        roll = dice.random()
        if roll < 0.02:
            await self._fence(bookie, ledger_id)
        elif roll < 0.04:
            await self._delete(bookie, ledger_id)
        elif roll < 0.14:
            await self._read(bookie, ledger_id)
        else:
            await self._add(bookie, ledger_id)

    def _retire(self, ledger_id: LedgerId) -> None:
        """A ledger that was fenced or deleted takes no more entries; now and then new ids come into use."""
        if ledger_id == self._first:
            self._first += 1

    async def _add(self, bookie: Bookie, ledger_id: LedgerId) -> None:
        promises, dice = self.promises, self._dice
        if ledger_id in promises.deleted or ledger_id in promises.fenced:
            self._retire(ledger_id)
            return
        first = self._next.get(ledger_id, 0)
        stride = 1 + ledger_id % 2  # every other ledger is striped
        ids = [EntryId(first + stride * n) for n in range(dice.randrange(1, 8))]
        self._next[ledger_id] = ids[-1] + stride
        entries: list[tuple[EntryId, Buffer]] = []
        for entry_id in ids:
            data = entry(ledger_id, entry_id, dice.randbytes(dice.randrange(self._max_payload)))
            promises.offered[ledger_id, entry_id] = data
            entries.append((entry_id, data))
        try:
            await bookie.add(ledger_id, entries)
        except LedgerFencedError:
            return
        for entry_id in ids:
            promises.acknowledged[ledger_id, entry_id] = None

    async def _fence(self, bookie: Bookie, ledger_id: LedgerId) -> None:
        if ledger_id not in self.promises.deleted:
            await bookie.fence(ledger_id)
            if ledger_id not in self.promises.deleted:
                self.promises.fenced[ledger_id] = None

    async def _delete(self, bookie: Bookie, ledger_id: LedgerId) -> None:
        if ledger_id in self.promises.deleted:
            return
        self.promises.deleted[ledger_id] = False
        self.promises.fenced.pop(ledger_id, None)
        await bookie.delete(ledger_id)
        self.promises.deleted[ledger_id] = True

    async def _read(self, bookie: Bookie, ledger_id: LedgerId) -> None:
        """A range from a random acknowledged entry on: what is answered is right, and nothing is left out."""
        promises = self.promises
        known = [e for ledger, e in promises.acknowledged if ledger == ledger_id]
        if not known:
            return
        first = self._dice.choice(known)
        try:
            result = await bookie.read(ledger_id, first, EntryId(first + 50), max_bytes=4 * KIB)
        except (NoSuchEntryError, NoSuchLedgerError):
            if ledger_id not in promises.deleted:
                raise
            return
        for entry_id, data in result.entries:
            if promises.offered[ledger_id, entry_id] != data:
                raise AssertionError(f"entry {entry_id} of ledger {ledger_id} is not what was offered")
        got = [entry_id for entry_id, _ in result.entries]
        expected = [e for e in sorted(known) if first <= e <= got[-1]]
        if ledger_id not in promises.deleted and [e for e in got if e in dict.fromkeys(known)] != expected:
            raise AssertionError(f"ledger {ledger_id} from {first}: {got} instead of {expected}")
