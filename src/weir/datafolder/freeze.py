"""How a copy is made of a folder that a Weir runs on: it is asked by a file in the folder, and freezes a moment.

Who wants a copy holds a lock in `DATA/backup` and puts a request there. The storage process, which looks once a
second, writes the metadata and the bookie's root as they are at one moment beside it, names the entry logs that
belong to them, and removes no log until the lock is free again. Who may write to the folder may ask; no port is
needed."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

from weir.bookie.bookie import Bookie
from weir.bookie.folder import Layout, save_checkpoint, write_small
from weir.datafolder.folder import DataFolder
from weir.meta import keys
from weir.meta.embedded import EmbeddedMeta
from weir.meta.embedded_log import write_view
from weir.meta.key_space import BlockView
from weir.model.errors import DiskError, FileLockedError, FileMissingError, WeirError
from weir.runtime.interfaces import Runtime
from weir.wire.metadata import encode_cookie

log = logging.getLogger(__name__)

#: In the data folder: where requests lie, and what is frozen.
FROZEN = "backup"
_LOOK_S = 1.0
_ASK_S = 0.05
_PATIENCE_S = 120.0
#: A ledger may be made between the moment and its flush whose id the frozen counter has not given out.
_ATTEMPTS = 5


class Frozen(NamedTuple):
    """What the storage process answered: where the small files lie, and which entry logs belong to them."""

    folder: str
    logs: list[int]


class _Paths(NamedTuple):
    """In `DATA/backup`."""

    root: str

    @property
    def lock(self) -> str:
        return f"{self.root}/lock"

    @property
    def request(self) -> str:
        return f"{self.root}/request"

    @property
    def answer(self) -> str:
        return f"{self.root}/answer"

    @property
    def frozen(self) -> str:
        return f"{self.root}/frozen"


class _Moment(NamedTuple):
    """The metadata as it was, and the last ledger id that it had given out."""

    blocks: list[BlockView]
    leased: dict[str, None]
    revision: int
    ledger_ids: int


def _paths(folder: DataFolder) -> _Paths:
    return _Paths(f"{folder.path}/{FROZEN}")


@asynccontextmanager
async def ask_to_freeze(runtime: Runtime, folder: DataFolder) -> AsyncIterator[Frozen]:
    """Have the Weir that runs on the folder freeze a moment; for as long as the block runs nothing of it goes."""
    paths = _paths(folder)
    await runtime.disk.make_dirs(paths.root)
    try:
        lock = await runtime.disk.lock(paths.lock)
    except FileLockedError:
        raise FileLockedError(
            f"another copy of {folder.path} is being made", hint="wait until it is done"
        ) from None
    try:
        request = f"{runtime.rng.getrandbits(64):016x}"
        await write_small(runtime.disk, paths.request, request.encode())
        yield await _answer(runtime, paths, folder, request)
    finally:
        await _remove(runtime, paths.request)
        await lock.release()


async def _answer(runtime: Runtime, paths: _Paths, folder: DataFolder, request: str) -> Frozen:
    deadline = runtime.clock.monotonic() + _PATIENCE_S
    while (fields := await _fields(runtime, paths.answer)).get("request") != request:
        if runtime.clock.monotonic() > deadline:
            raise DiskError(
                f"the process that has {folder.path} open does not answer",
                hint="is it a Weir of this version? stop it, and copy the stopped folder",
            )
        await runtime.clock.sleep(_ASK_S)
    if "error" in fields:
        raise DiskError(f"the running Weir cannot freeze a moment: {fields['error']}", hint="see its log")
    return Frozen(paths.frozen, [int(number) for number in fields["logs"]])


class Freezer:
    """The side of whoever has the folder open."""

    def __init__(self, runtime: Runtime, folder: DataFolder, meta: EmbeddedMeta, bookie: Bookie) -> None:
        self._runtime = runtime
        self._disk = runtime.disk
        self._folder = folder
        self._paths = _paths(folder)
        self._meta = meta
        self._bookie = bookie

    async def run(self) -> None:
        """Serve requests, one after the other."""
        while True:
            try:
                await self._look()
            except DiskError as failed:
                log.warning("a copy of %s could not be served: %s", self._folder.path, failed)
            await self._runtime.clock.sleep(_LOOK_S)

    async def _look(self) -> None:
        if not await self._disk.exists(self._paths.root):
            return
        request = await self._request()
        if request is None:
            if await self._disk.exists(self._paths.frozen):
                await self._clean()  # of a copy that was served, or that ended with the process before
        elif await self._is_wanted(request):
            await self._serve(request)
        else:
            await _remove(self._runtime, self._paths.request)  # whoever asked is gone

    async def _request(self) -> str | None:
        try:
            return (await _read(self._runtime, self._paths.request)).decode(errors="replace")
        except FileMissingError:
            return None

    async def _serve(self, request: str) -> None:
        await self._clean()
        async with self._bookie.kept():
            try:
                logs = await self._freeze()
                answer: dict[str, object] = {"request": request, "logs": list(logs)}
            except WeirError as failed:
                log.warning("no moment could be frozen for a copy: %s", failed)
                answer = {"request": request, "error": str(failed)}
            await write_small(self._disk, self._paths.answer, json.dumps(answer).encode())
            log.info("a moment is frozen for a copy of %s", self._folder.path)
            while await self._is_wanted(request):
                await self._runtime.clock.sleep(_LOOK_S)
        await self._clean()

    async def _is_wanted(self, request: str) -> bool:
        """Whether whoever asked this is still there; a lock goes with its process."""
        if await self._request() != request:
            return False
        try:
            lock = await self._disk.lock(self._paths.lock)
        except FileLockedError:
            return True
        await lock.release()
        return False

    async def _freeze(self) -> tuple[int, ...]:
        for _ in range(_ATTEMPTS):
            seen: list[_Moment] = []
            checkpoint = await self._bookie.freeze(partial(self._see, seen))
            moment = seen[0]
            if self._bookie.highest_ledger() <= moment.ledger_ids:
                break
        else:
            raise DiskError("ledgers are made faster than they can be frozen", hint="try again")
        target = DataFolder(self._paths.frozen)
        layout = Layout(target.bookie)
        for folder in (target.meta, layout.journal, layout.logs):
            await self._disk.make_dirs(folder)
        await write_view(self._runtime, target.meta, moment.blocks, moment.leased, moment.revision)
        await save_checkpoint(self._disk, layout, checkpoint)
        await write_small(self._disk, layout.cookie, encode_cookie(self._bookie.cookie))
        return checkpoint.logs

    def _see(self, seen: "list[_Moment]") -> None:
        state = self._meta.core.state
        blocks, leased = state.view()
        counter = state.get(keys.LEDGER_COUNTER)
        seen.append(_Moment(blocks, leased, state.revision, 0 if counter is None else int(counter.value)))

    async def _clean(self) -> None:
        await _remove(self._runtime, self._paths.answer)
        await _remove_tree(self._runtime, self._paths.frozen)


async def _remove(runtime: Runtime, path: str) -> None:
    try:
        await runtime.disk.remove(path)
    except FileMissingError:
        return


async def _remove_tree(runtime: Runtime, path: str) -> None:
    if not await runtime.disk.exists(path):
        return
    try:
        names = await runtime.disk.list(path)
    except DiskError:
        names = []
    for name in names:
        await _remove_tree(runtime, f"{path}/{name}")
    await _remove(runtime, path)


async def _fields(runtime: Runtime, path: str) -> dict[str, Any]:
    """What an answer says; nothing while there is none."""
    try:
        found = json.loads(await _read(runtime, path))
    except (FileMissingError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


async def _read(runtime: Runtime, path: str) -> bytes:
    file = await runtime.disk.open(path)
    try:
        return bytes(await file.read_at(0, await file.size()))
    finally:
        await file.close()
