"""Goes on after an accepted loss: what is left of the metadata becomes a new snapshot, past everything lost."""

from collections.abc import AsyncIterator, Sequence

from weir.meta.embedded_files import contents, given_up_path, log_path, snapshot_path, write_whole
from weir.meta.embedded_log import create_log, snapshot_parts
from weir.meta.recovery import Losses
from weir.meta.state import KeySpace
from weir.runtime import Runtime
from weir.runtime.accepted_losses import record_accepted

_SLICE = 16


async def go_on_without(runtime: Runtime, folder: str, state: KeySpace, losses: Losses) -> None:
    """Write down what is given up, then the state as of the last revision that anyone was told of: no version is
    given twice. Until the snapshot has its name, the folder is as short as it was, and refused again."""
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
