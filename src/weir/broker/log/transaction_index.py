"""Transaction index of one topic: open and aborted transactions, and the offsets of invisible messages.

The broker builds it from the log, like the producer state. Decided transactions are stored in pieces of the offset
space: a snapshot writes changed pieces only, and retention deletes pieces with the log.

`TransactionDelays` tracks delayed messages in transactions: they are hidden in the log until the commit, and then
move to the holding area. It is part of the same snapshot, so it always matches the offset from which the broker
reads the log on.
"""

from array import array
from bisect import bisect_left

from pyroaring import BitMap64

from weir.broker.api.topics import AbortedTransaction
from weir.model.batch import Batch, BatchFlags, MovedFrom
from weir.model.check import check
from weir.wire.snapshots.transactions import (
    Aborted,
    Delays,
    OpenTransaction,
    Piece,
    decode_delays,
    decode_open,
    decode_piece,
    encode_delays,
    encode_open,
    encode_piece,
)


class TransactionDelays:
    """All offsets here are base offsets of hidden batches."""

    def __init__(self) -> None:
        #: Delayed messages of open transactions, by producer id.
        self._open: dict[int, BitMap64] = {}
        #: Delayed messages of committed transactions that may not be in the holding area yet.
        self.unmoved = BitMap64()
        #: By holding ledger: the number of entries that are known to contain no unmoved message.
        self.known: dict[int, int] = {}
        #: Whether a message has moved since the last snapshot.
        self.unsaved = False

    # --- updates from the log -----------------------------------------------------------------------------------

    def hidden(self, producer_id: int, offset: int) -> None:
        """Record a hidden batch in the log."""
        self._open.setdefault(producer_id, BitMap64()).add(offset)

    def decide(self, producer_id: int, *, aborted: bool) -> None:
        """Record the end of the producer's transaction."""
        offsets = self._open.pop(producer_id, None)
        if offsets is not None and not aborted:
            self.unmoved |= offsets

    def released(self, batch: Batch) -> None:
        """Record a batch without a stamp in the log; if it was released from the holding area, it has moved."""
        if batch.flags & BatchFlags.RELEASED:
            self.found(batch)

    def found(self, batch: Batch) -> None:
        """Record a batch that is or was in the holding area."""
        if isinstance(batch.origin, MovedFrom):
            self.moved(batch.origin.offset)

    def moved(self, offset: int) -> None:
        """Record that the batch at this offset is durable in the holding area."""
        if offset in self.unmoved:
            self.unmoved.discard(offset)
            self.unsaved = True

    def lost(self, first: int, end: int) -> None:
        """Drop messages in [first, end), of which no replica is readable: they cannot move."""
        if self.unmoved.range_cardinality(first, end):
            self.unmoved.remove_range(first, end)
            self.unsaved = True

    def trim(self, start_offset: int) -> None:
        """Drop state before the offset."""
        self.unmoved.remove_range(0, start_offset)
        for offsets in self._open.values():
            offsets.remove_range(0, start_offset)

    @property
    def first(self) -> int | None:
        """The first unmoved offset; None if all have moved."""
        return int(self.unmoved.min()) if self.unmoved else None

    # --- snapshots ----------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes | None:
        """The snapshot; None if the state is empty."""
        self.unsaved = False
        if not self._open and not self.unmoved and not self.known:
            return None
        return encode_delays(Delays(self._open, self.unmoved, self.known))

    def load(self, data: bytes) -> None:
        """Start with a snapshot."""
        delays = decode_delays(data)
        self._open, self.unmoved, self.known = dict(delays.open), delays.unmoved, dict(delays.known)


#: Offsets per stored piece.
PIECE = 1 << 18


class _Open:
    """An open transaction: the offsets of its messages."""

    __slots__ = ("first", "offsets")

    def __init__(self, first: int) -> None:
        self.first = first
        self.offsets = BitMap64()


