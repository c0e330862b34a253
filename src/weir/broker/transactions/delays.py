"""Delayed messages of a topic's transactions: hidden in the log until the end, then on their way to be held.

Part of what the topic learns from its log, and of the snapshot that goes with it: never newer or older than where
the log is read on from.
"""

from pyroaring import BitMap64

from weir.model.batch import Batch, BatchFlags, MovedFrom
from weir.wire.snapshots.transaction_index import Delays, decode_delays, encode_delays


class TransactionDelays:
    """Offsets are those at which hidden batches begin."""

    def __init__(self) -> None:
        #: Those of open transactions, by producer id.
        self._open: dict[int, BitMap64] = {}
        #: Those of committed ones that are not known to be held yet.
        self.unmoved = BitMap64()
        #: Entries of holding ledgers among which nothing of what is unmoved can be.
        self.known: dict[int, int] = {}
        #: Whether something was moved that no snapshot knows of.
        self.unsaved = False

    # --- learning -----------------------------------------------------------------------------------------------

    def hidden(self, producer_id: int, offset: int) -> None:
        """A hidden batch is in the log."""
        self._open.setdefault(producer_id, BitMap64()).add(offset)

    def decide(self, producer_id: int, *, aborted: bool) -> None:
        """The producer's transaction has ended."""
        offsets = self._open.pop(producer_id, None)
        if offsets is not None and not aborted:
            self.unmoved |= offsets

    def released(self, batch: Batch) -> None:
        """A batch without a stamp is in the log: perhaps one that was held, and is known to be so now."""
        if batch.flags & BatchFlags.RELEASED:
            self.found(batch)

    def found(self, batch: Batch) -> None:
        """The same of a batch that is or was held."""
        if isinstance(batch.origin, MovedFrom):
            self.moved(batch.origin.offset)

    def moved(self, offset: int) -> None:
        """It is held, for good."""
        if offset in self.unmoved:
            self.unmoved.discard(offset)
            self.unsaved = True

    def lost(self, first: int, end: int) -> None:
        """What lies in [first, end) is damaged everywhere: nothing of it will be held."""
        if self.unmoved.range_cardinality(first, end):
            self.unmoved.remove_range(first, end)
            self.unsaved = True

    def trim(self, start_offset: int) -> None:
        """Forget what lies before the offset."""
        self.unmoved.remove_range(0, start_offset)
        for offsets in self._open.values():
            offsets.remove_range(0, start_offset)

    @property
    def first(self) -> int | None:
        """The first that is not moved."""
        return int(self.unmoved.min()) if self.unmoved else None

    # --- keeping ------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes | None:
        """For a snapshot; None if there is nothing to keep."""
        self.unsaved = False
        if not self._open and not self.unmoved and not self.known:
            return None
        return encode_delays(Delays(self._open, self.unmoved, self.known))

    def load(self, data: bytes) -> None:
        """Begin with a snapshot."""
        delays = decode_delays(data)
        self._open, self.unmoved, self.known = dict(delays.open), delays.unmoved, dict(delays.known)
