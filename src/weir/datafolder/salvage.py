"""Saves what can be read of a damaged data folder into a new one, which is whole: offsets, subscriptions,
schemas and policies as they were, and where something is lost an entry that says so, as readers of a damaged
disk would see it.

What a damaged metadata store no longer knows and the ledgers themselves tell: topics without a record get
one, and ledgers with messages that belong to no topic any more become topics of their own, in the namespace
`public/salvaged`.
"""

import asyncio
import json
from collections import Counter, deque
from collections.abc import Sequence

from weir.bookie.bookie import Bookie
from weir.bookie.folder import write_small
from weir.bookie.settings import BookieSettings, JournalSettings, SpaceSettings
from weir.bookie.survey import Batch, Progress
from weir.datafolder.folder import DataFolder, is_empty, stopped
from weir.datafolder.ledger_owners import FoundLedger, LedgerUse, Role, topic_of_stream
from weir.datafolder.survey import FolderSurvey, LostRange, report_fields, survey_folder
from weir.ledger.losses import LostRun, decode_runs, encode_runs, merged
from weir.meta import keys
from weir.meta.embedded_log import write_store
from weir.meta.interfaces import Versioned
from weir.meta.survey import MetaSurvey, survey_meta
from weir.model.diagnosis import SALVAGED as LOSS_SALVAGED
from weir.model.errors import ConfigError, WireError
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import Fragment, LedgerMetadata, LedgerState, Quorum
from weir.model.registry import SYSTEM_NAMESPACE, Namespace, Tenant, TopicRecord
from weir.model.stream import Chain, Span
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.interfaces import Runtime
from weir.wire.entry import encode_entry, encode_lost_entry
from weir.wire.metadata import Cookie, decode_ledger, encode_cookie, encode_ledger
from weir.wire.registry import encode_namespace, encode_tenant, encode_topic
from weir.wire.stream import encode_chain

SALVAGED = NamespaceName("public", "salvaged")
#: Messages from before 2001 or after 2100 are none: what looks like them is something else.
_PLAUSIBLE_MS = range(978_307_200_000, 4_102_444_800_000)


def adopt(report: FolderSurvey, items: dict[str, Versioned], bookie_id: BookieId) -> None:
    """Complete the metadata, and name in the report what was adopted."""
    version = report.meta.revision + 1

    def put(key: str, value: bytes) -> None:
        items[key] = Versioned(key, value, version)

    gone = _deleted(report)
    for ledger_id, found in sorted(report.found.ledgers.items()):
        if ledger_id in report.chart.uses or ledger_id in gone:
            continue
        if ledger_id in report.chart.ledgers or not _holds_messages(found):
            continue
        stream = f"{SALVAGED}/ledger-{ledger_id}"
        chain = _chain(ledger_id, found)
        put(keys.stream(stream), encode_chain(chain))
        put(keys.ledger(ledger_id), encode_ledger(closed_ledger(ledger_id, found.runs[-1].last, bookie_id)))
        report.chart.chains[stream] = chain
        report.chart.uses[ledger_id] = LedgerUse(ledger_id, stream, Role.MESSAGES, chain.spans[0])
        report.adopted.append(f"persistent://{stream}: messages whose topic is not known any more")
    for topic, partitions in _without_record(report, items).items():
        put(keys.topic(topic), encode_topic(TopicRecord(topic, partitions)))
        if topic.namespace != SALVAGED:
            report.adopted.append(f"{topic}: its policies and properties are lost")
        if keys.namespace(topic.namespace) not in items:
            put(keys.namespace(topic.namespace), encode_namespace(Namespace(topic.namespace)))
        if keys.tenant(topic.namespace.tenant) not in items:
            put(keys.tenant(topic.namespace.tenant), encode_tenant(Tenant(topic.namespace.tenant)))


def closed_ledger(ledger_id: LedgerId, last: int, bookie_id: BookieId) -> LedgerMetadata:
    """A ledger with one copy that ends here."""
    return LedgerMetadata(
        ledger_id,
        Quorum(),
        (Fragment(EntryId(0), (bookie_id,)),),
        LedgerState.CLOSED,
        EntryId(last),
    )


def _deleted(report: FolderSurvey) -> set[int]:
    """Ledgers that were deleted, and whose bytes are not collected yet."""
    checkpoint = report.bookie.checkpoint
    if checkpoint is None:
        return set()
    return {ledger_id for ledger_id, _ in checkpoint.deleted}


def _holds_messages(found: FoundLedger) -> bool:
    """Whether its entries are batches, all of them, and follow one another."""
    runs = found.runs
    plausible = found.first_ms in _PLAUSIBLE_MS and found.last_ms in _PLAUSIBLE_MS
    return bool(runs) and plausible and all(run.base >= 0 and run.end > run.base for run in runs)


def _chain(ledger_id: LedgerId, found: FoundLedger) -> Chain:
    first = found.runs[0]
    begin = max(0, first.base - first.first)
    span = Span(ledger_id, begin, found.runs[-1].end, found.bytes, found.first_ms, found.last_ms)
    return Chain(spans=(span,), start_offset=first.base)


def _without_record(report: FolderSurvey, items: dict[str, Versioned]) -> dict[TopicName, int]:
    """Topics that have messages and no record, with their partitions as far as these are known."""
    found: dict[TopicName, int] = {}
    for stream, chain in report.chart.chains.items():
        topic = topic_of_stream(stream)
        if topic is None or chain.doomed is not None or topic.namespace == SYSTEM_NAMESPACE:
            continue
        if keys.topic(topic) in items:
            continue
        partitions = 0 if topic.partition is None else topic.partition + 1
        found[topic.base] = max(found.get(topic.base, 0), partitions)
    return found


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
            ledger_id, why = LedgerId(lost.ledger_id), LOSS_SALVAGED + lost.cause
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
            now, why = self._runtime.clock.wall_ms(), LOSS_SALVAGED + lost.cause
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
