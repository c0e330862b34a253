"""A bookie node: storage, network server, registration, metadata and auto-recovery, started and closed in order.

After an accepted journal loss it marks the affected ledgers for repair. It also follows its own decommissioning
in the metadata, and can run an auditor and a repair worker.
"""

import asyncio
import logging
from collections.abc import Collection, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from weir.bookie.bookie import Bookie
from weir.bookie.registration import (
    Registration,
    RegistrationSettings,
    check_cookie,
    check_ledger_ids,
    counts_ledgers,
    pass_lost_ids,
    watch_for_orphans,
)
from weir.bookie.server import BookieServer, ServerSettings, SessionLimits
from weir.bookie.settings import BookieSettings
from weir.bookie.space import BookieState
from weir.broker.peers.peer_calls import PeerCredentials
from weir.ledger.bookie_directory import BookieDirectory
from weir.ledger.marks import Marks
from weir.ledger.replication import Auditor, ReplicationWorker
from weir.ledger.settings import LedgerSettings
from weir.meta import keys
from weir.meta.connect import connect
from weir.meta.interfaces import MetaStore
from weir.model.errors import BookieError, BookieUnavailableError, DiskError, MetaError
from weir.model.ids import BookieId, LedgerId
from weir.model.ledger import LedgerState
from weir.runtime.interfaces import Clock, Runtime
from weir.runtime.loss_records import record_accepted
from weir.runtime.tasks import TaskScope
from weir.server.addresses import Address, advertised
from weir.server.local_storage import open_ledgers
from weir.server.node import Node
from weir.server.remote_storage import check_belongs
from weir.wire.metadata import BookieInfo, decode_ledger

log = logging.getLogger(__name__)

_RETRY_PAUSE_S = 0.5


class Leaving:
    """Follows the decommissioning of this bookie: `load` once, then `follow` in the background."""

    def __init__(self, meta: MetaStore, clock: Clock, bookie_id: BookieId) -> None:
        self._meta = meta
        self._clock = clock
        self._key = keys.bookie_leaving(bookie_id)
        self._revision = 0
        self._changed = asyncio.Event()
        self.now = False

    async def load(self) -> None:
        listing = await self._meta.list(self._key)
        self._revision = listing.revision
        self._set(any(item.key == self._key for item in listing.items))

    async def follow(self) -> None:
        while True:
            try:
                async for change in self._meta.watch(self._key, since=self._revision):
                    if change.key == self._key:
                        self._set(change.value is not None)
                return  # the store was closed
            except MetaError as failure:
                log.warning("watch of %s failed, retrying: %s", self._key, failure)
            await self._clock.sleep(_RETRY_PAUSE_S)
            try:
                await self.load()
            except MetaError as failure:
                log.warning("cannot read %s: %s", self._key, failure)

    async def changed(self, known: bool) -> None:
        """Wait until the state differs from `known`."""
        while self.now == known:
            self._changed.clear()
            await self._changed.wait()

    def _set(self, leaving: bool) -> None:
        self.now = leaving
        self._changed.set()


async def replicated_ledgers(meta: MetaStore, bookie_id: BookieId) -> list[LedgerId]:
    """Ledgers of this bookie with other replicas, from which lost entries can be copied back. Others have no
    second copy: marking them in doubt would block their reads and their close for ever."""
    ledgers = [decode_ledger(item.value) for item in (await meta.list(keys.LEDGERS)).items]
    return [each.ledger_id for each in ledgers if bookie_id in each.bookies() and each.quorum.write > 1]


async def end_doubts(
    bookie: Bookie, meta: MetaStore, runtime: Runtime, me: BookieId, *, interval_s: float
) -> None:
    """Mark each ledger in doubt for repair once it is closed; the doubt ends when the repair is complete."""
    marked: dict[LedgerId, None] = {}
    while bookie.doubts.ledgers:
        try:
            ended = await _look(bookie.doubts.ledgers, meta, Marks(runtime, meta), me, marked)
            await bookie.doubts.end(ended)
            if ended:
                log.info("%d ledgers have all replicas again after the accepted loss", len(ended))
        except (MetaError, BookieError, DiskError) as failure:
            log.warning("cannot check ledgers in doubt: %s", failure)
        await runtime.clock.sleep(interval_s)


