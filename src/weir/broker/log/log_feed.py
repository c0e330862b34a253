"""Feeds of batches from any offset on: from the cache at once, else by a background read.

`ReadCommittedLog` is the log as consumers see it: up to the last stable offset, without aborted messages.
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable
from typing import Protocol

from pyroaring import BitMap64

from weir.broker.log.transaction_index import TransactionIndex
from weir.broker.settings import BrokerSettings
from weir.model.batch import Batch, BatchFlags
from weir.model.errors import OffsetTrimmedError, ReadStuckError, StreamClosedError, StreamFencedError, WeirError
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.stream.cursor import Cursor
from weir.stream.tail import MOST_BATCHES

log = logging.getLogger(__name__)


#: Expected maximum size of a message: a read is limited to this many bytes per credit.
_GUESSED_BYTES = 4096
#: Interval between reports to waiting consumers that a read is stuck, in seconds.
_REPORT_INTERVAL_S = 30.0


class Source(Protocol):
    """A log that can be read from any offset on: a stream, or its compacted view."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    def read_cached(self, offset: int, max_bytes: int) -> list[Batch] | None: ...

    async def read(self, offset: int, max_bytes: int) -> list[Batch]: ...


class Feed:
    """One reader's view of a source. `wake`: called when a read that `get` started has ended. `stuck`: called when
    reads of the same offset have failed for long; the feed continues to try."""

    def __init__(
        self,
        source: Source,
        clock: Clock,
        settings: BrokerSettings,
        tasks: TaskScope,
        wake: Callable[[], None],
        *,
        stuck: Callable[[ReadStuckError], None] = lambda failure: None,
    ) -> None:
        self._source = source
        self._clock = clock
        self._settings = settings
        self._tasks = tasks
        self._wake = wake
        self._stuck = stuck
        self._reported_at = float("-inf")
        self._read: list[Batch] = []  # batches of the last background read
        self._read_from = 0
        self._reading: asyncio.Task[None] | None = None
        #: The offset at which a background read found nothing, and the source's end offset then.
        self._dry = (-1, -1)

    @property
    def start_offset(self) -> int:
        return self._source.start_offset

    @property
    def end_offset(self) -> int:
        return self._source.end_offset

    def get(self, offset: int, credit: int) -> list[Batch] | None:
        """Return the batches from the one that contains `offset` on, or from the first after it; an empty list at
        the end. None if a read is necessary: the feed calls `wake` when it is done. `credit`: approximate number
        of wanted messages."""
        offset = max(offset, self._source.start_offset)
        cached = self._source.read_cached(offset, min(self._settings.read_bytes, credit * _GUESSED_BYTES))
        if cached is not None:
            self._read = []
            return cached
        read = self._read
        if read and self._read_from <= offset < read[-1].end_offset:
            at = max(0, bisect_right(read, offset, key=lambda batch: batch.base_offset) - 1)
            return read[at : at + MOST_BATCHES]
        if self._dry == (offset, self._source.end_offset):
            return []
        if self._reading is None:
            self._reading = self._tasks.spawn(self._fetch(offset), "read")
        return None

    async def _fetch(self, offset: int) -> None:
        end = self._source.end_offset
        try:
            self._read = await self._source.read(offset, self._settings.read_bytes)
            self._read_from = offset
            if not self._read:
                self._dry = (offset, end)
        except OffsetTrimmedError:
            pass  # the start has moved; the next `get` reads from the new start
        except (StreamClosedError, StreamFencedError):
            return
        except WeirError as failed:
            log.warning("read at offset %s failed, retrying: %s", offset, failed)
            if isinstance(failed, ReadStuckError):
                self._report_stuck(failed)
            await self._clock.sleep(self._settings.read_pause_s)
        finally:
            self._reading = None
        self._wake()

    def _report_stuck(self, failure: ReadStuckError) -> None:
        now = self._clock.monotonic()
        if now - self._reported_at >= _REPORT_INTERVAL_S:
            self._reported_at = now
            self._stuck(failure)


#: The flags of most batches: an identity check is cheaper than flag arithmetic.
_PLAIN = BatchFlags.NONE


class Decisions(Protocol):
    """The transaction state of a log."""

    @property
    def index(self) -> TransactionIndex: ...

    @property
    def stable_offset(self) -> int: ...


class ReadCommittedLog:
    """Fills `Source`. `visible`: visibility rule of the source itself, for example of a compacted view."""

    def __init__(
        self, source: Source, decisions: Decisions, visible: Callable[[Batch], int | None] | None = None
    ) -> None:
        self._source = source
        self._decisions = decisions
        self._visible = visible

    @property
    def start_offset(self) -> int:
        return self._source.start_offset

    @property
    def end_offset(self) -> int:
        """The last stable offset."""
        return self._decisions.stable_offset

    def read_cached(self, offset: int, max_bytes: int) -> list[Batch] | None:
        end = self._decisions.stable_offset
        if offset >= end:
            return []
        found = self._source.read_cached(offset, max_bytes)
        return found if found is None else _before(found, end)

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        return _before(await self._source.read(offset, max_bytes), self._decisions.stable_offset)

    def visible(self, batch: Batch) -> int | None:
        """The visible messages of a batch, as bits; None for all of them."""
        if batch.flags is not _PLAIN and batch.base_offset in self._decisions.index.hidden:
            return 0
        return None if self._visible is None else self._visible(batch)

    @property
    def hidden(self) -> BitMap64:
        """Offsets of messages that no consumer can see."""
        return self._decisions.index.hidden

    def backlog(self, cursor: Cursor) -> int:
        """How many visible messages the cursor has not acknowledged."""
        first = max(cursor.mark_delete + 1, self._source.start_offset)
        return cursor.backlog_between(first, self.end_offset, self._decisions.index.hidden)

    def skip_hidden(self, cursor: Cursor) -> None:
        """Acknowledge messages that no consumer can see."""
        cursor.ack_all(self._decisions.index.hidden, self.end_offset)


def _before(batches: list[Batch], end: int) -> list[Batch]:
    if batches and batches[-1].end_offset > end:
        return [batch for batch in batches if batch.base_offset < end]
    return batches
