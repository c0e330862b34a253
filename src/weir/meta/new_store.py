"""Writes the folder of an embedded metadata store anew: a snapshot of everything, and an empty log behind it."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

from weir.meta.blocks import BlockView
from weir.meta.embedded_files import log_path, snapshot_path, write_whole
from weir.meta.embedded_log import create_log, snapshot_parts
from weir.meta.interfaces import Versioned
from weir.meta.state import KeySpace
from weir.runtime import Runtime

_SLICE = 16


async def write_store(runtime: Runtime, folder: str, items: Iterable[Versioned], revision: int) -> list[str]:
    """A store with these keys, as of a revision that no change of them is above; its files."""
    state = KeySpace(revision=revision)
    for item in sorted(items):
        state.load(item)
    blocks, leased = state.view()
    return await write_view(runtime, folder, blocks, leased, revision)


async def write_view(
    runtime: Runtime, folder: str, blocks: Sequence[BlockView], leased: Mapping[str, None], revision: int
) -> list[str]:
    """A store with what another's `KeySpace.view` showed at a revision; its files. Without the snapshot, which
    comes last, the folder is no store."""

    async def parts() -> AsyncIterator[Sequence[bytes]]:
        for part in snapshot_parts(runtime.rng.getrandbits(64), revision, blocks, leased, _SLICE):
            yield part
            await runtime.clock.sleep(0)

    await runtime.disk.make_dirs(folder)
    await create_log(runtime, folder, revision + 1)
    await write_whole(runtime.disk, snapshot_path(folder, revision), parts())
    return [snapshot_path(folder, revision), log_path(folder, revision + 1)]
