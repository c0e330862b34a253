"""The shortest sub-history that a checker still rejects with the same sentence.

Checkers are pure, so this is plain delta debugging over a list of operations: leave out ever smaller chunks,
keep what still fails. The sentence has to stay the same to the letter: leaving an operation out may make
innocent ones look guilty (a read whose append is gone), and such a new violation is not the one found.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from weir.testing.checking import Checker, Violation
from weir.testing.operations import AnyOp

T = TypeVar("T")


def shrink(ops: Sequence[AnyOp], violation: Violation, checkers: Iterable[Checker]) -> tuple[AnyOp, ...]:
    """The fewest operations (none of them can be left out alone) that still break the promise in the same way, by
    the word of whichever of these checkers said so."""
    chosen = next((checker for checker in checkers if _says(checker, ops, violation)), None)
    if chosen is None:
        raise ValueError(f"no checker says of this history: {violation}")
    return shortest(ops, lambda kept: _says(chosen, kept, violation))


def _says(checker: Checker, ops: Sequence[AnyOp], violation: Violation) -> bool:
    wanted = (violation.promise, violation.sentence)
    return wanted in [(found.promise, found.sentence) for found in checker(ops)]


def shortest(ops: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> tuple[T, ...]:
    """Leave out ever smaller chunks as long as what is left still fails."""
    kept = list(ops)
    chunk = max(1, len(kept) // 2)
    while True:
        shorter = _without_chunks(kept, chunk, fails)
        if chunk == 1 and len(shorter) == len(kept):
            return tuple(kept)
        kept = shorter
        chunk = max(1, min(chunk // 2, len(kept) // 2))


def _without_chunks(ops: list[T], chunk: int, fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """One pass: every chunk that is not needed is gone."""
    kept = ops
    start = 0
    while start < len(kept):
        shorter = kept[:start] + kept[start + chunk :]
        if fails(shorter):
            kept = shorter
        else:
            start += chunk
    return kept
