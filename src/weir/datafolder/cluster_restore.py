"""Brings a copy into a new cluster: entries to its bookies, as many copies as are wanted, then the metadata.

The ledgers keep their ids, so all that names them stays as it is. The cluster has bookies and no brokers yet, and
nothing in it. Records of topics are written last: if it is broken off, nothing of it is a topic.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from weir.bookie.survey import Batch
from weir.datafolder.cluster_copy import NOT_COPIED
from weir.datafolder.folder import stopped
from weir.datafolder.survey import survey_folder
from weir.ledger.adds import recovery_add
from weir.ledger.client import LedgerClient
from weir.ledger.placement import choose_ensemble
from weir.meta import keys
from weir.meta.survey import survey_meta
from weir.model.errors import ConfigError, DiskError
from weir.model.ids import BookieId, Buffer, EntryId, LedgerId
from weir.model.ledger import Fragment, LedgerMetadata, LedgerState, Quorum
from weir.runtime.interfaces import Runtime
from weir.wire.entry import decode_entry
from weir.wire.metadata import decode_ledger, encode_ledger

_MOST_PENDING = 16
_ADD_TIMEOUT_S = 60.0
#: Keys that are put at the same time.
_KEYS_AT_ONCE = 64
Progress = Callable[[int, int], None]


async def restore_cluster(
    runtime: Runtime,
    ledgers: LedgerClient,
    path: str,
    copies: int,
    progress: Progress = lambda done, total: None,
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
        await self.settled(_MOST_PENDING)

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
