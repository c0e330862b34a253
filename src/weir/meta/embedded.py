"""The embedded metadata store: one folder, one process, crash-safe (docs/adr/0005).

All keys live in memory. A change is acknowledged when it is in the log and the log is synced; many share one
sync. A leased key's holder lives in this same process, so every leased key found at open belongs to the dead
and is deleted before anyone can look.
"""

from weir.meta.embedded_files import LOCK_NAME, contents, remove_quietly
from weir.meta.embedded_log import EmbeddedLog, EmbeddedSettings, create_log
from weir.meta.interfaces import Lease
from weir.meta.leases import HeldLease
from weir.meta.local import LocalCore, LocalMeta
from weir.meta.recovery import recover
from weir.runtime import FileLock, Runtime

__all__ = ["EmbeddedMeta", "EmbeddedSettings", "open_embedded"]

_DEFAULTS = EmbeddedSettings()


async def open_embedded(runtime: Runtime, folder: str, settings: EmbeddedSettings = _DEFAULTS) -> "EmbeddedMeta":
    """Open the store in this folder, made if there is none.

    FileLockedError if another process has it open; MetaCorruptError if acknowledged bytes are damaged.
    """
    await runtime.disk.make_dirs(folder)
    lock = await runtime.disk.lock(f"{folder}/{LOCK_NAME}")
    try:
        core, log = await _start(runtime, folder, settings)
    except BaseException:
        await lock.release()
        raise
    return EmbeddedMeta(core, log, lock, runtime)


async def _start(runtime: Runtime, folder: str, settings: EmbeddedSettings) -> tuple[LocalCore, EmbeddedLog]:
    found = await contents(runtime.disk, folder)
    if not found.logs and not found.snapshots:
        await create_log(runtime, folder, 1)
    recovered = await recover(runtime.disk, folder)
    core = LocalCore(runtime.clock, recovered.state)
    log = EmbeddedLog(runtime, folder, core, recovered, settings)
    await log.start()
    core.log = log
    try:
        core.drop_all_leases()
        await log.settled(core.state.revision)
        await remove_quietly(runtime.disk, recovered.obsolete)
    except BaseException:
        await log.close()
        raise
    return core, log


class EmbeddedMeta(LocalMeta):
    """The store and its one client."""

    def __init__(self, core: LocalCore, log: EmbeddedLog, lock: FileLock, runtime: Runtime) -> None:
        super().__init__(core, runtime)
        self._log = log
        self._lock = lock
        self._held: list[HeldLease] = []

    async def lease(self, ttl_s: float) -> Lease:
        lease = await super().lease(ttl_s)
        if isinstance(lease, HeldLease):
            self._held = [*(held for held in self._held if held.alive), lease]
        return lease

    async def close(self) -> None:
        # The next open may delete the leased keys at once, so no holder may trust its lease beyond here.
        for lease in self._held:
            lease.end()
        await super().close()
        self._core.stop()
        await self._log.close()
        await self._lock.release()
