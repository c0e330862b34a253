"""Which bookies of an ensemble hold an entry, as arithmetic on bit masks.

A slot is a position in the ensemble; bit `i` of a mask stands for slot `i`. Entry `e` is written to the `Qw`
slots from `e % E` on, so what is true of an entry depends on its residue alone, and what is true of a run of
entries on the residues in it. The writer counts answers per run and not per entry with it.
"""

from collections.abc import Sequence
from functools import cache

from weir.model.ids import Buffer, EntryId
from weir.model.ledger import Quorum


class Stripes:
    """Round-robin striping of one quorum."""

    __slots__ = ("_ack", "_held", "_size", "_write", "write_masks")

    def __init__(self, quorum: Quorum) -> None:
        self._size = quorum.ensemble
        self._write = quorum.write
        self._ack = quorum.ack
        #: For each residue, the slots that its entries are written to.
        self.write_masks = write_masks(quorum)
        self._held: dict[tuple[int, int, int], bool] = {}

    def share(self, slot: int, entries: Sequence[tuple[EntryId, Buffer]]) -> Sequence[tuple[EntryId, Buffer]]:
        """Those of the entries that are written to this slot."""
        size, write = self._size, self._write
        if size == write:
            return entries
        return [entry for entry in entries if (slot - entry[0]) % size < write]

    def held(self, by: int, first: EntryId, count: int) -> bool:
        """Whether each of `count` entries from `first` on is held by an ack quorum of its own write set, if the
        slots in `by` hold all they should of the run."""
        key = (by, first % self._size, min(count, self._size))
        answer = self._held.get(key)
        if answer is None:
            answer = self._held[key] = all(
                (by & self.write_masks[residue % self._size]).bit_count() >= self._ack
                for residue in range(key[1], key[1] + key[2])
            )
        return answer

    def suffices(self, alive: int) -> bool:
        """Whether every entry could reach its ack quorum with only these slots answering."""
        return self.held(alive, EntryId(0), self._size)

    def covered(self, denied: int) -> bool:
        """Whether in every write set so many slots refuse the writer that none can reach an ack quorum."""
        coverage = self._write - self._ack + 1
        return all((denied & mask).bit_count() >= coverage for mask in self.write_masks)


@cache
def write_masks(quorum: Quorum) -> tuple[int, ...]:
    """For each residue of an entry id, the mask of the slots that it is written to."""
    size = quorum.ensemble
    return tuple(sum(1 << (first + i) % size for i in range(quorum.write)) for first in range(size))
