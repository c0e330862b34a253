"""A simulated disk's names: what they are now, and which of them power loss would leave."""

from dataclasses import dataclass
from posixpath import dirname, normpath
from random import Random

from weir.model.errors import DiskError, FileMissingError
from weir.testing.world.file_bytes import Inode


@dataclass(frozen=True, slots=True)
class _Change:
    """`source` None: created. `target` None: removed. Both: renamed."""

    source: str | None
    target: str | None
    inode: Inode

    @property
    def directory(self) -> str:
        return dirname(self.target if self.target is not None else self.source or "")


class Names:
    """Files by path. A change to a name is durable only once its directory is synced; until then each change
    by itself may survive power loss or not, but a rename is never half done."""

    def __init__(self) -> None:
        self._now: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        self._pending: list[_Change] = []
        self._directories: dict[str, None] = {}
        self._inodes = 0

    def find(self, path: str) -> Inode | None:
        return self._now.get(normpath(path))

    def exists(self, path: str) -> bool:
        path = normpath(path)
        return path in self._now or self._is_directory(path)

    def paths(self) -> list[str]:
        return sorted(self._now)

    def inodes(self) -> list[Inode]:
        """Every file that has a name now."""
        return list(self._now.values())

    def create(self, path: str) -> Inode:
        path = normpath(path)
        self._need_directory(dirname(path))
        if self._is_directory(path):
            raise DiskError(f"{path} is a directory")
        self._inodes += 1
        inode = self._now[path] = Inode(self._inodes)
        self._pending.append(_Change(None, path, inode))
        return inode

    def rename(self, source: str, target: str) -> None:
        source, target = normpath(source), normpath(target)
        inode = self._now.get(source)
        if inode is None:
            raise FileMissingError(f"there is no file {source}")
        self._need_directory(dirname(target))
        if source != target:
            del self._now[source]
            self._now[target] = inode
            self._pending.append(_Change(source, target, inode))

    def remove(self, path: str) -> None:
        path = normpath(path)
        if path in self._now:
            self._pending.append(_Change(path, None, self._now.pop(path)))
        elif path in self._directories:
            if self.entries(path):
                raise DiskError(f"directory {path} is not empty")
            del self._directories[path]
        else:
            raise FileMissingError(f"there is no file or directory {path}")

    def make_dirs(self, directory: str) -> None:
        directory = normpath(directory)
        while not self._is_directory(directory):
            if directory in self._now:
                raise DiskError(f"{directory} is a file")
            self._directories[directory] = None
            directory = dirname(directory)

    def entries(self, directory: str) -> list[str]:
        directory = normpath(directory)
        self._need_directory(directory)
        prefix = "" if directory == "." else directory.rstrip("/") + "/"
        names = {
            path[len(prefix) :].partition("/")[0]: None
            for path in (*self._now, *self._directories)
            if path.startswith(prefix) and path != prefix
        }
        return sorted(names)

    def sync(self, directory: str) -> None:
        """Make changes of names in this directory durable."""
        directory = normpath(directory)
        self._need_directory(directory)
        directory = "" if directory == "." else directory
        due = [change for change in self._pending if change.directory == directory]
        self._pending = [change for change in self._pending if change.directory != directory]
        for change in due:
            self._commit(change)
            if change.source is not None:
                # The file went on from `source` for good: that it once came there is history.
                self._pending = [
                    earlier
                    for earlier in self._pending
                    if not (earlier.target == change.source and earlier.inode is change.inode)
                ]

    def lose_power(self, rng: Random, keep: float) -> None:
        """Keep each change that was not synced with chance `keep`, whatever became of those before it."""
        for change in self._pending:
            if rng.random() < keep:
                self._commit(change)
        self._pending.clear()
        self._now = dict(self._durable)
        for path in self._now:
            self.make_dirs(dirname(path))

    def durable_inodes(self) -> list[Inode]:
        """Files that power loss would leave, or might: each once, in a stable order."""
        files = [*self._now.values(), *self._durable.values(), *(change.inode for change in self._pending)]
        return list({inode.number: inode for inode in files}.values())

    def _commit(self, change: _Change) -> None:
        if change.source is not None and self._durable.get(change.source) is change.inode:
            del self._durable[change.source]
        if change.target is not None:
            self._durable[change.target] = change.inode

    def _is_directory(self, path: str) -> bool:
        return path in ("/", ".", "") or path in self._directories

    def _need_directory(self, directory: str) -> None:
        if not self._is_directory(directory):
            raise FileMissingError(f"there is no directory {directory}")
