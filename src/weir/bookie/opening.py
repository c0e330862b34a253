"""What happens when a bookie opens its folder: leftovers go, and the logs of the checkpoint are loaded."""

import logging

from weir.bookie.layout import Layout, index_ids, log_ids
from weir.bookie.log_files import LogFiles
from weir.bookie.log_scan import load_log
from weir.bookie.small_files import TEMPORARY_SUFFIX
from weir.bookie.store import Store
from weir.model.errors import EntryLogMissingError, FileMissingError
from weir.runtime.interfaces import Disk
from weir.wire.checkpoint import Checkpoint

log = logging.getLogger(__name__)


async def settle_names(disk: Disk, layout: Layout) -> None:
    """A process that was killed may have left names that only the page cache has: nothing may be built on them
    before they would survive power loss, too."""
    for folder in (layout.logs, layout.journal, layout.root):
        await disk.sync_dir(folder)


async def remove_leftovers(disk: Disk, layout: Layout, checkpoint: Checkpoint) -> None:
    """Files that a crash left behind: logs that no checkpoint came to name, or names no more."""
    named = dict.fromkeys(checkpoint.logs)
    names = await disk.list(layout.logs)
    paths = [layout.log_file(number) for number in log_ids(names) if number not in named]
    paths += [layout.index_file(number) for number in index_ids(names) if number not in named]
    paths += [f"{layout.logs}/{name}" for name in names if name.endswith(TEMPORARY_SUFFIX)]
    paths += [f"{layout.root}/{name}" for name in await disk.list(layout.root) if name.endswith(TEMPORARY_SUFFIX)]
    for path in paths:
        log.info("removing %s, which a crash left behind", path)
        await disk.remove(path)


async def load_logs(disk: Disk, layout: Layout, checkpoint: Checkpoint, *, store: Store, files: LogFiles) -> None:
    """Every log that the checkpoint names, oldest first; an EntryLogMissingError if one is not there."""
    for number in checkpoint.logs:
        try:
            written = await load_log(disk, layout, number)
        except FileMissingError as missing:
            raise EntryLogMissingError(
                f"the checkpoint names {layout.log_file(number)}, which is gone"
            ) from missing
        store.load_log(written)
        files.add(number, written.pages_offset)
