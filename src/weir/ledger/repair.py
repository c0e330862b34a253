"""Check and repair of ledgers.

A check finds the intact replicas of each entry. A repair copies the entries of a lost bookie to a replacement, and
missing or damaged entries to the bookies that should have them.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from weir.ledger.context import LedgerContext
from weir.ledger.copying import Copier, Progress, Stretch, Throttle, stretches
from weir.ledger.quorum import choose_replacement
from weir.ledger.reader import LedgerReader
from weir.ledger.recovery import recover
from weir.ledger.replicas import whole
from weir.ledger.transitions import replace_replica
from weir.model.errors import (
    BookieError,
    EntryCorruptError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    WeirError,
)
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import LedgerMetadata, LedgerState
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


log = logging.getLogger(__name__)

_TARGETS_TRIED = 3


@dataclass(slots=True)
class RepairReport:
    """What a repair did to one ledger, and what it could not do."""

    ledger_id: LedgerId
    #: (first entry of the fragment, lost bookie, who took its place)
    replaced: list[tuple[int, BookieId, BookieId]] = field(default_factory=list)
    #: (first entry of the fragment, bookie, how many entries it got again)
    filled: list[tuple[int, BookieId, int]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    #: Entries that are damaged in every copy: nothing can be done for them.
    lost: list[EntryId] = field(default_factory=list)
    #: The last fragment is still being written, so its bookies were left alone.
    waits_for_close: bool = False

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        return not self.failures and not self.waits_for_close


class Repair:
    """Repairs ledgers one at a time, within one rate."""

    def __init__(self, context: LedgerContext) -> None:
        self._context = context
        throttle = Throttle(context.runtime.clock, bytes_per_s=context.settings.repair.bytes_per_s)
        self._copier = Copier(context, throttle)
        self._leaving: frozenset[BookieId] = frozenset()

    async def repair(
        self,
        ledger_id: LedgerId,
        suspects: Sequence[BookieId],
        *,
        fence_open: bool,
        progress: Progress | None = None,
        leaving: Collection[BookieId] = (),
    ) -> RepairReport:
        """Bring every closed fragment with a suspect bookie back to full copies. If a lost one is in the ensemble
        that the ledger is still written to, `fence_open` says whether to recover it first, fencing its writer.
        `leaving`: bookies that are there, and are to hold nothing any more."""
        report = RepairReport(ledger_id)
        self._leaving = frozenset(leaving)
        ledger = await self._closed_if_needed(ledger_id, suspects, report, fence_open=fence_open)
        for stretch in stretches(ledger, await self._confirmed(ledger, suspects)):
            for bookie_id in [b for b in stretch.fragment.bookies if b in suspects]:
                try:
                    stretch = await self._repair_replica(stretch, bookie_id, report, progress)
                except WeirError as failure:
                    report.failures.append(f"entries {stretch.fragment.first_entry}-{stretch.last}: {failure}")
        return report

    def _goes(self, bookie_id: BookieId) -> bool:
        """Whether somebody has to take its place."""
        return bookie_id in self._leaving or self._context.directory.resolve(bookie_id) is None

    async def _closed_if_needed(
        self, ledger_id: LedgerId, suspects: Sequence[BookieId], report: RepairReport, *, fence_open: bool
    ) -> LedgerMetadata:
        ledger = (await self._context.records.get(ledger_id)).ledger
        concerned = any(b in suspects and self._goes(b) for b in ledger.fragments[-1].bookies)
        if ledger.state is LedgerState.CLOSED or not concerned:
            return ledger
        if ledger.state is LedgerState.IN_RECOVERY or fence_open:
            return (await recover(self._context, ledger_id)).ledger
        report.waits_for_close = True
        return ledger

    async def _confirmed(self, ledger: LedgerMetadata, suspects: Sequence[BookieId]) -> EntryId | None:
        """Up to where an open ledger can be mended: what is confirmed changes no more, and a copy of it that its
        bookie has damaged is written again under its writer's hands. None: its last fragment is not concerned."""
        present = [b for b in ledger.fragments[-1].bookies if not self._goes(b)]
        if ledger.state is LedgerState.CLOSED or not any(b in suspects for b in present):
            return None
        reader = LedgerReader(self._context, await self._context.records.get(ledger.ledger_id))
        try:
            return await reader.last_confirmed()
        finally:
            await reader.close()

    async def _repair_replica(
        self, stretch: Stretch, bookie_id: BookieId, report: RepairReport, progress: Progress | None
    ) -> Stretch:
        """Replace the bookie if it is registered nowhere or leaves, else give it what it misses; returns the
        stretch as it is then."""
        if not self._goes(bookie_id):
            await self._fill(stretch, bookie_id, report, progress)
            return stretch
        by = await self._copy_elsewhere(stretch, bookie_id, progress)
        change = partial(replace_replica, fragment=stretch.fragment, lost=bookie_id, by=by)
        await self._context.records.change(stretch.ledger_id, change)
        first = stretch.fragment.first_entry
        report.replaced.append((first, bookie_id, by))
        log.info("ledger %s, fragment at %s: %s took the place of %s", stretch.ledger_id, first, by, bookie_id)
        bookies = tuple(by if b == bookie_id else b for b in stretch.fragment.bookies)
        return stretch._replace(fragment=type(stretch.fragment)(first, bookies))

    async def _fill(
        self, stretch: Stretch, bookie_id: BookieId, report: RepairReport, progress: Progress | None
    ) -> None:
        found = await check_replica(self._context, stretch, bookie_id)
        if found.unreachable:
            raise LedgerError(f"{bookie_id} cannot be checked: {found.unreachable}")
        wanting = found.wanting()
        if wanting:
            lost = await self._copier.copy(stretch, iter(wanting), bookie_id, progress=progress)
            report.lost += lost
            if len(lost) < len(wanting):
                report.filled.append((stretch.fragment.first_entry, bookie_id, len(wanting) - len(lost)))

    async def _copy_elsewhere(self, stretch: Stretch, lost: BookieId, progress: Progress | None) -> BookieId:
        """Copy what the lost bookie held to one that takes its place; another, if that one fails."""
        failure: BookieError | None = None
        for _ in range(_TARGETS_TRIED):
            target = self._target(stretch, lost)
            if target is None:
                break
            try:
                await self._copier.copy(stretch, stretch.entries_of(lost), target, progress=progress)
                return target
            except BookieError as refused:
                failure = refused
                self._context.quarantine.put(target)
        raise NotEnoughBookiesError(
            f"no bookie can take the place of {lost}" + (f": {failure}" if failure else "")
        )

    def _target(self, stretch: Stretch, lost: BookieId) -> BookieId | None:
        directory, quarantine = self._context.directory, self._context.quarantine
        ensemble = stretch.fragment.bookies
        candidates = [b for b in directory.writable() if not quarantine.holds(b)]
        return choose_replacement(
            directory.racks(),
            candidates,
            ensemble,
            ensemble.index(lost),
            stretch.quorum,
            rng=self._context.runtime.rng,
        )
