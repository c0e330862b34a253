"""State of the bookie: writable, read-only while its disk is nearly full, or failed for good."""

import asyncio
import logging
from enum import Enum

from weir.bookie.journal import JournalFiles
from weir.bookie.settings import SpaceSettings
from weir.model.errors import DiskError
from weir.runtime.interfaces import Runtime

log = logging.getLogger(__name__)

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def size_text(count: int) -> str:
    """A human-readable size with one decimal."""
    if count < 1024:
        return f"{count} bytes"
    size, unit = count / 1024, 0
    while size >= 1024 and unit + 1 < len(_UNITS):
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}".replace(".0 ", " ")


class BookieState(Enum):
    """State of a bookie."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    FAILED = "failed"
    """The journal failed: the bookie acknowledges nothing more until a restart."""
    CLOSED = "closed"


class StateBox:
    """Holds the state, and lets tasks wait for a change."""

    def __init__(self) -> None:
        #: Read-only for others; only `become` and `close` change it.
        self.state = BookieState.WRITABLE
        #: The reason for the read-only state, if any.
        self.why = ""
        self._changed = asyncio.Event()

    def become(self, state: BookieState, why: str = "") -> None:
        """Change the state, unless it is failed or closed, which are final."""
        if state is self.state:
            self.why = why or self.why
            return
        if self.state in (BookieState.FAILED, BookieState.CLOSED):
            return
        log.warning("the bookie is %s%s", state.value, f": {why}" if why else "")
        self.state, self.why = state, why
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """Change to closed, even from failed."""
        self.state = BookieState.CLOSED
        self._changed.set()

    async def changed_from(self, state: BookieState) -> BookieState:
        """Wait until the state differs from `state`, and return it."""
        while self.state is state:
            await self._changed.wait()
        return self.state


class SpaceMonitor:
    """Watches the free space. Between the two marks the state does not change, which prevents flapping."""

    def __init__(
        self, runtime: Runtime, directory: str, settings: SpaceSettings, box: StateBox, files: JournalFiles
    ) -> None:
        self._runtime = runtime
        self._directory = directory
        self._settings = settings
        self._box = box
        self._files = files
        self._flush_fails = False
        self.free_bytes = 0

    def flush_failed(self) -> None:
        """Refuse entries while the bookie cannot flush the write cache."""
        self._flush_fails = True
        self._box.become(BookieState.READ_ONLY, f"entries cannot be written to {self._directory}")

    def flush_succeeded(self) -> None:
        self._flush_fails = False

    def journal_full(self) -> None:
        """Refuse entries because the disk has no space for the next journal file."""
        self._box.become(BookieState.READ_ONLY, f"the disk of {self._directory} has no room for the journal")

    async def run(self) -> None:
        while True:
            await self._runtime.clock.sleep(self._settings.interval_s)
            try:
                await self.look()
            except DiskError as failed:
                log.error("cannot read the free disk space: %s", failed)

    def _told(self) -> str:
        low, high = self._settings.low_water_bytes, self._settings.high_water_bytes
        return (
            f"the disk of {self._directory} is full: {size_text(self.free_bytes)} left, limit {size_text(low)}"
            f" (storage.low_water_bytes); messages are taken again above {size_text(high)}"
            " (storage.high_water_bytes)"
        )

    async def look(self) -> None:
        """Compare the free space to the marks."""
        self.free_bytes = await self._runtime.disk.free_bytes(self._directory)
        if self.free_bytes < self._settings.low_water_bytes:
            self._box.become(BookieState.READ_ONLY, self._told())
            await self._files.give_back_space()
        elif self.free_bytes >= self._settings.high_water_bytes and self._box.state is BookieState.READ_ONLY:
            has_spare = await self._files.retry_spare()
            if has_spare and not self._flush_fails:
                self._box.become(BookieState.WRITABLE)
