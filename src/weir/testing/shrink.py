"""The shortest sub-history that a checker still rejects with the same sentence.

Checkers are pure, so this is plain delta debugging over a list of operations: leave out ever smaller chunks,
keep what still fails. The sentence has to stay the same to the letter: leaving an operation out may make
innocent ones look guilty (a read whose append is gone), and such a new violation is not the one found.
"""

from collections.abc import Sequence

from weir.testing.checkers import CHECKERS, Checker, Violation, check_history
from weir.testing.history import Op


def shrink(ops: Sequence[Op], violation: Violation) -> tuple[Op, ...]:
    """The fewest operations (none of them can be left out alone) that still break the promise in the same way."""
    checker = _who_said(ops, violation)
    kept = list(ops)
    chunk = max(1, len(kept) // 2)
    while True:
        shorter = _without_chunks(kept, chunk, checker, violation)
        if chunk == 1 and len(shorter) == len(kept):
            return tuple(kept)
        kept = shorter
        chunk = max(1, min(chunk // 2, len(kept) // 2))


def _without_chunks(ops: list[Op], chunk: int, checker: Checker, violation: Violation) -> list[Op]:
    """One pass: every chunk that is not needed is gone."""
    kept = ops
    start = 0
    while start < len(kept):
        shorter = kept[:start] + kept[start + chunk :]
        if _says(checker, shorter, violation):
            kept = shorter
        else:
            start += chunk
    return kept


def _who_said(ops: Sequence[Op], violation: Violation) -> Checker:
    for checker in CHECKERS:
        if _says(checker, ops, violation):
            return checker
    raise ValueError(f"no checker says of this history: {violation}")


def _says(checker: Checker, ops: Sequence[Op], violation: Violation) -> bool:
    return any(
        found.promise == violation.promise and found.sentence == violation.sentence
        for found in check_history(ops, (checker,))
    )
