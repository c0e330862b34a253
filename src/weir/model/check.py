"""An assertion that is always on: it guards promises, so `python -O` must not strip it."""

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
