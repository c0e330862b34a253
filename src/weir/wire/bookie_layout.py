"""What all frames of the bookie protocol share: the checksum over the fields, and entries behind them.

    length u32 | crc32c u32 | fields | entries, if the kind has them

A "body" is a frame without its length. The checksum covers the fields; entries carry their own. Everything here
that decodes raises a WireError and nothing else.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any

from weir.model.errors import ChecksumError, WireError
from weir.model.ids import NO_ENTRY, Buffer, EntryId, LedgerId
from weir.wire.checksum import crc32c
from weir.wire.entry import entry_key, entry_size

_PREFIX = Struct("<II")  # length of the frame, checksum of its fields
_CRC = Struct("<I")
CRC_BYTES = _CRC.size
_MAX_ID = 2**63 - 1


def frame(fields: bytes) -> bytes:
    """A frame of fields alone."""
    return _PREFIX.pack(CRC_BYTES + len(fields), crc32c(fields)) + fields


def frame_with_entries(fields: bytes, entries: Sequence[tuple[EntryId, Buffer]]) -> list[Buffer]:
    """A frame of fields and entries, as buffers to write one after the other: no entry is copied."""
    buffers: list[Buffer] = [data for _, data in entries]
    length = CRC_BYTES + len(fields) + sum(map(len, buffers))
    return [_PREFIX.pack(length, crc32c(fields)) + fields, *buffers]


def kind_of(body: Buffer) -> int:
    """The kind byte: the first of the fields."""
    if len(body) <= CRC_BYTES:
        raise WireError(f"a frame of {len(body)} bytes has no kind")
    return body[CRC_BYTES]


def fixed_fields(body: Buffer, layout: Struct) -> tuple[Any, ...]:
    """Fields of a fixed layout that fill the body."""
    if len(body) != CRC_BYTES + layout.size:
        raise WireError(f"a frame of {len(body)} bytes should have {CRC_BYTES + layout.size}")
    _check_crc(body, CRC_BYTES + layout.size)
    return layout.unpack_from(body, CRC_BYTES)


def fields_before_entries(body: Buffer, layout: Struct) -> tuple[Any, ...]:
    """Fields of a fixed layout with entries behind them."""
    if len(body) < CRC_BYTES + layout.size:
        raise WireError(f"a frame of {len(body)} bytes should have {CRC_BYTES + layout.size} at least")
    _check_crc(body, CRC_BYTES + layout.size)
    return layout.unpack_from(body, CRC_BYTES)


def fields_before_rest(body: Buffer, layout: Struct) -> tuple[tuple[Any, ...], memoryview]:
    """Fields of a fixed layout, and the variable rest of the body; the checksum covers both."""
    if len(body) < CRC_BYTES + layout.size:
        raise WireError(f"a frame of {len(body)} bytes should have {CRC_BYTES + layout.size} at least")
    _check_crc(body, len(body))
    return layout.unpack_from(body, CRC_BYTES), memoryview(body)[CRC_BYTES + layout.size :]


def split_entries(
    body: Buffer, layout: Struct, ledger_id: LedgerId, count: int
) -> list[tuple[EntryId, memoryview]]:
    """The entries behind the fields, as slices: exactly `count`, all of this ledger. Their checksums are left
    to whoever uses them."""
    view = memoryview(body)
    at, end = CRC_BYTES + layout.size, len(view)
    entries: list[tuple[EntryId, memoryview]] = []
    while at < end:
        start = at
        at += entry_size(view, at)
        owner, entry_id = entry_key(view, start)
        if at > end or owner != ledger_id or entry_id > _MAX_ID:
            raise WireError(f"entry {entry_id} of ledger {owner} does not belong in a frame of ledger {ledger_id}")
        entries.append((entry_id, view[start:at]))
    if len(entries) != count:
        raise WireError(f"a frame announces {count} entries and has {len(entries)}")
    return entries


def as_ledger(number: int) -> LedgerId:
    if number > _MAX_ID:
        raise WireError(f"{number} is no ledger id")
    return LedgerId(number)


def as_confirmed(number: int) -> EntryId:
    """A last-add-confirmed, which is NO_ENTRY for an empty ledger."""
    if number < NO_ENTRY:
        raise WireError(f"{number} is no entry id")
    return EntryId(number)


def as_text(data: Buffer) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as bad:
        raise WireError(f"a text is not UTF-8: {bad.reason}") from bad


def _check_crc(body: Buffer, end: int) -> None:
    if crc32c(memoryview(body)[CRC_BYTES:end]) != _CRC.unpack_from(body)[0]:
        raise ChecksumError("the checksum of a frame does not match")
