"""Long work in plain code, in steps: a generator that yields how much it has done wherever it may be interrupted.

What only computes cannot wait, and need not: whoever runs it decides whether others have their turn between two
steps (`weir.runtime.turns`), or that there is nobody to wait (`finish`).

An assertion that is always on: it guards promises, so `python -O` must not strip it.
"""

from collections.abc import Generator
from typing import TypeVar

from weir.model.errors import InvariantError

T = TypeVar("T")


def check(holds: bool, promise: str) -> None:
    """Stop here if an internal promise does not hold."""
    if not holds:
        raise InvariantError(promise)


def present(value: T | None, promise: str) -> T:
    """What an internal promise says is there."""
    if value is None:
        raise InvariantError(promise)
    return value


#: Yields units of work, one of some microseconds, and returns what the work was for.
Steps = Generator[int, None, T]


#: Messages that are dealt with between two places where work may be interrupted; each is about one unit.
STEP_MESSAGES = 256


def finish(steps: "Steps[T]") -> T:
    """The result of all steps, done at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
