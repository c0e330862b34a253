"""What was delivered to a consumer and awaits its answer: which offsets a message id stands for.

A client acknowledges a whole batch by the id of its entry, or a part of it by an ack set (a bit per message, set
where it is not acknowledged). Offsets are what the broker wants, so the size of each batch is kept, and which of
its messages were meant for this consumer. Plain values; no I/O.
"""

from collections import OrderedDict
from typing import NamedTuple

from weir.model.bits import runs_of
from weir.wire.pulsar.ids import unacknowledged

#: [first, end) in offsets.
Range = tuple[int, int]
#: Ledger and entry.
EntryPosition = tuple[int, int]


class Delivered(NamedTuple):
    """A batch: its first offset and size, and a bit for each message that awaits its answer (None: all).

    `parts`: what each delivery of it had, where there were several, as when keys of one batch come from a consumer
    that has left. `whole`: how many of them were acknowledged as a whole."""

    base: int
    size: int
    mask: int | None = None
    parts: tuple[int, ...] = ()
    whole: int = 0

    @property
    def waiting(self) -> int:
        return self.size if self.mask is None else self.mask.bit_count()

    def ranges(self) -> list[Range]:
        return [(self.base, self.base + self.size)] if self.mask is None else ranges_of(self.base, self.mask)


#: More are not remembered: a consumer in order has no limit on what it leaves unacknowledged, and must not fill
#: the broker's memory with it. The oldest are forgotten; if they are acknowledged after all, they are looked up.
MOST_BATCHES = 200_000
#: Half the cost of calling the class; it is made once per delivered entry.
_new = tuple.__new__


def ranges_of(base: int, bits: int) -> list[Range]:
    """The offsets `base + i` of the bits that are set."""
    return runs_of(bits, base)


def joined(ranges: list[Range]) -> list[Range]:
    """The same with neighbours as one."""
    found = ranges[:1]
    for first, end in ranges[1:]:
        if found[-1][1] == first:
            found[-1] = (found[-1][0], end)
        else:
            found.append((first, end))
    return found


class Unacked:
    """Delivered batches by their place, in the order of delivery."""

    def __init__(self) -> None:
        self._batches: OrderedDict[EntryPosition, Delivered] = OrderedDict()

    def delivered(self, place: EntryPosition, base: int, size: int, wanted: int | None) -> None:
        known = self._batches.get(place)
        if known is not None and wanted is not None and not _mask(known) & wanted:
            self._batches[place] = _with_part(known, wanted)
            return
        self._batches[place] = _new(Delivered, (base, size, wanted, (), 0))
        if len(self._batches) > MOST_BATCHES:
            self._batches.popitem(last=False)

    def get(self, place: EntryPosition) -> Delivered | None:
        return self._batches.get(place)

    @property
    def messages(self) -> int:
        """How many await their answer."""
        return sum(batch.waiting for batch in self._batches.values())

    def __len__(self) -> int:
        return len(self._batches)

    def ack(self, place: EntryPosition, unacked: int = 0) -> list[Range] | None:
        """A batch is acknowledged, all of it but the bits `unacked`. Answers the offsets that are so now and were
        not before; None for a batch that is not here."""
        batch = self._batches.get(place)
        if batch is None:
            return None
        if batch.parts:
            return self._ack_part(place, batch, unacked)
        if not unacked:
            del self._batches[place]
            return batch.ranges()
        before = unacknowledged(batch.size) if batch.mask is None else batch.mask
        left = before & unacked
        if left:
            self._batches[place] = batch._replace(mask=left)
        else:
            del self._batches[place]
        return ranges_of(batch.base, before & ~unacked)

    def _ack_part(self, place: EntryPosition, batch: Delivered, unacked: int) -> list[Range]:
        """Of a batch that came in several deliveries, a client's answer to one of them. Which one it means only a
        set that is not empty tells; whole ones count once all are answered, so that nothing is taken for processed
        that may not be."""
        waiting = batch.mask or 0
        whole = batch.whole
        if unacked:
            meant = [part for part in batch.parts if not unacked & ~part]
            acked = waiting & meant[0] & ~unacked if len(meant) == 1 else 0
        else:
            whole += 1
            acked = waiting if whole >= len(batch.parts) else 0
        if acked == waiting:
            del self._batches[place]
        else:
            self._batches[place] = batch._replace(mask=waiting & ~acked, whole=whole)
        return ranges_of(batch.base, acked)

    def ack_before(self, offset: int) -> None:
        """Everything before the offset is acknowledged. Batches that were delivered out of order may stay; they
        are few, and acknowledging them again does no harm."""
        batches = self._batches
        while batches:
            place = next(iter(batches))
            if batches[place].base >= offset:
                return
            del batches[place]

    def give_back(self, place: EntryPosition) -> list[Range]:
        """A batch is to be delivered anew: its offsets that await their answer; none if it is not here."""
        batch = self._batches.pop(place, None)
        return [] if batch is None else batch.ranges()

    def clear(self) -> None:
        self._batches.clear()


def _mask(batch: Delivered) -> int:
    return unacknowledged(batch.size) if batch.mask is None else batch.mask


def _with_part(known: Delivered, more: int) -> Delivered:
    """The batch with one more delivery, of other messages than before: the same ones are a delivery anew."""
    before = _mask(known)
    return known._replace(mask=before | more, parts=(*(known.parts or (before,)), more))
