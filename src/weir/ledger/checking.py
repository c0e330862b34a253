"""Checking a ledger: which replicas hold each of its entries whole."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from weir.ledger.context import LedgerContext
from weir.ledger.copying import Progress, Stretch, stretches
from weir.ledger.replicas import whole
from weir.model.errors import BookieError, EntryCorruptError, NoSuchEntryError, NoSuchLedgerError
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import LedgerMetadata
from weir.wire.entry import HEADER_BYTES, Entry


@dataclass(slots=True)
class ReplicaReport:
    """What one bookie holds of what it should hold of one fragment."""

    stretch: Stretch
    bookie_id: BookieId
    whole: int = 0
    missing: list[EntryId] = field(default_factory=list)
    damaged: list[EntryId] = field(default_factory=list)
    #: Why the bookie could not be asked (further), if so.
    unreachable: str = ""

    @property
    def good(self) -> bool:
        return not (self.missing or self.damaged or self.unreachable)

    def wanting(self) -> list[EntryId]:
        """Entries that should be copied here again."""
        return sorted([*self.missing, *self.damaged])


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """All replicas of a ledger."""

    ledger_id: LedgerId
    replicas: list[ReplicaReport]

    @property
    def good(self) -> bool:
        return all(replica.good for replica in self.replicas)

    def copies(self) -> dict[EntryId, int]:
        """For each entry that is not whole on every bookie that was asked, on how many it is."""
        short: dict[EntryId, int] = {}
        for replica in self.replicas:
            wanting = dict.fromkeys(replica.wanting())
            if replica.unreachable:
                wanting = dict.fromkeys(replica.stretch.entries_of(replica.bookie_id))
            for entry_id in wanting:
                short[entry_id] = short.get(entry_id, replica.stretch.quorum.write) - 1
        return dict(sorted(short.items()))

    def lost(self) -> list[EntryId]:
        """Entries that nobody who could be asked holds whole."""
        return [entry_id for entry_id, copies in self.copies().items() if copies == 0]


async def check_ledger(
    context: LedgerContext, ledger: LedgerMetadata, *, confirmed: EntryId, progress: Progress | None = None
) -> LedgerReport:
    """Read every entry up to `confirmed` from every bookie that should hold it."""
    reports = [
        await check_replica(context, stretch, bookie_id, progress=progress)
        for stretch in stretches(ledger, confirmed)
        for bookie_id in stretch.fragment.bookies
    ]
    return LedgerReport(ledger.ledger_id, reports)


async def check_replica(
    context: LedgerContext, stretch: Stretch, bookie_id: BookieId, *, progress: Progress | None = None
) -> ReplicaReport:
    """Read everything that one bookie should hold of one fragment."""
    report = ReplicaReport(stretch, bookie_id)
    entries = stretch.entries_of(bookie_id)
    wanted = next(entries, None)
    while wanted is not None and not report.unreachable:
        found = await _read(context, report, wanted)
        wanted = _compare(report, found, wanted, entries) if found else next(entries, None)
        if progress is not None:
            progress(max(1, len(found)), sum(HEADER_BYTES + len(entry.payload) for entry in found))
    return report


async def _read(context: LedgerContext, report: ReplicaReport, first: EntryId) -> list[Entry]:
    """What the bookie has from `first` on; if it does not have `first` whole, that goes into the report."""
    ledger_id, last = report.stretch.ledger_id, report.stretch.last
    settings = context.settings.reader
    try:
        async with asyncio.timeout(settings.read_timeout_s):
            result = await context.pool.get(report.bookie_id).read(
                ledger_id, first, last, max_bytes=settings.chunk_bytes
            )
        return whole(ledger_id, first, last, result).entries
    except (NoSuchEntryError, NoSuchLedgerError):
        report.missing.append(first)
    except EntryCorruptError:
        report.damaged.append(first)
    except TimeoutError:
        report.unreachable = f"no answer in {settings.read_timeout_s} s"
    except BookieError as failure:
        report.unreachable = failure.what
    return []


def _compare(
    report: ReplicaReport, found: list[Entry], wanted: EntryId | None, entries: Iterator[EntryId]
) -> EntryId | None:
    """Note what was found and what is missing in between; returns the next entry to ask for."""
    for entry in found:
        while wanted is not None and wanted < entry.entry_id:
            report.missing.append(wanted)
            wanted = next(entries, None)
        if wanted == entry.entry_id:
            report.whole += 1
            wanted = next(entries, None)
    return wanted