class TransactionIndex:
    def __init__(self) -> None:
        #: Open transactions, in the order of their first offsets.
        self._open: dict[int, _Open] = {}
        self.delays = TransactionDelays()
        #: Markers, delayed messages that have not moved to the holding area, and messages of aborted transactions.
        self.hidden = BitMap64()
        #: Aborted transactions in the order of their markers, as columns: producer, first offset, marker, and the
        #: stable offset right after it. No later transaction begins before that stable offset.
        self._producer = array("q")
        self._first = array("q")
        self._last = array("q")
        self._stable = array("q")
        #: Pieces that have changed since the last snapshot.
        self._dirty: dict[int, None] = {}
        self._runs_since = 0

    # --- updates from the log -----------------------------------------------------------------------------------

    def learn(self, batch: Batch) -> None:
        """Apply the next stamped batch of the log."""
        stamp = batch.stamp
        if stamp is None or not batch.flags & BatchFlags.TRANSACTIONAL:
            return
        if batch.flags & BatchFlags.CONTROL:
            self._decide(stamp.producer_id, batch, aborted=bool(batch.flags & BatchFlags.ABORT))
            return
        transaction = self._open.get(stamp.producer_id)
        if transaction is None:
            transaction = self._open[stamp.producer_id] = _Open(batch.base_offset)
        check(transaction.first <= batch.base_offset, "a transaction's first offset is its lowest")
        transaction.offsets.add_range(batch.base_offset, batch.end_offset)
        if batch.flags & BatchFlags.HIDDEN:
            self._hide(BitMap64(range(batch.base_offset, batch.end_offset)))
            self.delays.hidden(stamp.producer_id, batch.base_offset)

    def _decide(self, producer_id: int, marker: Batch, *, aborted: bool) -> None:
        self._hide(BitMap64(range(marker.base_offset, marker.end_offset)))
        self.delays.decide(producer_id, aborted=aborted)
        transaction = self._open.pop(producer_id, None)
        if transaction is None or not aborted:
            return
        self._hide(transaction.offsets)
        check(
            not self._last or self._last[-1] < marker.base_offset,
            "aborted transactions are in the order of their markers",
        )
        self._producer.append(producer_id)
        self._first.append(transaction.first)
        self._last.append(marker.base_offset)
        self._stable.append(self.stable(marker.end_offset))

    def _hide(self, offsets: BitMap64) -> None:
        self.hidden |= offsets
        offset = int(offsets.min()) if offsets else None
        while offset is not None:
            piece = offset // PIECE
            self._dirty[piece] = None
            try:
                offset = int(offsets.next_set_bit((piece + 1) * PIECE))
            except ValueError:
                offset = None

    def hide(self, first: int, end: int) -> None:
        """Hide the messages in [first, end): they were never written to the log."""
        self.hidden.add_range(first, end)
        self._touch(first, end)
        self._runs_since += end - first
        if self._runs_since >= PIECE:  # merges adjacent offsets that were added one by one into ranges
            self._runs_since = 0
            self.hidden.run_optimize()

    def _touch(self, first: int, end: int) -> None:
        for piece in range(first // PIECE, (end - 1) // PIECE + 1):
            self._dirty[piece] = None

    def trim(self, start_offset: int) -> None:
        """Drop state before the offset."""
        self.hidden.remove_range(0, start_offset)
        gone = bisect_left(self._last, start_offset)
        for column in (self._producer, self._first, self._last, self._stable):
            del column[:gone]
        for transaction in self._open.values():
            transaction.offsets.remove_range(0, start_offset)
        self.delays.trim(start_offset)
        for piece in [piece for piece in self._dirty if (piece + 1) * PIECE <= start_offset]:
            del self._dirty[piece]

    # --- queries ------------------------------------------------------------------------------------------------

    @property
    def any_open(self) -> bool:
        return bool(self._open)

    def stable(self, end_offset: int) -> int:
        """The last stable offset of a log that ends at `end_offset`: all transactions before it are decided."""
        for transaction in self._open.values():
            return min(transaction.first, end_offset)
        return end_offset

    def is_open(self, producer_id: int) -> bool:
        return producer_id in self._open

    def open_since(self, producer_id: int) -> int:
        """The first offset of the producer's open transaction; -1 if it has none."""
        transaction = self._open.get(producer_id)
        return -1 if transaction is None else transaction.first

    def open_before(self, offset: int) -> list[int]:
        """Producers whose open transactions began before the offset."""
        return [producer_id for producer_id, transaction in self._open.items() if transaction.first < offset]

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        """Aborted transactions with messages in [first, end), as a fetch response lists them."""
        found: list[AbortedTransaction] = []
        for place in range(bisect_left(self._last, first), len(self._last)):
            if self._first[place] < end:
                found.append(AbortedTransaction(self._producer[place], self._first[place], self._last[place]))
            if self._stable[place] >= end:
                break
        return found

    def last_visible(self, start: int, end: int) -> int | None:
        """The last offset in [start, end) that is not hidden."""
        if end - start <= self.hidden.range_cardinality(start, end):
            return None
        low, high = start, end - 1
        while low < high:  # find the highest start of a range with a visible offset
            middle = (low + high + 1) // 2
            if end - middle > self.hidden.range_cardinality(middle, end):
                low = middle
            else:
                high = middle - 1
        return low

    # --- snapshots ----------------------------------------------------------------------------------------------

    def open_bytes(self) -> bytes:
        """The open transactions, for a snapshot."""
        return encode_open(OpenTransaction(who, one.first, one.offsets) for who, one in self._open.items())

    def load_open(self, data: bytes) -> None:
        for producer_id, first, offsets in decode_open(data):
            transaction = self._open[producer_id] = _Open(first)
            transaction.offsets = offsets

    def changed_pieces(self, passing: BitMap64) -> dict[int, bytes]:
        """The decided state in pieces that have changed since the last call. `passing`: messages that are visible
        now, but hidden after the pieces are loaded."""
        if passing:
            self._touch(int(passing.min()), int(passing.max()) + 1)
        dirty, self._dirty = self._dirty, {}
        return {piece: self._piece_bytes(piece, passing) for piece in dirty}

    def _piece_bytes(self, piece: int, passing: BitMap64) -> bytes:
        low, high = piece * PIECE, (piece + 1) * PIECE
        rows = range(bisect_left(self._last, low), bisect_left(self._last, high))
        aborted = (Aborted(self._producer[n], self._first[n], self._last[n], self._stable[n]) for n in rows)
        hidden = (self.hidden | passing) if passing else self.hidden
        within = BitMap64()
        within.add_range(low, high)
        within &= hidden
        within.run_optimize()
        return encode_piece(Piece(tuple(aborted), within))

    def load_piece(self, data: bytes) -> None:
        """Load the stored pieces one by one, in order."""
        piece = decode_piece(data)
        for producer_id, first, last, stable in piece.aborted:
            self._producer.append(producer_id)
            self._first.append(first)
            self._last.append(last)
            self._stable.append(stable)
        self.hidden |= piece.hidden
