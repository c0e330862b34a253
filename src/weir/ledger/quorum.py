"""Ensemble placement and striping: pure functions.

Placement spreads an ensemble over racks and is random otherwise. No entry's write set should lie within one rack.
With enough racks this holds for every write set; otherwise for as many write sets as possible.

A slot is a position in the ensemble; bit `i` of a mask stands for slot `i`. The write set of entry `e` has the
`Qw` slots from `e % E` on, so it depends on the residue of the entry only. The writer therefore counts responses
per run of entries and not per entry.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from random import Random  # noqa: TID251 - for its type; the dice come from the caller

from weir.model.errors import NotEnoughBookiesError
from weir.model.ids import BookieId, Buffer, EntryId
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


def choose_ensemble(
    racks: Mapping[BookieId, str], quorum: Quorum, rng: Random, *, avoid: Collection[BookieId] = ()
) -> tuple[BookieId, ...]:
    """An ensemble from the bookies in `racks` (with their rack labels); those to avoid only if it needs them."""
    if len(racks) < quorum.ensemble:
        raise NotEnoughBookiesError(
            f"an ensemble of {quorum.ensemble} is wanted, {len(racks)} bookies take entries: {sorted(racks)}"
        )
    pool = _shuffled([b for b in racks if b not in avoid], rng)
    if len(pool) < quorum.ensemble:
        unwanted = _shuffled([b for b in racks if b in avoid], rng)
        pool += unwanted[: quorum.ensemble - len(pool)]
    chosen = _interleaved(_evenly(pool, racks, quorum.ensemble))
    return _improved(chosen, racks, quorum.write)


def choose_replacement(
    racks: Mapping[BookieId, str],
    candidates: Collection[BookieId],
    ensemble: Sequence[BookieId],
    slot: int,
    quorum: Quorum,
    *,
    rng: Random,
) -> BookieId | None:
    """The candidate that keeps the rack spread best in place of the bookie in `slot`; None if there is none.
    `racks` has the labels of candidates and ensemble; a bookie without one is taken to stand alone."""
    best: list[BookieId] = []
    fewest = len(ensemble) + 1
    for candidate in sorted(candidates):
        if candidate in ensemble:
            continue
        changed = [*ensemble[:slot], candidate, *ensemble[slot + 1 :]]
        crowded = crowded_write_sets(changed, racks, quorum.write)
        if crowded < fewest:
            best, fewest = [candidate], crowded
        elif crowded == fewest:
            best.append(candidate)
    return rng.choice(best) if best else None


def crowded_write_sets(ensemble: Sequence[BookieId], racks: Mapping[BookieId, str], write_quorum: int) -> int:
    """How many write sets lie within one rack (a single copy always does)."""
    if write_quorum == 1:
        return 0
    labels = [racks.get(bookie, f"?{bookie}") for bookie in ensemble]
    size = len(labels)
    return sum(
        all(labels[(first + i) % size] == labels[first] for i in range(1, write_quorum)) for first in range(size)
    )


def _shuffled(bookies: Sequence[BookieId], rng: Random) -> list[BookieId]:
    ordered = sorted(bookies)
    rng.shuffle(ordered)
    return ordered


def _evenly(pool: Sequence[BookieId], racks: Mapping[BookieId, str], size: int) -> list[list[BookieId]]:
    """`size` bookies of the pool, taken from all racks in turn; one list per rack, the fullest first."""
    left: dict[str, list[BookieId]] = {}
    for bookie in pool:
        left.setdefault(racks[bookie], []).append(bookie)
    taken: dict[str, list[BookieId]] = {rack: [] for rack in left}
    while size:
        for rack, bookies in left.items():
            if bookies and size:
                taken[rack].append(bookies.pop())
                size -= 1
    return sorted((bookies for bookies in taken.values() if bookies), key=len, reverse=True)


def _interleaved(by_rack: Sequence[Sequence[BookieId]]) -> list[BookieId]:
    """Each rack's bookies at even distances round the ring."""
    placed = [
        ((i + rank / len(by_rack)) / len(bookies), rank, bookie)
        for rank, bookies in enumerate(by_rack)
        for i, bookie in enumerate(bookies)
    ]
    return [bookie for _, _, bookie in sorted(placed)]


def _improved(ensemble: list[BookieId], racks: Mapping[BookieId, str], write_quorum: int) -> tuple[BookieId, ...]:
    """Swap pairs while that takes a write set out of a single rack; ensembles are small."""
    crowded = crowded_write_sets(ensemble, racks, write_quorum)
    size = len(ensemble)
    for i in range(size):
        for j in range(i + 1, size):
            if crowded == 0:
                return tuple(ensemble)
            ensemble[i], ensemble[j] = ensemble[j], ensemble[i]
            swapped = crowded_write_sets(ensemble, racks, write_quorum)
            if swapped < crowded:
                crowded = swapped
            else:
                ensemble[i], ensemble[j] = ensemble[j], ensemble[i]
    return tuple(ensemble)
