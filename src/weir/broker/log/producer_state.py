"""Idempotent producers of one topic: their last stored and pending batches, and the next expected sequence.

The broker checks a batch when it is published, before earlier batches are acknowledged. It learns about stored
batches from the log in log order, since they contain their stamps (producer id, epoch, sequence); so it writes
nothing per message.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from weir.broker.api.topics import ProducerInfo
from weir.model.batch import Batch, BatchFlags, Stamp
from weir.model.errors import DuplicateInDoubtError, OutOfOrderSequenceError, StaleEpochError
from weir.model.transactions import Stored
from weir.wire.snapshots.producers import ProducerRecord, decode_producers, encode_producers

#: Batches per producer that are recognized as duplicates; clients have no more of them in flight.
KEPT = 5
#: Sequence numbers have 31 bits and wrap around to 0.
_LAST_SEQUENCE = 0x7FFFFFFF
#: The sequence of a batch without one, and the next sequence of an unknown producer: any.
_NONE = -1


def following(sequence: int) -> int:
    return (sequence + 1) & _LAST_SEQUENCE


class Pending:
    """A batch, or a transaction's marker, that is being appended to the log."""

    __slots__ = (
        "_waiting",
        "checksum",
        "epoch",
        "first",
        "last",
        "marker",
        "parted",
        "producer_id",
        "transactional",
    )

    def __init__(
        self, stamp: Stamp, count: int, *, transactional: bool, marker: bool = False, parted: bool = False
    ) -> None:
        self.producer_id = stamp.producer_id
        self.epoch = stamp.epoch
        self.first = stamp.sequence
        self.checksum = stamp.checksum
        self.last = _last_of(stamp.sequence, count)
        self.transactional = transactional
        self.marker = marker
        #: It is stored in parts, which have no entries of their own among the stored batches.
        self.parted = parted
        self._waiting: list[asyncio.Future[int]] = []

    def offset(self) -> "asyncio.Future[int]":
        """The future offset of the batch, for a duplicate of it."""
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        return answer

    def landed(self, offset: int) -> None:
        for answer in self._waiting:
            if not answer.done():
                answer.set_result(offset)

    def failed(self) -> None:
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(DuplicateInDoubtError("it is unknown whether the batch is stored"))


class _ProducerEntry:
    """The state of one producer id."""

    __slots__ = ("epoch", "marked", "next", "pending", "resume", "seen_ms", "stored")

    def __init__(self, epoch: int, sequence: int, seen_ms: int) -> None:
        self.epoch = epoch
        #: The next sequence number at the end of the last transaction of this epoch; -1 if there was no
        #: transaction.
        self.marked = _NONE
        #: The sequence number after the last stored one.
        self.next = sequence
        self.seen_ms = seen_ms
        self.stored: deque[Stored] = deque(maxlen=KEPT)
        self.pending: deque[Pending] = deque()
        #: Epoch and sequence number of the very first batch, if it failed: a later batch must not count as the
        #: first.
        self.resume: tuple[int, int] | None = None

    @property
    def last(self) -> int:
        """The last used sequence number, possibly that of a part of a batch; -1 if none is known."""
        if self.next > 0:
            return self.next - 1
        return self.stored[-1].last if self.stored else _NONE

    def tip(self) -> tuple[int, int, int]:
        """The epoch of the last batch that was sent, the sequence number after it, and the sequence number after
        the last marker of the epoch (-1: no marker)."""
        epoch, sequence, marked = self.epoch, self.next, self.marked
        if self.resume is not None and self.resume[0] >= epoch:
            epoch, sequence = self.resume
        for pending in self.pending:
            if pending.epoch > epoch:
                epoch, sequence, marked = pending.epoch, 0, _NONE
            if pending.marker:
                marked = sequence
            if pending.first >= 0:
                sequence = following(pending.last)
        return epoch, sequence, marked

    def find(self, epoch: int, first: int, last: int) -> Stored | Pending | None:
        for pending in self.pending:
            if (pending.epoch, pending.first, pending.last) == (epoch, first, last):
                return pending
        for stored in self.stored:
            if (stored.epoch, stored.first, stored.last) == (epoch, first, last):
                return stored
        return None


