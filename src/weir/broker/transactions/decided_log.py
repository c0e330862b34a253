"""A log as those see it who want decided messages only: up to the stable offset, without what was aborted."""

from collections.abc import Callable
from typing import Protocol

from pyroaring import BitMap64

from weir.broker.dispatch.feed import Source
from weir.broker.transactions.index import TransactionIndex
from weir.model.batch import Batch, BatchFlags
from weir.stream.cursor import Cursor

#: Nearly every batch: an identity is cheaper than arithmetic on flags.
_PLAIN = BatchFlags.NONE


class Decisions(Protocol):
    """Which transactions of a log are decided, and how."""

    @property
    def index(self) -> TransactionIndex: ...

    @property
    def stable_offset(self) -> int: ...


class DecidedLog:
    """Fills `feed.Source`. `visible`: what the source itself has to say about it."""

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
        """The stable offset."""
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
        """Offsets of what nobody will see."""
        return self._decisions.index.hidden

    def backlog(self, cursor: Cursor) -> int:
        """How many visible messages the cursor has not acknowledged."""
        first = max(cursor.mark_delete + 1, self._source.start_offset)
        return cursor.backlog_between(first, self.end_offset, self._decisions.index.hidden)

    def skip_hidden(self, cursor: Cursor) -> None:
        """What nobody will see counts as acknowledged."""
        cursor.ack_all(self._decisions.index.hidden, self.end_offset)


def _before(batches: list[Batch], end: int) -> list[Batch]:
    if batches and batches[-1].end_offset > end:
        return [batch for batch in batches if batch.base_offset < end]
    return batches
