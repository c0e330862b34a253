"""The log of a queue in memory: batches with offsets, forgotten as soon as they are acknowledged."""

from weir.broker.transactions.index import TransactionIndex
from weir.model.batch import Batch
from weir.runtime.byte_budget import ByteShare
from weir.stream.cursor import Cursor
from weir.stream.memory_batches import MemoryBatches


class MemoryLog:
    """Fills `feed.Source` and `decided_log.Decisions`: there are no transactions. `share`: what it may take."""

    def __init__(self, share: ByteShare) -> None:
        self._batches = MemoryBatches(share)
        self.end_offset = 0
        self.index = TransactionIndex()

    @property
    def start_offset(self) -> int:
        first = self._batches.first
        return self.end_offset if first is None else first

    @property
    def stable_offset(self) -> int:
        return self.end_offset

    def append(self, batch: Batch) -> None:
        """One that begins at the end."""
        self._batches.append(batch)
        self.end_offset = batch.end_offset

    def read_cached(self, offset: int, max_bytes: int) -> list[Batch] | None:
        return self._batches.read(offset, max_bytes)

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        return self._batches.read(offset, max_bytes)

    def forget(self, cursor: Cursor) -> None:
        self._batches.forget(cursor)

    def close(self) -> None:
        """The queue is gone, and all of it."""
        self._batches.close()

    def __len__(self) -> int:
        """Batches that are kept."""
        return len(self._batches)
