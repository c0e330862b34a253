"""The storage of a Weir in one folder: embedded metadata and one bookie, in the broker's process or served.

`StorageNode` is the storage process of `weir up --workers N`.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from weir.bookie.bookie import Bookie
from weir.bookie.damage import Damages
from weir.bookie.registration import Registration, check_cookie, check_ledger_ids, pass_lost_ids, watch_for_orphans
from weir.bookie.server import BookieServer, ServerSettings
from weir.bookie.settings import BookieSettings
from weir.bookie.space import BookieState, size_text
from weir.broker.peers.peer_calls import PeerCredentials
from weir.datafolder.folder import DataFolder, check_format, write_format
from weir.datafolder.freeze import Freezer
from weir.ledger.bookie_directory import BookieDirectory
from weir.ledger.client import LedgerClient
from weir.ledger.remote_bookie import RemoteBookiePool
from weir.ledger.settings import LedgerSettings
from weir.ledger.write_freeze import WriteHold
from weir.meta.embedded import EmbeddedMeta, open_embedded
from weir.meta.interfaces import MetaStore
from weir.meta.remote_server import MetaServer, MetaServerSettings
from weir.model.check import present
from weir.model.errors import BookieUnavailableError, DiskFullError, FileLockedError, StorageFullError
from weir.model.ids import BookieId
from weir.runtime.interfaces import FileLock, Runtime
from weir.runtime.loss_records import record_accepted
from weir.runtime.tasks import TaskScope
from weir.server.addresses import Address
from weir.server.node import Node
from weir.wire.metadata import BookieInfo
from weir.wire.node.proof import ClusterSecret

_ORPHAN_INTERVAL_S = 600.0
#: The writes of a start before the first message, with a margin.
_LEAST_FREE_BYTES = 1024 * 1024
_NOT_STARTED = "storage is started before it is used"
#: The one bookie is in this process; no client connects to it.
_NOWHERE = Address("localhost", 1)


class Space(NamedTuple):
    """Free space of a disk, and the limit below which writes are rejected."""

    folder: str
    free_bytes: int
    low_water_bytes: int
    high_water_bytes: int

    def warning(self) -> str:
        """The warning while writes are still accepted; empty if space suffices for a while."""
        if self.free_bytes >= 2 * self.high_water_bytes:
            return ""
        return (
            f"the disk of {self.folder} is nearly full: {size_text(self.free_bytes)} left; below"
            f" {size_text(self.low_water_bytes)} (storage.low_water_bytes) no messages are taken"
        )


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The settings of the folder and its bookie."""

    folder: str
    bookie: BookieSettings
    #: Accept the loss of acknowledged data that the disk lacks.
    accept_loss: bool = False