async def _look(
    doubtful: Collection[LedgerId], meta: MetaStore, marks: Marks, me: BookieId, marked: dict[LedgerId, None]
) -> list[LedgerId]:
    """Mark repairable ledgers; return those that are no longer in doubt."""
    waiting = {mark.ledger_id for mark in await marks.list()}
    ended = []
    for ledger_id in sorted(doubtful):
        found = await meta.get(keys.ledger(ledger_id))
        ledger = None if found is None else decode_ledger(found.value)
        if ledger is None or me not in ledger.bookies():
            ended.append(ledger_id)
        elif ledger.state is LedgerState.CLOSED and ledger_id not in marked:
            await marks.add(ledger_id, (me,))
            marked[ledger_id] = None
        elif ledger_id in marked and ledger_id not in waiting:
            ended.append(ledger_id)
    return ended


class RepairService:
    """`start`, then `close`. Only one auditor of the cluster is active; every worker repairs."""

    def __init__(
        self,
        runtime: Runtime,
        meta: MetaStore,
        owner: str,
        settings: LedgerSettings,
        *,
        credentials: PeerCredentials | None = None,
    ) -> None:
        self._credentials = credentials or PeerCredentials()
        self._runtime = runtime
        self._meta = meta
        self._owner = owner
        self._settings = settings
        self._started = AsyncExitStack()

    async def start(self) -> None:
        client = await open_ledgers(
            self._runtime, self._meta, self._started, settings=self._settings, credentials=self._credentials
        )
        tasks = TaskScope(f"repair {self._owner}")
        self._started.push_async_callback(tasks.close)
        tasks.spawn(Auditor(client.context, self._owner).run(), "auditor")
        tasks.spawn(ReplicationWorker(client.context, self._owner).run(), "worker")

    async def close(self) -> None:
        await self._started.aclose()


@dataclass(frozen=True, slots=True)
class BookieNodeSettings:
    """The settings of a node."""

    bookie: BookieSettings
    meta_url: str
    listen: Address
    advertise: Address | None = None
    rack: str = ""
    limits: SessionLimits = field(default_factory=SessionLimits)
    registration: RegistrationSettings = field(default_factory=RegistrationSettings)
    #: The interval of the search for ledgers that the metadata no longer has.
    orphan_interval_s: float = 600.0
    #: The interval of the check of ledgers that an accepted loss left in doubt.
    doubt_interval_s: float = 10.0
    #: Whether this node runs auto-recovery (auditor and repair worker), and its settings.
    auto_repair: LedgerSettings | None = None
    #: Accept the loss of acknowledged entries that the journal lacks.
    accept_loss: bool = False


