"""Saves what can be read of a damaged data folder into a new one, which is whole: offsets, subscriptions,
schemas and policies as they were, and where something is lost an entry that says so, as readers of a damaged
disk would see it."""

import asyncio
import json
from collections import Counter, deque
from collections.abc import Sequence

from weir.bookie.bookie import Bookie
from weir.bookie.settings import BookieSettings, JournalSettings, SpaceSettings
from weir.bookie.small_files import write_small
from weir.bookie.survey import Batch, Progress
from weir.datafolder.adopting import adopt, closed_ledger
from weir.datafolder.chart import Role
from weir.datafolder.folder import DataFolder, is_empty, stopped
from weir.datafolder.report import report_fields
from weir.datafolder.survey import FolderSurvey, LostRange, survey_folder
from weir.ledger.losses import LostRun, decode_runs, encode_runs, merged
from weir.meta import keys
from weir.meta.interfaces import Versioned
from weir.meta.new_store import write_store
from weir.meta.survey import MetaSurvey, survey_meta
from weir.model.errors import ConfigError, WireError
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.loss import SALVAGED
from weir.runtime.interfaces import Runtime
from weir.wire.entry import encode_entry, encode_lost_entry
from weir.wire.metadata import Cookie, decode_ledger, encode_cookie, encode_ledger

REPORT_NAME = "salvage.json"
_USUAL_BOOKIE = BookieId("local")
#: Batches of entries on their way to the new folder.
_MOST_PENDING = 8
_MARKERS_AT_ONCE = 1000
#: Ids that may have been given out for each change of the metadata that is missing.
_LARGEST_BLOCK = 1000


async def salvage(
    runtime: Runtime, path: str, into: str, progress: Progress = lambda _done, _all: None
) -> FolderSurvey:
    """Make `into`, which must not hold anything yet, a data folder with all that can be read in `path`, which
    stays as it is. FileLockedError while a Weir runs on it; ConfigError for folders that cannot be used."""
    target = DataFolder(into.rstrip("/") or "/")
    async with stopped(runtime, path) as folder:
        if not await is_empty(runtime, target.path):
            raise ConfigError(f"{target.path} is not empty", hint="name a new folder: what is saved goes there")
        meta = await survey_meta(runtime.disk, folder.meta)
        return await _Salvage(runtime, target, meta).run(folder, progress)


