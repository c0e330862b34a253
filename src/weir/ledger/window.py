"""What a writer has sent and not yet acknowledged: batches of entries, answered by the slots of the ensemble.

A batch is what one turn of the loop appended. It is acknowledged as a whole, in order, when an ack quorum of each
of its entries' write sets holds it. Counting per batch keeps the work per entry out of the hot path; striping
makes no difference, since all entries with the same residue share their write set (`weir.ledger.quorum`).
"""

import asyncio
from collections import deque
from collections.abc import Iterator

from weir.ledger.interfaces import Bookie
from weir.ledger.quorum import Stripes
from weir.model.check import check
from weir.model.errors import BookieError
from weir.model.ids import NO_ENTRY, BookieId, Buffer, EntryId

Waiter = tuple["asyncio.Future[EntryId]", EntryId]


class Batch:
    """Entries that are sent, answered and acknowledged together."""

    __slots__ = ("entries", "first", "held_by", "length", "size", "waiters")

    def __init__(self, first: EntryId) -> None:
        self.first = first
        self.entries: list[tuple[EntryId, Buffer]] = []
        self.size = 0
        #: The ledger's length up to and with the last entry.
        self.length = 0
        #: Callers to tell, each with the id that it gets.
        self.waiters: list[Waiter] = []
        #: The slots of the current ensemble that hold all they should of this batch.
        self.held_by = 0


class Slot:
    """One place in the ensemble, with the bookie that fills it now. A replaced bookie gets a new slot object, so
    that an answer to the old one cannot be taken for one of the new."""

    __slots__ = ("bit", "bookie", "bookie_id", "failure", "index", "outstanding", "outstanding_bytes")

    def __init__(self, index: int, bookie_id: BookieId, bookie: Bookie) -> None:
        self.index = index
        self.bit = 1 << index
        self.bookie_id = bookie_id
        self.bookie = bookie
        self.failure: BookieError | None = None
        #: Unanswered batches by first entry, in the order of sending: when sent, and how large.
        self.outstanding: dict[EntryId, tuple[float, int]] = {}
        self.outstanding_bytes = 0

    def sent(self, batch: Batch, now: float, size: int) -> None:
        """The batch is on its way to the bookie."""
        self.outstanding[batch.first] = (now, size)
        self.outstanding_bytes += size

    def answered(self, batch: Batch) -> None:
        """The bookie holds its share of the batch."""
        self.outstanding_bytes -= self.outstanding.pop(batch.first)[1]
        check(self.outstanding_bytes >= 0, "a bookie answers no more than was sent to it")

    def waiting_since(self) -> float | None:
        """When the oldest unanswered batch was sent."""
        for sent_at, _ in self.outstanding.values():
            return sent_at
        return None

    def fail(self, failure: BookieError) -> None:
        """No later answer counts."""
        self.failure = failure
        self.outstanding.clear()
        self.outstanding_bytes = 0


class Window:
    """The unacknowledged batches in order, and the last-add-confirmed behind them."""

    __slots__ = ("_batches", "_stripes", "frozen", "last_confirmed", "length")

    def __init__(self, stripes: Stripes) -> None:
        self._stripes = stripes
        self._batches: deque[Batch] = deque()
        #: While an ensemble change is being written down nothing may be acknowledged: the new fragment starts
        #: right after `last_confirmed`, so what is acknowledged now would be looked for on the wrong bookies.
        self.frozen = False
        self.last_confirmed = NO_ENTRY
        #: The ledger's length up to and with `last_confirmed`.
        self.length = 0

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def push(self, batch: Batch) -> None:
        """A batch was sent; it comes after all before it."""
        last = self._batches[-1].entries[-1][0] if self._batches else self.last_confirmed
        check(batch.first == last + 1, "entries are sent in order, without gaps")
        self._batches.append(batch)

    def pop_acknowledged(self) -> list[Batch]:
        """Take out, in order, the batches that may be acknowledged now."""
        done: list[Batch] = []
        held, batches = self._stripes.held, self._batches
        while batches and not self.frozen:
            batch = batches[0]
            if not held(batch.held_by, batch.first, len(batch.entries)):
                break
            check(batch.first == self.last_confirmed + 1, "entries are acknowledged in order, without gaps")
            done.append(batches.popleft())
            self.last_confirmed = batch.entries[-1][0]
            self.length = batch.length
        return done

    def forget(self, slot: Slot) -> None:
        """What the slot's former bookie held does not count any more."""
        for batch in self._batches:
            batch.held_by &= ~slot.bit

    def clear(self) -> list[Batch]:
        """Take out everything."""
        left = list(self._batches)
        self._batches.clear()
        return left
