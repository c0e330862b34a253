"""Fields of values in the metadata store, looked at before they are taken; TypeError for anything else."""

from collections.abc import Callable
from typing import Any, TypeVar

from weir.model.errors import InvalidNameError, NotAllowedError, WireError
from weir.wire.metadata import load_fields

T = TypeVar("T")

_BAD = (KeyError, ValueError, TypeError, AttributeError, OverflowError, InvalidNameError, NotAllowedError)


def decode(data: bytes, what: str, build: Callable[[dict[str, Any]], T]) -> T:
    """What is built of the fields; WireError if it cannot be."""
    found = load_fields(data, what)
    try:
        return build(found)
    except _BAD as bad:
        raise WireError(f"{what} is malformed: {bad!r}") from bad


def text(item: object) -> str:
    if not isinstance(item, str):
        raise TypeError(f"{type(item).__name__} instead of text")
    return item


def number(item: object) -> int:
    if not isinstance(item, int) or isinstance(item, bool):
        raise TypeError(f"{type(item).__name__} instead of a whole number")
    return item


def flag(item: object) -> bool:
    if not isinstance(item, bool):
        raise TypeError(f"{type(item).__name__} instead of a flag")
    return item


def each(items: object) -> list[Any]:
    if not isinstance(items, list):
        raise TypeError(f"{type(items).__name__} instead of a list")
    return items


def optional_text(item: object) -> str | None:
    return None if item is None else text(item)


def optional_number(item: object) -> int | None:
    return None if item is None else number(item)
