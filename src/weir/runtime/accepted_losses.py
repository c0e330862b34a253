"""The durable record of losses that an operator accepted: one line of JSON each, never removed."""

import json
import logging
from collections.abc import Sequence

from weir.model.errors import FileMissingError
from weir.model.loss import Loss
from weir.runtime.interfaces import Runtime

log = logging.getLogger(__name__)

_NAME = "accepted-losses"


async def record_accepted(runtime: Runtime, folder: str, losses: Sequence[Loss]) -> None:
    """Say in the log and, durably, in the folder what is given up; before anything acts on it."""
    path, unfinished = f"{folder}/{_NAME}", f"{folder}/{_NAME}.tmp"
    lines = await _read(runtime, path)
    for loss in losses:
        log.warning("given up, as --accept-loss says: %s", loss)
        line = {"at_ms": runtime.clock.wall_ms(), "path": loss.path, "lost": loss.what}
        lines += json.dumps(line, ensure_ascii=False).encode() + b"\n"
    file = await runtime.disk.open(unfinished, create=True)
    try:
        await file.truncate(0)
        await file.write_at(0, [lines])
        await file.sync()
    finally:
        await file.close()
    await runtime.disk.rename(unfinished, path)
    await runtime.disk.sync_dir(folder)


async def _read(runtime: Runtime, path: str) -> bytes:
    try:
        file = await runtime.disk.open(path)
    except FileMissingError:
        return b""
    try:
        return bytes(await file.read_at(0, await file.size()))
    finally:
        await file.close()
