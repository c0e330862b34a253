"""Journal files: made ahead of their use with their space reserved, and used again after a checkpoint."""

import asyncio

from weir.bookie.layout import Layout, free_sequences, journal_sequences
from weir.bookie.settings import JournalSettings
from weir.model.errors import DiskError, DiskFullError
from weir.runtime.interfaces import Disk, File
from weir.runtime.tasks import TaskScope


class JournalFiles:
    """The files that the journal writes one after the other. One is ready before it is needed, so that running
    out of space shows there, where nobody waits for an acknowledgement."""

    def __init__(self, disk: Disk, layout: Layout, settings: JournalSettings) -> None:
        self._disk = disk
        self._layout = layout
        self._settings = settings
        self._tasks = TaskScope("journal-files")
        self._free: list[int] = []
        self._names: list[int] = []
        self._spare: asyncio.Task[File] | None = None
        self._spare_sequence = 0

    async def open(self, next_sequence: int) -> None:
        """Look at what is there. Files from `next_sequence` on were never written to."""
        names = await self._disk.list(self._layout.journal)
        self._free = free_sequences(names)
        self._names = [sequence for sequence in journal_sequences(names) if sequence < next_sequence]

    @property
    def has_spare(self) -> bool:
        """Whether the next file is ready."""
        spare = self._spare
        return spare is not None and spare.done() and not spare.cancelled() and spare.exception() is None

    def prepare(self, sequence: int) -> None:
        """Begin to make a file ready; after a failure, try again."""
        spare = self._spare
        if spare is not None and spare.done() and not self.has_spare:
            spare = self._spare = None
        if spare is None:
            self._spare_sequence = sequence
            self._spare = self._tasks.spawn(self._make(sequence), f"prepare-{sequence}")
            # Its failure is told to whoever takes the file; until then it is only a reason to stop early.
            self._spare.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def retry_spare(self) -> bool:
        """Try again if the last preparation failed; whether the next file is ready."""
        if self._spare is not None:
            self.prepare(self._spare_sequence)
            await asyncio.wait([self._spare])
        return self.has_spare

    async def take(self, sequence: int) -> File:
        """The file with this sequence number, its space reserved; DiskFullError if there is no room for it."""
        if self._spare is None or self._spare_sequence != sequence or (self._spare.done() and not self.has_spare):
            self._spare = None
            self.prepare(sequence)
        spare = self._spare
        if spare is None:  # pragma: no cover - prepare() always leaves one
            raise DiskError("no journal file is being prepared")
        file = await asyncio.shield(spare)
        self._spare = None
        self._names.append(sequence)
        return file

    async def recycle(self, before: int) -> None:
        """Files before this one are not needed any more: keep some for their next life, remove the others."""
        old = [sequence for sequence in self._names if sequence < before]
        self._names = [sequence for sequence in self._names if sequence >= before]
        kept = old[: max(0, self._settings.max_free_files - len(self._free))]
        for sequence in old:
            path = self._layout.journal_file(sequence)
            if sequence in kept:
                await self._disk.rename(path, self._layout.free_file(sequence))
            else:
                await self._disk.remove(path)
        if kept:
            # Before the next rename of the same file: of two that are not synced, a crash may keep the second
            # alone, and the file would have two names.
            await self._disk.sync_dir(self._layout.journal)
            self._free += kept

    async def give_back_space(self) -> None:
        """Remove the files kept for reuse: the disk is nearly full."""
        free, self._free = self._free, []
        for sequence in free:
            await self._disk.remove(self._layout.free_file(sequence))

    async def close(self) -> None:
        await self._tasks.close()
        if self.has_spare and self._spare is not None:
            await self._spare.result().close()

    async def _make(self, sequence: int) -> File:
        path = self._layout.journal_file(sequence)
        if self._free and not await self._disk.exists(path):
            await self._disk.rename(self._layout.free_file(self._free.pop(0)), path)
        file = await self._disk.open(path, create=True)
        try:
            before = await file.size()
            try:
                await file.preallocate(self._settings.file_bytes)
                await file.sync()
            except DiskFullError:
                await file.truncate(before)  # what was reserved of it takes the space that is missing
                raise
            await self._disk.sync_dir(self._layout.journal)
        except BaseException:
            await file.close()
            raise
        return file
