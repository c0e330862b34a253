"""What a checker is: a promise as a pure function from a history to the places where it is broken.

A violation comes with a sentence for people and the operations that prove it. Sentences name only the facts in
conflict, so that the same violation keeps its sentence while the shrinker leaves unrelated operations out
(`weir.testing.shrink`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from weir.testing.operations import AnyOp, Operation

#: Broken by whatever a scenario cannot explain by a fault.
BUG = "the code keeps the promises that it makes to itself"
AVAILABLE = "after all faults are healed, everything is available again"


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that a history breaks, and where."""

    promise: str
    sentence: str
    evidence: tuple[Operation, ...]

    def __str__(self) -> str:
        return f"{self.promise}: {self.sentence}"


#: Of any operations: each scenario's checkers say which.
Checker = Callable[[Sequence[Any]], list[Violation]]


def violations_of(ops: Sequence[AnyOp], checkers: Iterable[Checker]) -> list[Violation]:
    """Every place where a history breaks a promise of these checkers."""
    return [violation for checker in checkers for violation in checker(ops)]