class _Salvage:
    """One folder into another. The metadata is written last: without it nothing starts on the new folder."""

    def __init__(self, runtime: Runtime, target: DataFolder, meta: MetaSurvey) -> None:
        self._runtime = runtime
        self._target = target
        self._meta = meta
        self._items = dict(meta.items)
        self._version = meta.revision + 1
        self._bookie_id = _bookie_of(meta)
        self._pending: deque[asyncio.Future[None]] = deque()
        self._bookie: Bookie

    async def run(self, folder: DataFolder, progress: Progress) -> FolderSurvey:
        settings = BookieSettings(
            self._bookie_id,
            self._target.bookie,
            journal=JournalSettings(sync_interval_s=0.5),
            space=SpaceSettings(0, 0),
        )
        self._bookie = await Bookie.open(self._runtime, settings)
        try:
            report = await survey_folder(self._runtime, folder, self._meta, take=self._add, progress=progress)
            if self._meta.damages:
                adopt(report, self._items, self._bookie_id)
            await self._fill(report)
            await self._settled(0)
            highest = self._bookie.highest_ledger()
        finally:
            await self._bookie.close()
        self._complete(report, self._bookie.cookie, highest)
        await write_store(self._runtime, self._target.meta, self._items.values(), self._version)
        data = json.dumps(report_fields(report), indent=2, ensure_ascii=False).encode()
        await write_small(self._runtime.disk, f"{self._target.path}/{REPORT_NAME}", data)
        return report

    # --- entries ------------------------------------------------------------------------------------------------

    async def _add(self, ledger_id: LedgerId, batch: Batch) -> None:
        if batch:
            self._pending.append(self._bookie.add(ledger_id, batch, recovery=True))
            await self._settled(_MOST_PENDING)

    async def _settled(self, most: int) -> None:
        while len(self._pending) > most:
            await self._pending.popleft()

    async def _fill(self, report: FolderSurvey) -> None:
        """Something in the place of each entry that is lost: its twin, or that it is lost."""
        for lost in report.losses:
            ledger_id, why = LedgerId(lost.ledger_id), SALVAGED + lost.cause
            for first in range(lost.first_entry, lost.last_entry + 1, _MARKERS_AT_ONCE):
                last = min(lost.last_entry, first + _MARKERS_AT_ONCE - 1)
                entries = range(first, last + 1)
                await self._add(
                    ledger_id, [(EntryId(e), encode_lost_entry(ledger_id, e, e - 1, why)) for e in entries]
                )
        for ledger_id, use in report.chart.uses.items():
            if use.role is Role.STATE:
                await self._add(ledger_id, _twins(report, ledger_id))

    # --- metadata -----------------------------------------------------------------------------------------------

    def _put(self, key: str, value: bytes) -> None:
        self._items[key] = Versioned(key, value, self._version)

    def _complete(self, report: FolderSurvey, cookie: Cookie, highest: LedgerId) -> None:
        """The metadata as it fits what is in the new folder."""
        items = self._items
        for key in [key for key in items if key.startswith(keys.COOKIES)]:
            del items[key]
        self._put(keys.cookie(cookie.bookie_id), encode_cookie(cookie))
        for ledger_id in report.chart.uses:
            if keys.ledger(ledger_id) not in items:
                last = report.last_entry(ledger_id)
                self._put(keys.ledger(ledger_id), encode_ledger(closed_ledger(ledger_id, last, self._bookie_id)))
        for number in dict.fromkeys(lost.ledger_id for lost in report.losses):
            lost_here = [lost for lost in report.losses if lost.ledger_id == number]
            self._put(keys.lost_entries(LedgerId(number)), encode_runs(self._runs(number, lost_here)))
        given_out = max(self._counter(keys.LEDGER_COUNTER), highest)
        if self._meta.damages:
            items.pop(keys.TOPIC_INDEX, None)  # made anew by the next start: some of it may be gone
            margin = (1 + self._meta.lost_changes) * _LARGEST_BLOCK
            given_out += margin
            self._put(keys.PRODUCER_COUNTER, str(self._counter(keys.PRODUCER_COUNTER) + margin).encode())
        self._put(keys.LEDGER_COUNTER, str(given_out).encode())

    def _counter(self, key: str) -> int:
        item = self._items.get(key)
        return 0 if item is None else int(item.value)

    def _runs(self, ledger_id: int, losses: Sequence[LostRange]) -> tuple[LostRun, ...]:
        known = self._items.get(keys.lost_entries(LedgerId(ledger_id)))
        try:
            runs = () if known is None else decode_runs(known.value)
        except WireError:
            runs = ()
        for lost in losses:
            offsets = (lost.first_offset, lost.end_offset)
            base, end = offsets if min(offsets) >= 0 else (-1, -1)
            now, why = self._runtime.clock.wall_ms(), SALVAGED + lost.cause
            runs = merged(runs, LostRun(lost.first_entry, lost.last_entry, base, end, now, why))
        return runs


def _bookie_of(meta: MetaSurvey) -> BookieId:
    """The name that ledgers have for their one bookie: the metadata tells, since a cookie may be what is
    damaged."""
    names: Counter[BookieId] = Counter()
    for item in meta.under(keys.LEDGERS):
        try:
            names.update(decode_ledger(item.value).bookies())
        except WireError:
            continue
    if len(names) > 1:
        raise ConfigError(
            f"the ledgers are spread over {len(names)} bookies: {', '.join(sorted(names))}",
            hint="`weir ledger replicate` brings copies back; `weir verify` checks the folder of one bookie",
        )
    return next(iter(names), _USUAL_BOOKIE)


def _twins(report: FolderSurvey, ledger_id: LedgerId) -> Batch:
    """Entries of a state that were written twice and of which one is lost, from the other."""
    found = report.found.ledgers.get(ledger_id)
    if found is None:
        return []
    lost = {
        entry: None
        for loss in report.losses
        if loss.ledger_id == ledger_id
        for entry in range(loss.first_entry, loss.last_entry + 1)
    }
    missing = [
        entry
        for entry in range(report.last_entry(ledger_id) + 1)
        if entry not in found.payloads and entry not in found.marked and entry not in lost
    ]
    return [
        (EntryId(entry), encode_entry(ledger_id, entry, entry - 1, 0, found.payloads[entry ^ 1]))
        for entry in missing
    ]
