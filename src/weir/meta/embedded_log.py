"""The embedded store's log: many changes share one sync, and a snapshot replaces a log that has grown long.

Also writes the folder of a new store: a snapshot of all keys, and an empty log after it.
"""

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from weir.meta.embedded_recovery import Recovered, contents, log_path, remove_quietly, snapshot_path, write_whole
from weir.meta.interfaces import Change, Versioned
from weir.meta.key_space import BlockView, KeySpace
from weir.meta.local import LocalCore
from weir.model.errors import DiskError, DiskFullError, MetaFullError, MetaUnavailableError
from weir.runtime.interfaces import File, Runtime
from weir.runtime.loss_records import EndFile
from weir.runtime.tasks import TaskScope
from weir.wire.metadata_log import (
    HEADER_BYTES,
    LOG_MAGIC,
    SNAPSHOT_MAGIC,
    FileHeader,
    encode_header,
    encode_record,
    pack_block,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """Bounds of the embedded store."""

    #: A snapshot replaces a log longer than this, and longer than a quarter of the last snapshot.
    log_bytes: int = 8 * 1024 * 1024
    #: Changes wait while the queue for the disk has this many bytes.
    queue_bytes: int = 16 * 1024 * 1024
    #: Blocks of keys that a snapshot encodes between two yields to the event loop.
    snapshot_slice: int = 16
    #: Pause between attempts to write to a full disk, and between attempts to create the next file.
    full_retry_s: float = 1.0


class EmbeddedLog:
    """Implements `ChangeLog` on a folder.

    On a full disk the log writes the same bytes to the same position again until they are durable, and refuses new
    changes with MetaFullError until then. Everything before that position was synced, so a failed write or sync
    there loses nothing. Any other failure of the disk is final: after a failed sync the content of the disk is
    unknown, so only a new recovery may continue.
    """

    def __init__(
        self,
        runtime: Runtime,
        folder: str,
        core: LocalCore,
        recovered: Recovered,
        settings: EmbeddedSettings,
        *,
        end_file: EndFile,
    ) -> None:
        self._runtime = runtime
        self._disk = runtime.disk
        self._folder = folder
        self._core = core
        self._settings = settings
        self._end_file = end_file
        self._file_id = recovered.file_id
        self._first = recovered.log_first
        self._recovered_log = recovered.log_data
        self._end = len(recovered.log_data)
        self._snapshot_bytes = recovered.snapshot_bytes
        self._file: File | None = None
        self._durable = core.state.revision
        self._queue: list[tuple[Change, bool]] = []
        self._queued_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._work = asyncio.Event()
        self._roomy = asyncio.Event()
        self._roomy.set()
        self._failure: MetaUnavailableError | None = None
        #: The error for changes while the disk is full.
        self._full: MetaFullError | None = None
        self._failed = asyncio.Event()
        #: When the log may retry to create the next file, after a full disk.
        self._rotate_at = 0.0
        self._snapshotting = False
        self._tasks = TaskScope("meta-log", on_failure=self._fail)

    async def start(self) -> None:
        """Continue after the last valid record of the log; cut off a torn tail.

        The log writes and syncs its recovered bytes again before any use of them. The previous process may have
        died before its sync, or after a failed one; then the operating system's cache may serve the bytes although
        another sync alone would never bring them to the disk.
        """
        self._file = await self._disk.open(log_path(self._folder, self._first))
        await self._file.truncate(self._end)
        await self._file.write_at(0, [self._recovered_log], sync=True)
        self._recovered_log = b""
        self._end_file.advance(self._first, self._file_id, self._end, self._durable)
        self._tasks.spawn(self._write(), "writer")

    # --- ChangeLog --------------------------------------------------------------------------------------------

    @property
    def durable(self) -> int:
        return self._durable

    async def wait_capacity(self) -> None:
        self.check_writable()
        while not self._roomy.is_set():
            await self._roomy.wait()
            self.check_writable()

    def check_writable(self) -> None:
        """Raise MetaFullError while the disk is full, MetaUnavailableError once it has failed."""
        if self._failure is not None or self._full is not None:
            raise self._unavailable()

    async def failed(self) -> None:
        """Wait until the disk has failed for good."""
        await self._failed.wait()

    def append(self, change: Change, *, leased: bool) -> None:
        self._queue.append((change, leased))
        self._queued_bytes += len(change.key) + len(change.value or b"")
        if self._queued_bytes >= self._settings.queue_bytes:
            self._roomy.clear()
        self._work.set()

    async def settled(self, revision: int) -> None:
        if self._failure is not None:
            raise self._unavailable()
        if revision > self._durable:
            self.check_writable()
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((revision, done))
            await done

    # --- the writer -------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._queue:
                batch, self._queue = self._queue, []
                self._queued_bytes = 0
                self._roomy.set()
                await self._commit(batch)
                if self._end > self._log_limit and not self._snapshotting:
                    await self._rotate_if_room()

    @property
    def _log_limit(self) -> int:
        """Replaying a log takes far longer than loading a snapshot, and writing one is cheap."""
        return max(self._settings.log_bytes, self._snapshot_bytes // 4)

    async def _commit(self, batch: Sequence[tuple[Change, bool]]) -> None:
        """Write the batch with one sync, and acknowledge it."""
        if self._file is None:
            return
        end = self._end
        buffers = []
        for change, leased in batch:
            buffers.append(
                encode_record(
                    self._file_id,
                    end,
                    change.key,
                    change.value,
                    revision=change.version,
                    durable=self._durable,
                    leased=leased,
                )
            )
            end += len(buffers[-1])
        await self._write_durably(self._file, buffers)
        self._end = end
        self._durable = batch[-1][0].version
        self._end_file.advance(self._first, self._file_id, self._end, self._durable)
        while self._waiting and self._waiting[0][0] <= self._durable:
            done = self._waiting.popleft()[1]
            if not done.done():
                done.set_result(None)
        self._core.published()

    async def _write_durably(self, file: File, buffers: Sequence[bytes]) -> None:
        """Write at the end of the log; on a full disk, retry until there is space."""
        while True:
            try:
                await file.write_at(self._end, buffers, sync=True)
            except DiskFullError as full:
                self._became_full(full)
                await self._runtime.clock.sleep(self._settings.full_retry_s)
            else:
                break
        if self._full is not None:
            log.warning("metadata in %s: the disk has space again, accepting changes", self._folder)
            self._full = None

    def _became_full(self, cause: DiskFullError) -> None:
        """Fail the callers: as after a lost connection, they do not know whether the store made their changes."""
        if self._full is None:
            log.error("metadata in %s: no space left on the disk, refusing changes: %s", self._folder, cause)
            self._full = MetaFullError(f"no space left on the disk of the metadata folder {self._folder}")
        self._fail_waiting()
        self._roomy.set()

    # --- snapshots --------------------------------------------------------------------------------------------

    async def _rotate_if_room(self) -> None:
        """Rotate; while the disk has no space for the next file, the log grows beyond its limit."""
        now = self._runtime.clock.monotonic()
        if now < self._rotate_at:
            return
        try:
            await self._rotate()
        except DiskFullError as full:
            if await self._disk.exists(log_path(self._folder, self._durable + 1)):
                raise  # two logs would continue the store
            log.warning("metadata in %s: no space left for the next log file: %s", self._folder, full)
            self._rotate_at = now + self._settings.full_retry_s

    async def _rotate(self) -> None:
        """Continue in a new log, and start a snapshot that replaces the old logs."""
        old, old_first = self._file, self._first
        first = self._durable + 1
        file_id = await create_log(self._runtime, self._folder, first)
        self._file = await self._disk.open(log_path(self._folder, first))
        self._file_id, self._first, self._end = file_id, first, HEADER_BYTES
        if old is not None:
            await old.close()
        self._snapshotting = True
        self._tasks.spawn(self._snapshot(old_first), "snapshot")

    async def _snapshot(self, old_first: int) -> None:
        revision = self._core.state.revision
        blocks, leased = self._core.state.view()

        async def parts() -> AsyncIterator[Sequence[bytes]]:
            file_id = self._runtime.rng.getrandbits(64)
            for part in snapshot_parts(file_id, revision, blocks, leased, self._settings.snapshot_slice):
                yield part
            # A snapshot must not be ahead of the log: see the table in `weir.meta.embedded_recovery`.
            await self.settled(revision)

        try:
            self._snapshot_bytes = await write_whole(self._disk, snapshot_path(self._folder, revision), parts())
            await self._remove_older(old_first, revision)
        except (DiskError, MetaUnavailableError) as failed:
            # Nothing is lost: recovery reads the logs. The next rotation retries.
            log.warning("writing a snapshot of the metadata failed: %s", failed)
        finally:
            self._snapshotting = False

    async def _remove_older(self, old_first: int, revision: int) -> None:
        found = await contents(self._disk, self._folder)
        old = [log_path(self._folder, first) for first in found.logs if first <= old_first]
        old += [snapshot_path(self._folder, r) for r in found.snapshots if r < revision]
        await remove_quietly(self._disk, old)

    # --- the end ----------------------------------------------------------------------------------------------

    def _fail(self, cause: BaseException) -> None:
        if self._failure is not None:
            return
        self._failure = MetaUnavailableError(
            f"the metadata folder {self._folder} failed: {cause}", hint="repair the disk, then restart"
        )
        self._failed.set()
        self._fail_waiting()
        self._roomy.set()

    def _fail_waiting(self) -> None:
        while self._waiting:
            done = self._waiting.popleft()[1]
            if not done.done():
                done.set_exception(self._unavailable())

    def _unavailable(self) -> MetaUnavailableError:
        failure = self._failure
        if failure is not None:
            return MetaUnavailableError(failure.what, hint=failure.hint)
        if self._full is not None:
            return MetaFullError(self._full.what)
        return MetaUnavailableError("closed")

    async def close(self) -> None:
        """Stop writing. Changes without a waiting caller may be lost, as in a crash."""
        await self._tasks.close()
        failed = self._failure is not None or self._full is not None
        self._fail(MetaUnavailableError("it was closed"))
        await self._end_file.close(final=not failed)
        if self._file is not None:
            await self._file.close()


def snapshot_parts(
    file_id: int, revision: int, blocks: Sequence[BlockView], leased: Mapping[str, None], slice_blocks: int
) -> Iterator[Sequence[bytes]]:
    """The bytes of a snapshot, a slice of blocks at a time. `revision` of a record is the number of its keys."""
    header = encode_header(SNAPSHOT_MAGIC, FileHeader(file_id, revision, len(blocks)))
    yield [header]
    offset = len(header)
    with_leased = _with_leased(blocks, leased)
    for start in range(0, len(blocks), slice_blocks):
        buffers = []
        for number, block in enumerate(blocks[start : start + slice_blocks], start):
            packed = pack_block(block.items, leased) if block.packed is None else block.packed
            record = encode_record(
                file_id,
                offset,
                block.first,
                packed,
                revision=block.keys,
                durable=revision,
                leased=number in with_leased,
            )
            buffers.append(record)
            offset += len(record)
        yield buffers


def _with_leased(blocks: Sequence[BlockView], leased: Mapping[str, None]) -> dict[int, None]:
    """The numbers of the blocks that have a leased key."""
    firsts = [block.first for block in blocks]
    return dict.fromkeys(max(0, bisect_right(firsts, key) - 1) for key in leased)


async def create_log(runtime: Runtime, folder: str, first_revision: int) -> int:
    """Create an empty log durably; returns its id."""
    file_id = runtime.rng.getrandbits(64)

    async def parts() -> AsyncIterator[Sequence[bytes]]:
        yield [encode_header(LOG_MAGIC, FileHeader(file_id, first_revision, 0))]

    await write_whole(runtime.disk, log_path(folder, first_revision), parts())
    return file_id


_SLICE = 16


async def write_store(runtime: Runtime, folder: str, items: Iterable[Versioned], revision: int) -> list[str]:
    """Write a store with these keys at a revision not below any of their versions; returns its files."""
    state = KeySpace(revision=revision)
    for item in sorted(items):
        state.load(item)
    blocks, leased = state.view()
    return await write_view(runtime, folder, blocks, leased, revision)


async def write_view(
    runtime: Runtime, folder: str, blocks: Sequence[BlockView], leased: Mapping[str, None], revision: int
) -> list[str]:
    """Write a store from another store's `KeySpace.view` at a revision; returns its files. The snapshot comes
    last, and without it the folder is not a store."""

    async def parts() -> AsyncIterator[Sequence[bytes]]:
        for part in snapshot_parts(runtime.rng.getrandbits(64), revision, blocks, leased, _SLICE):
            yield part
            await runtime.clock.sleep(0)

    await runtime.disk.make_dirs(folder)
    await create_log(runtime, folder, revision + 1)
    await write_whole(runtime.disk, snapshot_path(folder, revision), parts())
    return [snapshot_path(folder, revision), log_path(folder, revision + 1)]