class BookieNode(Node):
    """Serves a folder that this bookie owns. The caller owns and closes a `meta` that it passes in. `close`
    unregisters first, so that no new clients connect, then answers accepted requests, and flushes."""

    def __init__(
        self,
        runtime: Runtime,
        settings: BookieNodeSettings,
        *,
        meta: MetaStore | None = None,
        credentials: PeerCredentials | None = None,
    ) -> None:
        """`credentials`: mutual authentication of clients and this node; without them, it accepts all."""
        self._runtime = runtime
        self._settings = settings
        self._meta = meta
        self._credentials = credentials or PeerCredentials()
        # Resources to close in reverse order, also when the start fails half-way.
        super().__init__()
        self._bookie: Bookie | None = None
        self._address: Address | None = None
        self._failed = asyncio.Event()

    @property
    def bookie(self) -> Bookie:
        """The storage, for direct calls within the process."""
        if self._bookie is None:
            raise BookieUnavailableError(f"bookie {self._settings.bookie.bookie_id} is not started")
        return self._bookie

    @property
    def address(self) -> Address:
        """The address for other nodes."""
        if self._address is None:
            raise BookieUnavailableError(f"bookie {self._settings.bookie.bookie_id} is not started")
        return self._address

    @property
    def addresses(self) -> dict[str, Address]:
        """The same, by the name in the ready file."""
        return {"bookie": self.address}

    async def failed(self) -> None:
        """Wait until the storage has failed for good; then close the node and start a new one."""
        await self._failed.wait()

    async def _start(self) -> None:
        settings, runtime = self._settings, self._runtime
        meta = self._meta or await self._open_meta()
        me = settings.bookie.bookie_id
        bookie = await Bookie.open(
            runtime,
            settings.bookie,
            accept_loss=settings.accept_loss,
            copies=lambda: replicated_ledgers(meta, me),
        )
        self._started.push_async_callback(bookie.close)
        await check_cookie(meta, bookie.cookie, holds_ledgers=bool(bookie.ledgers()))
        await self._check_ids(meta, bookie)
        await self._check_belongs(meta)
        server = await self._serve(bookie)
        registration = await self._register(bookie, meta, server)
        tasks = TaskScope(f"bookie-node {settings.bookie.bookie_id}")
        self._started.push_async_callback(tasks.close)
        leaving = Leaving(meta, runtime.clock, me)
        await leaving.load()
        tasks.spawn(leaving.follow(), "leaving")
        tasks.spawn(self._follow_state(bookie, registration, leaving), "state")
        interval_s = settings.orphan_interval_s
        tasks.spawn(watch_for_orphans(bookie, meta, runtime.clock, interval_s=interval_s), "orphans")
        tasks.spawn(
            end_doubts(bookie, meta, runtime, me, interval_s=settings.doubt_interval_s), "ledgers in doubt"
        )
        if settings.auto_repair is not None:
            repair = RepairService(
                runtime, meta, settings.bookie.bookie_id, settings.auto_repair, credentials=self._credentials
            )
            self._started.push_async_callback(repair.close)
            await repair.start()
        self._bookie = bookie

    async def _check_ids(self, meta: MetaStore, bookie: Bookie) -> None:
        """Check that the metadata is as new as this disk, unless the operator accepts the loss."""
        if not await counts_ledgers(meta):
            return
        if not self._settings.accept_loss:
            await check_ledger_ids(meta, bookie.highest_ledger())
            return
        losses = await pass_lost_ids(meta, bookie.highest_ledger(), lost_changes=None)
        if losses:
            await record_accepted(self._runtime, self._settings.bookie.directory, losses)

    async def _check_belongs(self, meta: MetaStore) -> None:
        """Check that the other bookies share this bookie's secret."""
        if self._credentials.secret is None:
            return
        directory = BookieDirectory(self._runtime.clock, meta)
        try:
            await directory.start()
            others = directory.writable()
        finally:
            await directory.close()
        others.pop(self._settings.bookie.bookie_id, None)  # the registration from before a crash
        await check_belongs(self._runtime, others, self._credentials, setting="--cluster-secret")

    async def _open_meta(self) -> MetaStore:
        meta = await connect(self._settings.meta_url, self._runtime, accept_loss=self._settings.accept_loss)
        self._started.push_async_callback(meta.close)
        return meta

    async def _serve(self, bookie: Bookie) -> BookieServer:
        settings = self._settings
        where = ServerSettings(settings.listen.host, settings.listen.port, limits=settings.limits)
        server = BookieServer(
            self._runtime,
            bookie,
            settings.bookie.bookie_id,
            where,
            tls=self._credentials.server_tls,
            secret=self._credentials.secret,
        )
        await server.start()
        self._started.push_async_callback(server.close)
        return server

    async def _register(self, bookie: Bookie, meta: MetaStore, server: BookieServer) -> Registration:
        settings = self._settings
        self._address = advertised(Address(settings.listen.host, server.port), settings.advertise)
        info = BookieInfo(settings.bookie.bookie_id, self._address.host, self._address.port, settings.rack)
        registration = Registration(self._runtime.clock, meta, info, settings.registration)
        self._started.push_async_callback(registration.close)
        await registration.start(writable=bookie.state is BookieState.WRITABLE)
        return registration

    async def _follow_state(self, bookie: Bookie, registration: Registration, leaving: Leaving) -> None:
        """Register a bookie under decommission as read-only: it gets no new ledgers."""
        state = bookie.state
        while state not in (BookieState.FAILED, BookieState.CLOSED):
            registration.set_writable(state is BookieState.WRITABLE and not leaving.now, bookie.why_read_only)
            state = await _first(bookie.state_changed(state), leaving.changed(leaving.now), state)
        # Clients should no longer connect to it.
        await registration.close()
        if state is BookieState.FAILED:
            self._failed.set()


async def _first(
    state: Coroutine[Any, Any, BookieState], other: Coroutine[Any, Any, None], now: BookieState
) -> BookieState:
    """The bookie's next state, or the current one if the other event came first."""
    tasks = asyncio.ensure_future(state), asyncio.ensure_future(other)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else now
    finally:
        for task in tasks:
            task.cancel()
