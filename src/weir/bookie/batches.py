"""Entries as they come: checked, and owned by the bookie from then on."""

from collections.abc import Sequence
from struct import Struct

from weir.bookie.cache import Batch
from weir.model.errors import EntryCorruptError
from weir.model.ids import NO_ENTRY, Buffer, EntryId, LedgerId
from weir.wire.checksum import crc32c
from weir.wire.entry import HEADER_BYTES, MAX_PAYLOAD_BYTES

#: The entry header (`weir.wire.entry`) up to the last-add-confirmed.
_ENTRY = Struct("<IIQQq")


def checked_batch(ledger_id: LedgerId, entries: Sequence[tuple[EntryId, Buffer]]) -> Batch:
    """The entries as a batch that owns its bytes; EntryCorruptError if one is not what it is said to be. What is
    journaled is whole: damage on the way here is found here, while the writer still has the entry."""
    owned: list[tuple[EntryId, Buffer]] = []
    total, highest, last = 0, NO_ENTRY, NO_ENTRY
    unpack = _ENTRY.unpack_from
    for entry_id, data in entries:
        if type(data) is not bytes:
            data = _owned(data)
        size = len(data)
        if size < HEADER_BYTES or size > HEADER_BYTES + MAX_PAYLOAD_BYTES:
            raise EntryCorruptError(f"entry {entry_id} of ledger {ledger_id} has {size} bytes")
        crc, length, owner, number, confirmed = unpack(data)
        if owner != ledger_id or number != entry_id or length != size - HEADER_BYTES:
            raise EntryCorruptError(f"entry {number} of ledger {owner} came as entry {entry_id} of {ledger_id}")
        if crc32c(memoryview(data)[4:]) != crc:
            raise EntryCorruptError(f"entry {entry_id} of ledger {ledger_id} came damaged")
        if confirmed > highest:  # noqa: PLR1730 - a call per entry would cost more than all the rest
            highest = confirmed
        if entry_id > last:  # noqa: PLR1730
            last = entry_id
        total += size
        owned.append((entry_id, data))
    return Batch(ledger_id, owned, total, highest, last)


def _owned(data: Buffer) -> Buffer:
    """Bytes that are worth keeping in the write cache: a small slice must not keep a large buffer alive."""
    if isinstance(data, memoryview) and 2 * data.nbytes >= memoryview(data.obj).nbytes:
        return data
    return bytes(data)
