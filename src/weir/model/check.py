"""An assertion that is always on: it guards promises, so `python -O` must not strip it."""

from weir.model.errors import InvariantError


def check(holds: bool, promise: str) -> None:
    """Stop here if an internal promise does not hold."""
    if not holds:
        raise InvariantError(promise)
