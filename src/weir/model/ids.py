"""The identifiers that every layer speaks."""

from typing import NewType

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
BookieId = NewType("BookieId", str)

#: The entry id "before the first": the last-add-confirmed of an empty ledger.
NO_ENTRY = EntryId(-1)

Buffer = bytes | bytearray | memoryview
