"""Which bookies an ensemble is made of: spread over racks, by dice otherwise. Pure functions.

The rule: no entry's write set should lie within one rack. With enough racks the rule holds for every write set;
otherwise as many write sets as possible keep it.
"""

from collections.abc import Collection, Mapping, Sequence
from random import Random  # noqa: TID251 - for its type; the dice come from the caller

from weir.model.errors import NotEnoughBookiesError
from weir.model.ids import BookieId
from weir.model.ledger import Quorum


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
