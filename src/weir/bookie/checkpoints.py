"""Keeps the checkpoint: two copies, each replaced atomically, one after the other."""

import logging

from weir.bookie.layout import Layout
from weir.bookie.small_files import read_small, write_small
from weir.model.errors import FileMissingError, JournalCorruptError, WireError
from weir.runtime.interfaces import Disk
from weir.wire.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint

log = logging.getLogger(__name__)


async def save_checkpoint(disk: Disk, layout: Layout, checkpoint: Checkpoint) -> None:
    """Durable in both copies when this returns; what only an older checkpoint needs may be removed after."""
    data = encode_checkpoint(checkpoint)
    for path in layout.checkpoints:
        await write_small(disk, path, data)


async def load_checkpoint(disk: Disk, layout: Layout) -> Checkpoint:
    """The newest whole copy; a JournalCorruptError if there is none.

    A crash between the two writes leaves an older second copy, whose files are then all still there. A copy
    that rots leaves its twin.
    """
    copies: list[Checkpoint] = []
    for path in layout.checkpoints:
        try:
            copies.append(await read_small(disk, path, decode_checkpoint))
        except FileMissingError:
            log.warning("%s is missing", path)
        except WireError as bad:
            log.error("%s is damaged: %s", path, bad)
    if not copies:
        raise JournalCorruptError(
            f"no whole checkpoint in {layout.root}: its fences and its entry logs are not known"
        )
    return max(copies, key=lambda copy: copy.number)
