"""A copy of a running cluster as a data folder: one moment of it, each ledger once, the metadata embedded.

Brokers are asked, through the metadata, to begin no write for a moment (`weir.server.backup_hold`). Meanwhile the
metadata is read, and the ends of the ledgers that are written to are known: that is the moment. Then writes go on,
and ledgers are copied at leisure; none is deleted until that is done. The result is what `weir up --data` starts
on, what `weir verify` reads, and what `weir restore` brings into a cluster again.

Brings a copy into a new cluster: entries to its bookies, as many copies as are wanted, then the metadata.

The ledgers keep their ids, so all that names them stays as it is. The cluster has bookies and no brokers yet, and
nothing in it. Records of topics are written last: if it is broken off, nothing of it is a topic.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from weir.bookie.bookie import Bookie
from weir.bookie.settings import BookieSettings, JournalSettings, SpaceSettings
from weir.bookie.survey import Batch
from weir.datafolder.folder import DataFolder, is_empty, stopped
from weir.datafolder.survey import survey_folder
from weir.ledger.client import LedgerClient
from weir.ledger.copying import Stretch, recovery_add, stretches
from weir.ledger.quorum import choose_ensemble
from weir.meta import keys
from weir.meta.embedded_log import write_store
from weir.meta.interfaces import Lease, MetaStore, Versioned
from weir.meta.survey import survey_meta
from weir.model.errors import ConfigError, DiskError, EntryLostError, EntryUnreadableError, MetaError, PeerError
from weir.model.ids import BookieId, Buffer, EntryId, LedgerId
from weir.model.ledger import Fragment, LedgerMetadata, LedgerState, Quorum
from weir.runtime.interfaces import Runtime
from weir.wire.entry import decode_entry, encode_entry, encode_lost_entry
from weir.wire.metadata import decode_ledger, encode_cookie, encode_ledger

log = logging.getLogger(__name__)

#: All that a cluster keeps in its metadata.
EVERYTHING = "/weir/"
#: What belongs to nodes that run, or to their disks, and to no copy.
NOT_COPIED = (
    *(keys.BOOKIES_WRITABLE, keys.BOOKIES_READ_ONLY, keys.BOOKIES_LEAVING, keys.COOKIES, keys.UNDERREPLICATED),
    *(keys.AUDITOR, keys.REPAIR_LOCKS, keys.LEADERS, keys.BROKERS, keys.SQL_RUNNER, keys.BACKUP),
)
_BOOKIE = BookieId("local")
_LEASE_S = 15.0
_LOOK_S = 0.02
#: A broker that does not answer by then is not one of this version, or is dying.
_PATIENCE_S = 10.0
_ATTEMPTS = 5
#: Ledgers that are copied at the same time, and parts of one on their way to the new folder.
_AT_ONCE = 8
_MOST_PENDING = 8
#: Bytes that were copied so far.
Progress = Callable[[int], None]


@dataclass(slots=True)
class ClusterCopy:
    """What was copied. `held_s`: for so long writes waited."""

    ledgers: int = 0
    bytes: int = 0
    held_s: float = 0.0
    #: Entries that no bookie has whole; the copy says so in their places.
    lost: int = 0


@dataclass(slots=True)
class _Moment:
    items: dict[str, Versioned]
    revision: int
    #: Of ledgers that are written to: their last acknowledged entries.
    ends: dict[int, int] = field(default_factory=dict)


async def copy_cluster(
    runtime: Runtime, ledgers: LedgerClient, into: str, progress: Progress = lambda done: None
) -> ClusterCopy:
    """Make `into`, which must not hold anything yet, a data folder with all of the cluster."""
    target = DataFolder(into.rstrip("/") or "/")
    if not await is_empty(runtime, target.path):
        raise ConfigError(f"{target.path} is not empty", hint="name a new folder for the copy")
    report = ClusterCopy()
    async with _moment(runtime, ledgers.context.meta, report) as moment:
        await _Copying(runtime, ledgers, target, moment, report=report, progress=progress).run()
    return report


@asynccontextmanager
async def _moment(runtime: Runtime, meta: MetaStore, report: ClusterCopy) -> AsyncIterator[_Moment]:
    """One moment of the cluster; no ledger of it is deleted for as long as the block runs."""
    for _ in range(_ATTEMPTS):
        lease = await meta.lease(_LEASE_S)
        try:
            request = _Request(runtime, meta, lease)
            began = runtime.clock.monotonic()
            found = await request.hold()
            report.held_s = runtime.clock.monotonic() - began
            if found is not None:
                yield found
                if not lease.alive:
                    raise MetaError("the metadata was away for too long: ledgers of the copy may be gone")
                return
        finally:
            await lease.revoke()
            await _remove(meta, keys.BACKUP_ANSWERS)
    raise PeerError(
        "the brokers could not hold their writes at the same time", hint="brokers come and go: try again later"
    )


class _Request:
    def __init__(self, runtime: Runtime, meta: MetaStore, lease: Lease) -> None:
        self._clock = runtime.clock
        self._meta = meta
        self._lease = lease
        self._id = f"{runtime.rng.getrandbits(64):016x}"

    async def hold(self) -> _Moment | None:
        """None if a broker came or went meanwhile, or did not hold its writes all the time."""
        brokers = await self._brokers()
        await self._say("hold", new=True)
        ends = await self._answers("hold", brokers)
        listing = await self._meta.list(EVERYTHING)
        await self._say("copy")
        later = await self._answers("copy", brokers)
        if ends is None or later is None:
            return None
        items = {item.key: item for item in listing.items}
        if {key.removeprefix(keys.BROKERS) for key in items if key.startswith(keys.BROKERS)} != brokers:
            return None
        return _Moment(items, listing.revision, {**later, **ends})

    async def _brokers(self) -> set[str]:
        listing = await self._meta.list(keys.BROKERS)
        return {item.key.removeprefix(keys.BROKERS) for item in listing.items}

    async def _say(self, step: str, *, new: bool = False) -> None:
        value = json.dumps({"id": self._id, "step": step}).encode()
        if new and await self._meta.get(keys.BACKUP_REQUEST) is not None:
            raise ConfigError("another copy of this cluster is being made", hint="wait until it is done")
        await self._meta.put(keys.BACKUP_REQUEST, value, expect=0 if new else None, lease=self._lease)

    async def _answers(self, step: str, brokers: set[str]) -> dict[int, int] | None:
        """Ends of ledgers, from all brokers; None if one says that its hold is broken."""
        deadline = self._clock.monotonic() + _PATIENCE_S
        ends: dict[int, int] = {}
        whole = True
        for broker in sorted(brokers):
            while (head := await self._meta.get(keys.backup_answer(self._id, step, broker, 0))) is None:
                if self._clock.monotonic() > deadline:
                    if broker not in await self._brokers():
                        return None
                    raise PeerError(
                        f"broker {broker} does not hold its writes",
                        hint="is it of this version? see its log, or move its topics away: weir cluster drain",
                    )
                await self._clock.sleep(_LOOK_S)
            said = json.loads(head.value)
            whole &= bool(said["unbroken"])
            for part in range(1, int(said["parts"]) + 1):
                item = await self._meta.get(keys.backup_answer(self._id, step, broker, part))
                ends.update({} if item is None else dict(json.loads(item.value)["ends"]))
        return ends if whole else None


async def _remove(meta: MetaStore, prefix: str) -> None:
    for item in (await meta.list(prefix)).items:
        await meta.delete(item.key)


class _Copying:
    """The metadata is written last: without it nothing starts on the new folder."""

    def __init__(
        self,
        runtime: Runtime,
        ledgers: LedgerClient,
        target: DataFolder,
        moment: _Moment,
        *,
        report: ClusterCopy,
        progress: Progress,
    ) -> None:
        self._runtime = runtime
        self._ledgers = ledgers
        self._context = ledgers.context
        self._target = target
        self._moment = moment
        self._report = report
        self._progress = progress
        self._bookie: Bookie

    async def run(self) -> None:
        settings = BookieSettings(
            _BOOKIE,
            self._target.bookie,
            journal=JournalSettings(sync_interval_s=0.5, file_bytes=8 << 20, max_free_files=1),
            space=SpaceSettings(0, 0),
        )
        found = [
            decode_ledger(item.value) for key, item in self._moment.items.items() if key.startswith(keys.LEDGERS)
        ]
        self._bookie = await Bookie.open(self._runtime, settings)
        try:
            waiting = deque(found)
            copied: dict[int, LedgerMetadata] = {}

            async def work() -> None:
                while waiting:
                    ledger = waiting.popleft()
                    copied[ledger.ledger_id] = await self._copy(ledger)

            async with asyncio.TaskGroup() as group:
                for _ in range(min(_AT_ONCE, len(found))):
                    group.create_task(work())
        finally:
            await self._bookie.close()
        await self._write_meta(copied)

    async def _copy(self, ledger: LedgerMetadata) -> LedgerMetadata:
        """Its record in the copy."""
        if ledger.state is not LedgerState.CLOSED:
            end = self._moment.ends.get(ledger.ledger_id)
            if end is None:  # nobody writes to it: its writer is gone, and its end is what a successor would find
                ledger = await self._ledgers.recover(ledger.ledger_id)
            else:
                ledger = replace(ledger, state=LedgerState.CLOSED, last_entry=EntryId(end))
        pending: deque[asyncio.Future[None]] = deque()
        length = 0
        for stretch in stretches(ledger):
            first = int(stretch.fragment.first_entry)
            last = min(stretch.last, ledger.last_entry)
            while first <= last:
                batch = await self._read(stretch, EntryId(first), EntryId(last))
                first = batch[-1][0] + 1
                length = decode_entry(batch[-1][1]).ledger_length
                pending.append(self._bookie.add(ledger.ledger_id, batch, recovery=True))
                while len(pending) > _MOST_PENDING:
                    await pending.popleft()
                self._report.bytes += sum(len(data) for _, data in batch)
                self._progress(self._report.bytes)
        while pending:
            await pending.popleft()
        self._report.ledgers += 1
        return replace(
            ledger, quorum=Quorum(), fragments=(Fragment(EntryId(0), (_BOOKIE,)),), length=ledger.length or length
        )

    async def _read(self, stretch: Stretch, first: EntryId, last: EntryId) -> list[tuple[EntryId, bytes]]:
        ledger_id = stretch.ledger_id
        reads = self._context.reads
        try:
            order = reads.ranking.order(stretch.write_set(first))
            # A bookie has every entry only where a ledger is not striped: the next one may be another's.
            most = last if stretch.quorum.write == len(stretch.fragment.bookies) else first
            found = (await reads.read(ledger_id, first, most, order)).entries
            return [(entry.entry_id, bytes(encode_entry(*entry))) for entry in found if entry.entry_id <= last]
        except EntryLostError as lost:
            self._report.lost += 1
            log.warning("%s", lost)
            return [(first, bytes(encode_lost_entry(ledger_id, first, first - 1, lost.what)))]
        except EntryUnreadableError:
            now = await self._ledgers.metadata(LedgerId(ledger_id))
            moved = next(
                (one for one in stretches(now, last) if one.fragment.first_entry <= first <= one.last), None
            )
            if moved is None or moved.fragment == stretch.fragment:
                raise
            return await self._read(moved, first, EntryId(min(last, moved.last)))

    async def _write_meta(self, copied: Mapping[int, LedgerMetadata]) -> None:
        items = {key: item for key, item in self._moment.items.items() if not key.startswith(NOT_COPIED)}
        revision = self._moment.revision + 1

        def put(key: str, value: bytes) -> None:
            items[key] = Versioned(key, value, revision)

        for ledger in copied.values():
            put(keys.ledger(ledger.ledger_id), encode_ledger(ledger))
        put(keys.cookie(_BOOKIE), encode_cookie(self._bookie.cookie))
        await write_store(self._runtime, self._target.meta, items.values(), revision)


_CLUSTER_RESTORE_MOST_PENDING = 16
_ADD_TIMEOUT_S = 60.0
#: Keys that are put at the same time.
_KEYS_AT_ONCE = 64
ClusterRestoreProgress = Callable[[int, int], None]


async def restore_cluster(
    runtime: Runtime,
    ledgers: LedgerClient,
    path: str,
    copies: int,
    progress: ClusterRestoreProgress = lambda done, total: None,
) -> int:
    """Into the cluster of this client; answers how many ledgers that were. ConfigError unless it is new and has no
    brokers; DiskError if the copy is damaged."""
    await _require_new(ledgers)
    async with stopped(runtime, path) as folder:
        meta = await survey_meta(runtime.disk, folder.meta)
        if meta.damages:
            raise DiskError(f"{meta.damages[0].path} is damaged", hint="save what is left: weir salvage")
        found = [decode_ledger(item.value) for item in meta.under(keys.LEDGERS)]
        records = {ledger.ledger_id: _placed(runtime, ledgers, ledger, copies) for ledger in found}
        adding = _Adding(runtime, ledgers, records)
        report = await survey_folder(runtime, folder, meta, take=adding.take, progress=progress)
        await adding.settled(0)
        if report.losses:
            lost = report.losses[0]
            raise DiskError(
                f"entries {lost.first_entry} to {lost.last_entry} of ledger {lost.ledger_id} cannot be read",
                hint="save what is left first: weir salvage COPY --into NEW, then restore NEW",
            )
    last = {
        key: item.value
        for key, item in meta.items.items()
        if not key.startswith((*NOT_COPIED, keys.LEDGERS)) and not key.startswith(keys.TOPICS)
    }
    topics = {item.key: item.value for item in meta.under(keys.TOPICS)}
    for some in (
        {keys.ledger(ledger_id): encode_ledger(_closed(ledger, adding)) for ledger_id, ledger in records.items()},
        last,
        topics,
    ):
        await _put_all(ledgers, some)
    return len(records)


async def _require_new(ledgers: LedgerClient) -> None:
    meta = ledgers.context.meta
    if (await meta.list(keys.BROKERS)).items:
        raise ConfigError(
            "brokers run in this cluster", hint="restore into etcd and bookies alone, and start brokers then"
        )
    if await meta.count(keys.LEDGERS):
        raise ConfigError("this cluster holds ledgers already", hint="restore into a new one")


def _placed(runtime: Runtime, ledgers: LedgerClient, ledger: LedgerMetadata, copies: int) -> LedgerMetadata:
    quorum = Quorum(copies, copies, copies)
    writable = ledgers.context.directory.writable()
    racks = {bookie_id: info.rack for bookie_id, info in writable.items()}
    ensemble = choose_ensemble(racks, quorum, runtime.rng)
    return replace(ledger, quorum=quorum, fragments=(Fragment(EntryId(0), ensemble),))


def _closed(ledger: LedgerMetadata, adding: "_Adding") -> LedgerMetadata:
    """A copy of a running `weir up` has open ledgers: they end where their entries end."""
    if ledger.state is LedgerState.CLOSED:
        return ledger
    last, length = adding.last.get(ledger.ledger_id, (-1, 0))
    return replace(ledger, state=LedgerState.CLOSED, last_entry=EntryId(last), length=length)


class _Adding:
    def __init__(self, runtime: Runtime, ledgers: LedgerClient, records: dict[LedgerId, LedgerMetadata]) -> None:
        self._runtime = runtime
        self._context = ledgers.context
        self._records = records
        self._pending: deque[asyncio.Task[None]] = deque()
        #: Of each ledger its last entry, and its bytes up to there.
        self.last: dict[LedgerId, tuple[int, int]] = {}

    async def take(self, ledger_id: LedgerId, batch: Batch) -> None:
        ledger = self._records.get(ledger_id)
        if ledger is None or not batch:
            return
        entry = decode_entry(batch[-1][1])
        self.last[ledger_id] = max(self.last.get(ledger_id, (-1, 0)), (entry.entry_id, entry.ledger_length))
        for bookie_id in ledger.fragments[0].bookies:
            add = self._add(bookie_id, ledger_id, list(batch))
            self._pending.append(asyncio.get_running_loop().create_task(add))
        await self.settled(_CLUSTER_RESTORE_MOST_PENDING)

    async def settled(self, most: int) -> None:
        while len(self._pending) > most:
            await self._pending.popleft()

    async def _add(
        self, bookie_id: BookieId, ledger_id: LedgerId, batch: Sequence[tuple[EntryId, Buffer]]
    ) -> None:
        context = self._context
        failure = await recovery_add(
            self._runtime.clock, context.pool, bookie_id, ledger_id, batch, timeout_s=_ADD_TIMEOUT_S
        )
        if failure is not None:
            raise failure


async def _put_all(ledgers: LedgerClient, values: dict[str, bytes]) -> None:
    meta = ledgers.context.meta
    waiting = deque(values.items())

    async def work() -> None:
        while waiting:
            key, value = waiting.popleft()
            await meta.put(key, value)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(_KEYS_AT_ONCE, len(values))):
            group.create_task(work())
