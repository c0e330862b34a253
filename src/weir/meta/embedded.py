"""The embedded metadata store: one folder, one process, crash-safe (docs/adr/0005).

All keys are in memory. The store acknowledges a change when the log has it and is synced; many changes share one
sync. The holder of a leased key is always in this process, so every leased key found at open belongs to a dead
process, and the store deletes it before it serves reads.

After an accepted loss the rest of the metadata becomes a new snapshot with a revision beyond everything lost.
"""

import math
from collections.abc import AsyncIterator, Sequence
from typing import cast

from weir.meta.embedded_log import EmbeddedLog, EmbeddedSettings, create_log, snapshot_parts
from weir.meta.embedded_recovery import (
    LOCK_NAME,
    Losses,
    Recovered,
    contents,
    end_path,
    given_up_path,
    log_path,
    recover,
    remove_quietly,
    snapshot_path,
    write_whole,
)
from weir.meta.interfaces import Lease
from weir.meta.key_space import KeySpace
from weir.meta.leases import HeldLease
from weir.meta.local import LocalCore, LocalMeta
from weir.model.check import check
from weir.model.errors import MetaFullError
from weir.runtime.interfaces import FileLock, Runtime
from weir.runtime.loss_records import EndFile, load_end_record, record_accepted
from weir.wire.end_record import EndRecord

_SLICE = 16


async def go_on_without(runtime: Runtime, folder: str, state: KeySpace, losses: Losses) -> None:
    """Record the losses, then write the state at the last acknowledged revision, so that no version occurs twice.
    Until the snapshot has its name, the folder is as incomplete as before, and the next open refuses it again."""
    await record_accepted(runtime, folder, losses.found)
    revision = max(losses.through, state.revision)
    blocks, leased = state.view()
    old = await contents(runtime.disk, folder)

    async def parts() -> AsyncIterator[Sequence[bytes]]:
        for part in snapshot_parts(runtime.rng.getrandbits(64), revision, blocks, leased, _SLICE):
            yield part

    for path in [log_path(folder, first) for first in old.logs if first > revision]:
        await runtime.disk.rename(path, given_up_path(path))
    await create_log(runtime, folder, revision + 1)
    await write_whole(runtime.disk, snapshot_path(folder, revision), parts())
    paths = [log_path(folder, first) for first in old.logs if first <= revision]
    paths += [snapshot_path(folder, number) for number in old.snapshots if number != revision]
    for path in paths:
        await runtime.disk.rename(path, given_up_path(path))
    await runtime.disk.sync_dir(folder)


__all__ = ["EmbeddedMeta", "EmbeddedSettings", "open_embedded"]

_DEFAULTS = EmbeddedSettings()


async def open_embedded(
    runtime: Runtime, folder: str, settings: EmbeddedSettings = _DEFAULTS, *, accept_loss: bool = False
) -> "EmbeddedMeta":
    """Open the store in this folder, creating it if necessary.

    FileLockedError if another process has it open; MetaCorruptError if acknowledged bytes are damaged or missing,
    unless `accept_loss` is set.
    """
    await runtime.disk.make_dirs(folder)
    lock = await runtime.disk.lock(f"{folder}/{LOCK_NAME}")
    try:
        end = await load_end_record(runtime.disk, end_path(folder))
        losses = Losses(accepted=accept_loss)
        recovered = await _recover(runtime, folder, end, losses)
        core, log = await _start(runtime, folder, settings, recovered, end)
    except BaseException:
        await lock.release()
        raise
    return EmbeddedMeta(core, log, lock, runtime, losses)


async def _recover(runtime: Runtime, folder: str, end: EndRecord | None, losses: Losses) -> Recovered:
    found = await contents(runtime.disk, folder)
    if not found.logs and not found.snapshots and end is None:
        await create_log(runtime, folder, 1)
    recovered = await recover(runtime.disk, folder, end, losses)
    if isinstance(recovered, KeySpace):
        await go_on_without(runtime, folder, recovered, losses)
        recovered = await recover(runtime.disk, folder, end)
    check(isinstance(recovered, Recovered), "a rewritten store is whole")
    return cast(Recovered, recovered)


async def _start(
    runtime: Runtime, folder: str, settings: EmbeddedSettings, recovered: Recovered, end: EndRecord | None
) -> tuple[LocalCore, EmbeddedLog]:
    core = LocalCore(runtime.clock, recovered.state)
    end_file = EndFile(runtime, end_path(folder))
    log = EmbeddedLog(runtime, folder, core, recovered, settings, end_file=end_file)
    await log.start()
    end_file.start(end)
    core.log = log
    try:
        core.drop_all_leases()
        await log.settled(core.state.revision)
        await remove_quietly(runtime.disk, recovered.obsolete)
    except MetaFullError as full:
        await log.close()
        raise MetaFullError(full.what, hint="free some space on that disk, then start again") from None
    except BaseException:
        await log.close()
        raise
    return core, log


class EmbeddedMeta(LocalMeta):
    """The store and its one client."""

    def __init__(
        self, core: LocalCore, log: EmbeddedLog, lock: FileLock, runtime: Runtime, losses: Losses
    ) -> None:
        super().__init__(core, runtime)
        #: The minimum number of changes lost at this open with an accepted loss; None if the store was whole.
        self.lost_changes = losses.changes if losses.found else None
        self._log = log
        self._lock = lock
        self._held: list[HeldLease] = []

    async def lease(self, ttl_s: float) -> Lease:
        """A lease that ends at its revocation or when the store closes, not earlier, whatever `ttl_s`: its holder
        is in this process and dies with the store, so a clock could only mistake a busy event loop for a dead
        holder."""
        lease = self._grant(math.inf)
        self._held = [*(held for held in self._held if held.alive), lease]
        return lease

    def check_writable(self) -> None:
        """Raise MetaFullError while the disk is full, MetaUnavailableError once it has failed."""
        self._log.check_writable()

    async def failed(self) -> None:
        """Wait until the disk has failed for good."""
        await self._log.failed()

    async def close(self) -> None:
        # The next open may delete the leased keys immediately, so no holder may trust its lease beyond this point.
        for lease in self._held:
            lease.end()
        await super().close()
        self._core.stop()
        await self._log.close()
        await self._lock.release()
