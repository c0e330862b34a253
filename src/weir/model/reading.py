"""What a bookie answers to a read."""

from typing import NamedTuple

from weir.model.ids import Buffer, EntryId


class ReadResult(NamedTuple):
    """Entries as stored (header and payload), in order, and the highest last-add-confirmed the bookie knows."""

    entries: list[tuple[EntryId, Buffer]]
    last_confirmed: EntryId
