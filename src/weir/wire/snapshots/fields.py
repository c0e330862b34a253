"""What all stored records are read with: reads that end where the bytes do, JSON whose fields are checked."""

import json
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, TypeVar

from pyroaring import BitMap64

from weir.model.errors import InvalidNameError, UnknownVersionError, WireError
from weir.model.topics import TopicName

T = TypeVar("T")

MAX_INT64 = (1 << 63) - 1
_HINT = "written by a newer Weir? upgrade this one"


def check_version(version: object, newest: int, what: str) -> None:
    """UnknownVersionError unless it is one that this Weir knows."""
    if type(version) is not int or not 1 <= version <= newest:
        raise UnknownVersionError(f"{what} has version {version!r}", hint=_HINT)


class Reader:
    """Reads a record from its beginning on, never beyond its end. `what` it is, for the error."""

    __slots__ = ("_data", "_place", "_what")

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._place = 0
        self._what = what

    @property
    def left(self) -> int:
        """Bytes that are not read yet."""
        return len(self._data) - self._place

    def take(self, layout: Struct) -> tuple[Any, ...]:
        """The next fields."""
        if layout.size > self.left:
            raise WireError(f"{self._what} ends too early")
        found = layout.unpack_from(self._data, self._place)
        self._place += layout.size
        return found

    def bitmap(self, size: int | None = None) -> BitMap64:
        """A bitmap of so many bytes; of all that are left if it is not said how many."""
        size = self.left if size is None else size
        if size > self.left:
            raise WireError(f"{self._what} ends within a bitmap")
        end = self._place + size
        try:
            found = BitMap64.deserialize(self._data[self._place : end])
        except (ValueError, IndexError, MemoryError, OverflowError) as bad:
            raise WireError(f"a bitmap of {self._what} is malformed: {bad}") from bad
        self._place = end
        return found

    def text(self) -> str:
        """All that is left."""
        try:
            found = self._data[self._place :].decode()
        except UnicodeDecodeError as bad:
            raise WireError(f"{self._what} has a malformed text: {bad}") from bad
        self._place = len(self._data)
        return found

    def version(self, version: int, newest: int) -> None:
        check_version(version, newest, self._what)

    def require(self, holds: bool) -> None:
        """WireError unless the fields make sense."""
        if not holds:
            raise WireError(f"{self._what} is malformed")

    def end(self) -> None:
        """Nothing may be left."""
        if self.left:
            raise WireError(f"{self._what} has {self.left} bytes too many")


# --- JSON --------------------------------------------------------------------------------------------------------


def dump(fields: object) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def load(data: bytes, what: str, build: Callable[[Any], T]) -> T:
    """What `build` makes of the JSON; whatever it stumbles over is a WireError."""
    try:
        return build(json.loads(data))
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
        InvalidNameError,
    ) as bad:
        raise WireError(f"{what} is malformed: {bad!r}") from bad


def text(item: object) -> str:
    """A text that can be written again."""
    if not isinstance(item, str):
        raise TypeError(f"{type(item).__name__} instead of text")
    item.encode()
    return item


def whole(item: object, least: int = -MAX_INT64 - 1) -> int:
    """A number of 64 bits, not below the least."""
    if type(item) is not int:
        raise TypeError(f"{type(item).__name__} instead of a whole number")
    if not least <= item <= MAX_INT64:
        raise ValueError(f"{item} is out of range")
    return item


def seconds(item: object) -> float:
    if type(item) not in (int, float) or not 0 <= item < float("inf"):  # type: ignore[operator]
        raise ValueError(f"{item!r} is no duration")
    return float(item)  # type: ignore[arg-type]


def numbered(items: Mapping[str, Any]) -> list[tuple[int, Any]]:
    """The items of an object whose keys are numbers."""
    return [(whole(int(key)), item) for key, item in items.items()]


def topic(item: object) -> TopicName:
    return TopicName.parse(text(item))


def each(items: object) -> list[Any]:
    if not isinstance(items, list):
        raise TypeError(f"{type(items).__name__} instead of a list")
    return items