class ProducerStates:
    """The producers of one topic. Drops ids that sent nothing for `forget_ms`, and the oldest beyond `most`."""

    def __init__(self, *, forget_ms: int, most: int) -> None:
        self._known: dict[int, _ProducerEntry] = {}
        self._forget_ms = forget_ms
        self._most = most

    def __len__(self) -> int:
        return len(self._known)

    # --- checks -------------------------------------------------------------------------------------------------

    def judge(self, stamp: Stamp, count: int) -> Stored | Pending | None:
        """Return None for a new batch, and the first copy for a duplicate. Raises StaleEpochError or
        OutOfOrderSequenceError."""
        known = self._known.get(stamp.producer_id)
        if known is None:
            return None  # dropped or new: any first sequence is valid
        epoch, expected, marked = known.tip()
        if stamp.epoch < epoch:
            raise StaleEpochError(
                f"producer {stamp.producer_id} is at epoch {epoch}, the batch has epoch {stamp.epoch}"
            )
        if stamp.sequence < 0:
            return None
        if stamp.epoch > epoch:
            expected = 0
        if expected in (_NONE, stamp.sequence):
            return None
        found = known.find(stamp.epoch, stamp.sequence, _last_of(stamp.sequence, count))
        if found is None:
            raise OutOfOrderSequenceError(
                f"producer {stamp.producer_id} sent sequence number {stamp.sequence}, expected {expected}"
            )
        if _is_before(stamp.sequence, marked):
            # Its transaction has ended, so this is no retry: the producer uses the numbers for other messages.
            raise OutOfOrderSequenceError(
                f"producer {stamp.producer_id} used sequence number {stamp.sequence} in a transaction that is over"
            )
        if stamp.checksum and found.checksum and stamp.checksum != found.checksum:
            raise OutOfOrderSequenceError(
                f"producer {stamp.producer_id} used sequence number {stamp.sequence} for other messages"
            )
        return found

    def push(
        self, stamp: Stamp, count: int, *, transactional: bool, marker: bool = False, parted: bool = False
    ) -> Pending:
        """Add a batch that is being appended."""
        known = self._known.get(stamp.producer_id)
        if known is None:
            known = self._known[stamp.producer_id] = _ProducerEntry(_NONE, _NONE, 0)
        pending = Pending(stamp, count, transactional=transactional, marker=marker, parted=parted)
        known.pending.append(pending)
        return pending

    def failed(self, pending: Pending) -> None:
        """Fail a batch that could not be stored, and all later batches of its producer."""
        known = self._known.get(pending.producer_id)
        if known is None or pending not in known.pending:
            return
        at = known.pending.index(pending)
        lost = [known.pending.pop() for _ in range(len(known.pending) - at)]
        for one in lost:
            one.failed()
        if known.epoch < 0 and known.resume is None and pending.first >= 0:
            known.resume = (pending.epoch, pending.first)

    def awaits(self, pending: Pending) -> bool:
        """Whether it can still be stored: no earlier batch of the producer has failed."""
        known = self._known.get(pending.producer_id)
        return known is not None and pending in known.pending

    def pending_transaction(self, producer_id: int) -> bool | None:
        """Whether the producer has an open transaction once its pending batches are stored; None if that depends
        on the stored batches."""
        known = self._known.get(producer_id)
        for pending in reversed(known.pending if known is not None else ()):
            if pending.marker or pending.transactional:
                return not pending.marker
        return None

    def epoch(self, producer_id: int) -> int:
        """The highest known epoch of the producer; -1 if none."""
        known = self._known.get(producer_id)
        return _NONE if known is None else known.tip()[0]

    def tip(self, producer_id: int) -> tuple[int, int, int] | None:
        """The position of the last batch that was sent; it changes whenever the producer sends."""
        known = self._known.get(producer_id)
        return None if known is None else known.tip()

    def seen_ms(self, producer_id: int) -> int:
        """When the producer's last batch was stored; -1 if none was."""
        known = self._known.get(producer_id)
        return -1 if known is None else known.seen_ms

    # --- updates from the log -----------------------------------------------------------------------------------

    def learn(self, batch: Batch) -> None:
        """Apply the next stamped batch of the log."""
        stamp = batch.stamp
        if stamp is None:
            return
        if batch.flags & BatchFlags.CONTROL:
            known = self._entry(stamp, batch.append_ms, 0)
            if stamp.epoch >= known.epoch:
                known.marked = known.next
            self._land(known, stamp, _NONE, batch.base_offset)
        else:
            self._store(stamp, batch.count, batch.base_offset, batch.append_ms)

    def passed(self, stamp: Stamp, count: int, now_ms: int) -> None:
        """Mark the sequence numbers of a batch as used that is not in the log yet, or never will be."""
        self._store(stamp, count, _NONE, now_ms)

    def catch_up(self, stamp: Stamp, count: int, now_ms: int) -> bool:
        """`passed` for a batch that a scan found outside of the log; return whether it was new."""
        known = self._known.get(stamp.producer_id)
        if known is not None and known.epoch >= 0:
            ahead = (_last_of(stamp.sequence, count) + 1 - known.next) & _LAST_SEQUENCE
            if stamp.epoch < known.epoch:
                return False
            if stamp.epoch == known.epoch and known.next >= 0 and not 0 < ahead <= _LAST_SEQUENCE // 2:
                return False
        self.passed(stamp, count, now_ms)
        return True

    def covered(self, stamp: Stamp, count: int) -> int:
        """How many leading messages of a batch are stored already; 0 unless the batch continues a partial one."""
        known = self._known.get(stamp.producer_id)
        if known is None or known.pending or known.epoch != stamp.epoch or known.next < 0:
            return 0
        if _is_before(stamp.sequence, known.marked):
            return 0
        taken = (known.next - stamp.sequence) & _LAST_SEQUENCE
        return taken if 0 < taken <= count else 0

    def under_way(self, producer_id: int) -> "list[asyncio.Future[int]]":
        """Futures of the pending batches, which may still fail."""
        known = self._known.get(producer_id)
        return [] if known is None else [pending.offset() for pending in known.pending]

    def _store(self, stamp: Stamp, count: int, offset: int, seen_ms: int) -> None:
        known = self._entry(stamp, seen_ms, _NONE)
        last = _last_of(stamp.sequence, count)
        if stamp.sequence >= 0 and stamp.epoch >= known.epoch:  # else a marker has ended its epoch
            head = known.pending[0] if known.pending else None
            whole = head is None or not head.parted or (head.first, head.last) == (stamp.sequence, last)
            if whole and known.find(stamp.epoch, stamp.sequence, last) in (None, head):
                known.stored.append(Stored(stamp.epoch, stamp.sequence, last, offset, stamp.checksum))
            known.next = following(last)
        known.resume = None
        self._land(known, stamp, last, offset)

    def _entry(self, stamp: Stamp, seen_ms: int, first_of_epoch: int) -> _ProducerEntry:
        known = self._known.get(stamp.producer_id)
        if known is None:
            known = self._known[stamp.producer_id] = _ProducerEntry(stamp.epoch, _NONE, seen_ms)
        elif stamp.epoch > known.epoch:
            known.stored.clear()
            known.next = first_of_epoch if known.epoch >= 0 else _NONE
            known.marked = _NONE
            known.epoch = stamp.epoch
        known.seen_ms = seen_ms
        return known

    def _land(self, known: _ProducerEntry, stamp: Stamp, last: int, offset: int) -> None:
        """Complete the pending batch. A batch in parts may be stored after the marker behind it."""
        for pending in known.pending:
            if (pending.epoch, pending.first, pending.last) == (stamp.epoch, stamp.sequence, last):
                known.pending.remove(pending)
                pending.landed(offset)
                return

    def forget_idle(self, now_ms: int, is_open: Callable[[int], bool]) -> bool:
        """Drop idle producers, and the oldest beyond the limit; return whether any was dropped. Producers with
        pending batches or an open transaction stay."""
        idle = [
            (known.seen_ms, producer_id)
            for producer_id, known in self._known.items()
            if not known.pending and not is_open(producer_id)
        ]
        idle.sort()
        surplus = len(self._known) - self._most
        gone = [
            producer_id
            for place, (seen_ms, producer_id) in enumerate(idle)
            if place < surplus or now_ms - seen_ms > self._forget_ms
        ]
        for producer_id in gone:
            del self._known[producer_id]
        return bool(gone)

    # --- inspection and snapshots -------------------------------------------------------------------------------

    def infos(self, open_since: Callable[[int], int]) -> list[ProducerInfo]:
        """All known producers; `open_since`: returns the first offset of a producer's open transaction."""
        return [
            ProducerInfo(
                producer_id,
                known.epoch,
                known.last,
                known.seen_ms,
                open_since(producer_id),
            )
            for producer_id, known in sorted(self._known.items())
            if known.epoch >= 0
        ]

    def to_bytes(self, known_to: int) -> bytes:
        """A snapshot that covers the log up to `known_to`."""
        kept = [
            ProducerRecord(who, known.epoch, known.next, known.seen_ms, known.marked, known.stored)
            for who, known in self._known.items()
            if known.epoch >= 0
        ]
        return encode_producers(known_to, kept)

    def load(self, data: bytes) -> int:
        """Start with a snapshot; return its `known_to`."""
        known_to, producers = decode_producers(data)
        for record in producers:
            known = self._known[record.producer_id] = _ProducerEntry(record.epoch, record.next, record.seen_ms)
            known.marked = record.marked
            known.stored.extend(record.stored)
        return known_to


def _is_before(sequence: int, marked: int) -> bool:
    """Whether the sequence number was used before the marker at sequence `marked`; false if that is -1."""
    return marked >= 0 and (sequence - marked) & _LAST_SEQUENCE > _LAST_SEQUENCE // 2


def _last_of(first: int, count: int) -> int:
    return _NONE if first < 0 else (first + count - 1) & _LAST_SEQUENCE
