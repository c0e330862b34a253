"""Transactions of one topic: which are open and where they began, which messages nobody shall see, and why.

Learnt from the log, like producers' states. What is decided is kept in pieces of the offset space, so that a
snapshot writes only those that have changed; the log's trimming takes them away.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from struct import Struct, error

from pyroaring import BitMap64

from weir.broker.api import AbortedTransaction
from weir.broker.transactions.delays import TransactionDelays
from weir.model.batch import Batch, BatchFlags
from weir.model.errors import WireError

#: Offsets that one kept piece covers.
PIECE = 1 << 18

_HEAD = Struct("<BI")
_OPEN = Struct("<qqI")
_ABORTED = Struct("<qqqq")
_VERSION = 1


class _Open:
    """A transaction that is not decided: the offsets of its messages."""

    __slots__ = ("first", "offsets")

    def __init__(self, first: int) -> None:
        self.first = first
        self.offsets = BitMap64()


class TransactionIndex:
    def __init__(self) -> None:
        #: In the order in which they began.
        self._open: dict[int, _Open] = {}
        self.delays = TransactionDelays()
        #: Markers, delayed messages before they are held, and messages of aborted transactions.
        self.hidden = BitMap64()
        #: Aborted transactions in the order of their markers, as columns: producer, first offset, marker, and the
        #: stable offset right after it. No later one begins before that.
        self._producer = array("q")
        self._first = array("q")
        self._last = array("q")
        self._stable = array("q")
        #: Pieces that have changed since they were kept.
        self._dirty: dict[int, None] = {}

    # --- learning -----------------------------------------------------------------------------------------------

    def learn(self, batch: Batch) -> None:
        """The next stamped batch of the log."""
        stamp = batch.stamp
        if stamp is None or not batch.flags & BatchFlags.TRANSACTIONAL:
            return
        if batch.flags & BatchFlags.CONTROL:
            self._decide(stamp.producer_id, batch, aborted=bool(batch.flags & BatchFlags.ABORT))
            return
        transaction = self._open.get(stamp.producer_id)
        if transaction is None:
            transaction = self._open[stamp.producer_id] = _Open(batch.base_offset)
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

    def trim(self, start_offset: int) -> None:
        """Forget what lies before the offset."""
        self.hidden.remove_range(0, start_offset)
        gone = bisect_left(self._last, start_offset)
        for column in (self._producer, self._first, self._last, self._stable):
            del column[:gone]
        for transaction in self._open.values():
            transaction.offsets.remove_range(0, start_offset)
        self.delays.trim(start_offset)
        for piece in [piece for piece in self._dirty if (piece + 1) * PIECE <= start_offset]:
            del self._dirty[piece]

    # --- asking -------------------------------------------------------------------------------------------------

    def stable(self, end_offset: int) -> int:
        """Before it everything is decided, in a log that ends there."""
        for transaction in self._open.values():
            return min(transaction.first, end_offset)
        return end_offset

    def is_open(self, producer_id: int) -> bool:
        return producer_id in self._open

    def open_since(self, producer_id: int) -> int:
        """Where the producer's open transaction begins; -1 if it has none."""
        transaction = self._open.get(producer_id)
        return -1 if transaction is None else transaction.first

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        """Those with messages in [first, end), as far as somebody who reads there must know of them."""
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
        while low < high:  # the highest from which on something is visible
            middle = (low + high + 1) // 2
            if end - middle > self.hidden.range_cardinality(middle, end):
                low = middle
            else:
                high = middle - 1
        return low

    # --- keeping ------------------------------------------------------------------------------------------------

    def open_bytes(self) -> bytes:
        """The open transactions, for a snapshot."""
        parts = [_HEAD.pack(_VERSION, len(self._open))]
        for producer_id, transaction in self._open.items():
            offsets = transaction.offsets.serialize()
            parts += [_OPEN.pack(producer_id, transaction.first, len(offsets)), offsets]
        return b"".join(parts)

    def load_open(self, data: bytes) -> None:
        try:
            place, count = _head(data)
            for _ in range(count):
                producer_id, first, size = _OPEN.unpack_from(data, place)
                place += _OPEN.size
                transaction = self._open[producer_id] = _Open(first)
                transaction.offsets = _bitmap(data[place : place + size])
                place += size
        except error as bad:
            raise WireError(f"a snapshot of transactions is malformed: {bad}") from bad

    def changed_pieces(self) -> dict[int, bytes]:
        """What is decided, in pieces: those that have changed since the last time."""
        dirty, self._dirty = self._dirty, {}
        return {piece: self._piece_bytes(piece) for piece in dirty}

    def _piece_bytes(self, piece: int) -> bytes:
        low, high = piece * PIECE, (piece + 1) * PIECE
        rows = range(bisect_left(self._last, low), bisect_left(self._last, high))
        columns: Sequence[array[int]] = (self._producer, self._first, self._last, self._stable)
        hidden = self.hidden & BitMap64(range(low, high))
        return b"".join(
            [
                _HEAD.pack(_VERSION, len(rows)),
                *(_ABORTED.pack(*(column[row] for column in columns)) for row in rows),
                hidden.serialize(),
            ]
        )

    def load_piece(self, data: bytes) -> None:
        """What was kept, piece after piece."""
        try:
            place, count = _head(data)
            for _ in range(count):
                producer_id, first, last, stable = _ABORTED.unpack_from(data, place)
                place += _ABORTED.size
                self._producer.append(producer_id)
                self._first.append(first)
                self._last.append(last)
                self._stable.append(stable)
        except error as bad:
            raise WireError(f"a piece of a transaction index is malformed: {bad}") from bad
        self.hidden |= _bitmap(data[place:])


def _head(data: bytes) -> tuple[int, int]:
    version, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise WireError(f"a transaction index has unknown version {version}")
    return _HEAD.size, count


def _bitmap(data: bytes) -> BitMap64:
    try:
        return BitMap64.deserialize(data)
    except (ValueError, IndexError, MemoryError, OverflowError) as bad:
        raise WireError(f"a bitmap of a transaction index is malformed: {bad}") from bad