class StorageFolder(Node):
    """The opened folder: its metadata and its bookie. `start`, `register`, then `close`."""

    def __init__(
        self, runtime: Runtime, settings: StorageSettings, *, on_locked: Callable[[], None] | None = None
    ) -> None:
        """`on_locked` is called once this process has locked the folder."""
        self._runtime = runtime
        self._settings = settings
        self._on_locked = on_locked
        super().__init__()
        self._meta: EmbeddedMeta | None = None
        self._bookie: Bookie | None = None
        self._failed = asyncio.Event()

    @property
    def meta(self) -> EmbeddedMeta:
        return present(self._meta, _NOT_STARTED)

    @property
    def bookie(self) -> Bookie:
        return present(self._bookie, _NOT_STARTED)

    @property
    def space(self) -> Space:
        marks = self._settings.bookie.space
        return Space(self._settings.folder, self.bookie.free_bytes, marks.low_water_bytes, marks.high_water_bytes)

    def check_writable(self) -> None:
        """Raise if storage accepts no writes now."""
        self.meta.check_writable()
        bookie = self.bookie
        if bookie.state is BookieState.READ_ONLY and bookie.why_read_only:
            raise StorageFullError(f"the storage is read-only: {bookie.why_read_only}")
        if bookie.state is not BookieState.WRITABLE:
            raise BookieUnavailableError(f"the storage is {bookie.state.value}", hint="see the log")

    async def failed(self) -> None:
        """Wait until the disk has failed for good."""
        await self._failed.wait()

    async def _start(self) -> None:
        runtime, folder = self._runtime, self._settings.folder
        lock = await _lock(runtime, folder)
        self._started.push_async_callback(lock.release)
        if self._on_locked is not None:
            self._on_locked()
        await check_format(runtime.disk, folder)
        await _check_space(runtime, folder)
        accept_loss = self._settings.accept_loss
        meta = await open_embedded(runtime, f"{folder}/meta", accept_loss=accept_loss)
        self._started.push_async_callback(meta.close)
        bookie = await Bookie.open(runtime, self._settings.bookie, accept_loss=accept_loss)
        self._started.push_async_callback(bookie.close)
        await self._know(meta, bookie)
        await write_format(runtime.disk, folder)
        self._meta, self._bookie = meta, bookie
        tasks = TaskScope("storage folder")
        self._started.push_async_callback(tasks.close)
        tasks.spawn(self._follow_meta(meta), "metadata")

    async def _know(self, meta: EmbeddedMeta, bookie: Bookie) -> None:
        """Check that the metadata knows the ledgers of this disk, or that the operator accepts the loss."""
        holds_ledgers = bool(bookie.ledgers())
        if not self._settings.accept_loss:
            await check_cookie(meta, bookie.cookie, holds_ledgers=holds_ledgers)
            await check_ledger_ids(meta, bookie.highest_ledger())
            return
        await check_cookie(meta, bookie.cookie, holds_ledgers=False)
        losses = await pass_lost_ids(meta, bookie.highest_ledger(), lost_changes=meta.lost_changes)
        if losses:
            await record_accepted(self._runtime, self._settings.folder, losses)

    async def register(self, where: Address = _NOWHERE) -> None:
        """Register the bookie: for this process, or for others at the address where it is served."""
        bookie, meta = self.bookie, self.meta
        info = BookieInfo(self._settings.bookie.bookie_id, where.host, where.port)
        registration = Registration(self._runtime.clock, meta, info)
        self._started.push_async_callback(registration.close)
        await registration.start(writable=bookie.state is BookieState.WRITABLE, why=bookie.why_read_only)
        tasks = TaskScope("storage")
        self._started.push_async_callback(tasks.close)
        tasks.spawn(self._follow_state(bookie, registration), "state")
        freezer = Freezer(self._runtime, DataFolder(self._settings.folder), meta, bookie)
        tasks.spawn(freezer.run(), "copies")
        tasks.spawn(watch_for_orphans(bookie, meta, self._runtime.clock, interval_s=_ORPHAN_INTERVAL_S), "orphans")

    async def _follow_meta(self, meta: EmbeddedMeta) -> None:
        await meta.failed()
        self._failed.set()

    async def _follow_state(self, bookie: Bookie, registration: Registration) -> None:
        state = bookie.state
        while state not in (BookieState.FAILED, BookieState.CLOSED):
            registration.set_writable(state is BookieState.WRITABLE, bookie.why_read_only)
            state = await bookie.state_changed(state)
        if state is BookieState.FAILED:
            self._failed.set()


class BrokerStorage(Protocol):
    """The storage of a broker: in its process, or in others."""

    @property
    def meta(self) -> MetaStore: ...

    @property
    def ledgers(self) -> LedgerClient: ...

    @property
    def damages(self) -> Damages:
        """Damage on the disks of this process."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def check_writable(self) -> None:
        """Raise if storage accepts no writes now."""

    @property
    def space(self) -> Space | None:
        """The space of this process's disk; None if it has none."""

    async def failed(self) -> None:
        """Wait until storage has failed for good."""


