"""Who takes the place of a failed bookie in an ensemble."""

from collections.abc import Sequence

from weir.ledger.context import LedgerContext
from weir.ledger.placement import choose_replacement
from weir.ledger.window import Slot
from weir.model.ids import BookieId
from weir.model.ledger import Quorum


def plan_change(slots: Sequence[Slot], quorum: Quorum, context: LedgerContext) -> dict[int, BookieId]:
    """For each failed slot, as far as possible, who fills it from now on: another bookie that takes entries, or,
    if there is none, the same one once its quarantine is over. Empty if nobody can be found."""
    failed = [slot.index for slot in slots if slot.failure is not None]
    return replacements([slot.bookie_id for slot in slots], failed, quorum, context)


def replacements(
    ensemble: Sequence[BookieId], failed: Sequence[int], quorum: Quorum, context: LedgerContext
) -> dict[int, BookieId]:
    """For each failed place of the ensemble, as far as possible, who fills it from now on."""
    writable = [b for b in context.directory.writable() if not context.quarantine.holds(b)]
    racks = context.directory.racks()
    changed = list(ensemble)
    plan: dict[int, BookieId] = {}
    for slot in failed:
        others = [b for b in writable if b not in ensemble and b not in changed]
        chosen = choose_replacement(racks, others, changed, slot, quorum, rng=context.runtime.rng)
        if chosen is None and ensemble[slot] in writable:
            chosen = ensemble[slot]
        if chosen is not None:
            plan[slot] = changed[slot] = chosen
    return plan
