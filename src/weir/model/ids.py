"""Values made once per message: frozen for the type checker, which costs nothing when one is made.

A frozen dataclass sets each field through `object.__setattr__`; making the four values that a message passes
through took an eighth of a broker's time. All other values are frozen by the interpreter too.

The identifiers that every layer speaks.
"""

from dataclasses import dataclass
from typing import NewType, TypeVar, dataclass_transform

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
BookieId = NewType("BookieId", str)

#: The entry id "before the first": the last-add-confirmed of an empty ledger.
NO_ENTRY = EntryId(-1)

Buffer = bytes | bytearray | memoryview

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """A slotted dataclass with equality and hash by its fields; to assign to one of them is a type error."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