class LocalStorage(Node):
    """The folder in the broker's own process; `meta` and `ledgers` exist between `start` and `close`."""

    def __init__(
        self, runtime: Runtime, settings: StorageSettings, *, on_locked: Callable[[], None] | None = None
    ) -> None:
        self._runtime = runtime
        self._bookie_id = settings.bookie.bookie_id
        self._folder = StorageFolder(runtime, settings, on_locked=on_locked)
        super().__init__()
        self._ledgers: LedgerClient | None = None
        self.check_writable = self._folder.check_writable

    @property
    def meta(self) -> MetaStore:
        return self._folder.meta

    @property
    def damages(self) -> Damages:
        return self._folder.bookie.damages

    @property
    def ledgers(self) -> LedgerClient:
        return present(self._ledgers, _NOT_STARTED)

    @property
    def space(self) -> Space | None:
        return self._folder.space

    async def failed(self) -> None:
        await self._folder.failed()

    async def _start(self) -> None:
        await self._folder.start()
        self._started.push_async_callback(self._folder.close)
        await self._folder.register()
        self._ledgers = await open_ledgers(
            self._runtime, self.meta, self._started, local=(self._bookie_id, self._folder.bookie)
        )


async def open_ledgers(
    runtime: Runtime,
    meta: MetaStore,
    stack: AsyncExitStack,
    *,
    local: tuple[BookieId, Bookie] | None = None,
    settings: LedgerSettings | None = None,
    credentials: PeerCredentials | None = None,
    hold: WriteHold | None = None,
) -> LedgerClient:
    """Ledgers on the bookies in the metadata, one of which may be in this process; the stack closes them. `hold`:
    delays other writes of this node, too."""
    directory = BookieDirectory(runtime.clock, meta)
    stack.push_async_callback(directory.close)
    shown = credentials or PeerCredentials()
    pool = RemoteBookiePool(runtime, directory.resolve, tls=shown.client_tls, secret=shown.secret)
    stack.push_async_callback(pool.close)
    if local is not None:
        pool.add_local(*local)
    ledgers = LedgerClient(runtime, meta, pool, settings or LedgerSettings(), directory=directory, hold=hold)
    await ledgers.start()
    stack.push_async_callback(ledgers.close)
    return ledgers


async def _check_space(runtime: Runtime, folder: str) -> None:
    """DiskFullError without space for the start's own writes, which would wait for ever."""
    free = await runtime.disk.free_bytes(folder)
    if free < _LEAST_FREE_BYTES:
        raise DiskFullError(
            f"No space left on device: the disk of {folder} has {size_text(free)} left, and Weir needs"
            f" {size_text(_LEAST_FREE_BYTES)} to start",
            hint="free some space on that disk, then start again",
        )


async def _lock(runtime: Runtime, folder: str) -> FileLock:
    await runtime.disk.make_dirs(folder)
    try:
        return await runtime.disk.lock(f"{folder}/LOCK")
    except FileLockedError:
        raise FileLockedError(f"another `weir up` runs on {folder}") from None


class StorageNode(Node):
    """The served folder; `close` answers accepted requests and flushes."""

    def __init__(
        self,
        runtime: Runtime,
        settings: StorageSettings,
        *,
        meta: Address,
        bookie: Address,
        secret: ClusterSecret,
        on_locked: Callable[[], None] | None = None,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._meta_at = meta
        self._bookie_at = bookie
        self._secret = secret
        self._folder = StorageFolder(runtime, settings, on_locked=on_locked)
        super().__init__()
        self._addresses: dict[str, Address] = {}

    @property
    def addresses(self) -> dict[str, Address]:
        """The addresses of metadata and bookie."""
        return dict(self._addresses)

    async def failed(self) -> None:
        await self._folder.failed()

    async def _start(self) -> None:
        folder = self._folder
        await folder.start()
        self._started.push_async_callback(folder.close)
        me = self._settings.bookie.bookie_id
        where = ServerSettings(self._bookie_at.host, self._bookie_at.port)
        bookie = BookieServer(self._runtime, folder.bookie, me, where, secret=self._secret)
        await bookie.start()
        self._started.push_async_callback(bookie.close)
        await folder.register(Address(self._bookie_at.host, bookie.port))
        served = MetaServerSettings(self._meta_at.host, self._meta_at.port, self._secret)
        meta = MetaServer(self._runtime, folder.meta.core, served)
        await meta.start()
        self._started.push_async_callback(meta.close)
        self._addresses = {
            "meta": Address(self._meta_at.host, meta.port),
            "bookie": Address(self._bookie_at.host, bookie.port),
        }
