"""A ledger entry as bytes: a fixed header, then the payload as it came.

The header says whose entry it is and how long, so that an entry describes itself wherever it lies: in a
journal record, in an entry log, in a frame. The checksum covers everything after it, is made once by the
writer, and is checked by whoever reads the bytes back: bookie, reader, offline tool.

    crc32c u32 | payload length u32 | ledger u64 | entry u64 | last confirmed i64 | ledger length u64 | payload
"""

from struct import Struct
from typing import NamedTuple

from weir.model.errors import ChecksumError, FrameTooLargeError, WireError
from weir.model.ids import Buffer, EntryId, LedgerId
from weir.wire.checksum import crc32c

_HEADER = Struct("<IIQQqQ")
_COVERED = Struct("<IQQqQ")
_LENGTH = Struct("<I")
_KEY = Struct("<QQ")
_CRC_BYTES = 4

HEADER_BYTES = _HEADER.size
#: The largest message that Weir can be configured to accept, as RabbitMQ 3.x does.
MAX_MESSAGE_BYTES = 128 * 1024 * 1024
#: No entry's payload may be larger: a frame, a journal record and a cache slot are bounded by it. It has space for
#: the largest message with its properties.
MAX_PAYLOAD_BYTES = MAX_MESSAGE_BYTES + 1024 * 1024
#: A compressed batch may have so many times the bytes of the largest message when it is opened, and at least
#: so many bytes: what was stored under a higher limit stays readable.
_OPENED_PER_MESSAGE_BYTE = 4
_MIN_OPENED_BYTES = 64 * 1024 * 1024


class OpenedLimit:
    """Bytes that a compressed batch may have when it is opened. One for the process: batches are opened at the
    bottom of all protocols. A broker sets it by its largest message; readers elsewhere open whatever is stored."""

    def __init__(self) -> None:
        self.max_bytes = MAX_PAYLOAD_BYTES

    def follow(self, message_bytes: int) -> None:
        """Set the limit for a broker that accepts messages of so many bytes."""
        self.max_bytes = min(MAX_PAYLOAD_BYTES, max(_MIN_OPENED_BYTES, _OPENED_PER_MESSAGE_BYTE * message_bytes))


OPENED = OpenedLimit()


class Entry(NamedTuple):
    """An entry, decoded. `ledger_length` counts the payload bytes of the ledger up to and with this entry."""

    ledger_id: LedgerId
    entry_id: EntryId
    last_confirmed: EntryId
    ledger_length: int
    payload: memoryview


def encode_entry(  # noqa: PLR0917 - called once per entry, by position
    ledger_id: int, entry_id: int, last_confirmed: int, ledger_length: int, payload: Buffer, head: bytes = b""
) -> bytes:
    """The entry's bytes; the payload is copied once. `head` is what the payload begins with, where that does not
    lie together."""
    covered = _COVERED.pack(len(head) + len(payload), ledger_id, entry_id, last_confirmed, ledger_length) + head
    crc = crc32c(payload, crc32c(covered))
    return b"".join((_LENGTH.pack(crc), covered, payload))


def entry_size(data: Buffer, offset: int = 0) -> int:
    """How many bytes the entry at `offset` takes, header included; a WireError if that cannot be."""
    if len(data) - offset < HEADER_BYTES:
        raise WireError(f"an entry needs {HEADER_BYTES} bytes of header, {len(data) - offset} are left")
    length: int = _LENGTH.unpack_from(data, offset + _CRC_BYTES)[0]
    if length > MAX_PAYLOAD_BYTES:
        raise FrameTooLargeError(f"an entry announces {length} bytes, the limit is {MAX_PAYLOAD_BYTES}")
    return HEADER_BYTES + length


def entry_key(data: Buffer, offset: int = 0) -> tuple[LedgerId, EntryId]:
    """Ledger and entry id of the entry at `offset`, not verified."""
    ledger_id, entry_id = _KEY.unpack_from(data, offset + 8)
    return LedgerId(ledger_id), EntryId(entry_id)


def verify_entry(data: Buffer) -> None:
    """Raise a ChecksumError or WireError unless `data` is exactly one whole entry."""
    size = entry_size(data)
    if size != len(data):
        raise WireError(f"an entry of {size} bytes lies in {len(data)} bytes")
    if crc32c(memoryview(data)[_CRC_BYTES:]) != _LENGTH.unpack_from(data)[0]:
        raise ChecksumError(f"checksum of entry {entry_key(data)} does not match")


def decode_entry(data: Buffer) -> Entry:
    """The entry in `data`, verified; its payload is a slice, not a copy."""
    verify_entry(data)
    _, _, ledger_id, entry_id, last_confirmed, ledger_length = _HEADER.unpack_from(data)
    return Entry(
        LedgerId(ledger_id),
        EntryId(entry_id),
        EntryId(last_confirmed),
        ledger_length,
        memoryview(data)[HEADER_BYTES:],
    )


#: What the payload of an entry begins with that stands for a lost one; random, so that nobody else's does.
_LOST = bytes.fromhex("9e5c1f0ad24b4e77a3b80c61f29d7e14")


def encode_lost_entry(ledger_id: int, entry_id: int, last_confirmed: int, why: str) -> bytes:
    """An entry that keeps the place of one whose bytes are gone for good: whole as far as files go, and told as
    lost to whoever reads it. Made by `weir salvage` alone."""
    return encode_entry(ledger_id, entry_id, last_confirmed, 0, _LOST + why.encode())


def lost_entry(data: Buffer) -> str | None:
    """Why the entry is lost, if it only keeps the place of one that is; None for any other."""
    if data[HEADER_BYTES : HEADER_BYTES + len(_LOST)] != _LOST:
        return None
    return bytes(data[HEADER_BYTES + len(_LOST) :]).decode(errors="replace")


def last_confirmed_of(data: Buffer) -> EntryId:
    """The last-add-confirmed that rides on the entry, not verified."""
    return EntryId(_HEADER.unpack_from(data)[4])
