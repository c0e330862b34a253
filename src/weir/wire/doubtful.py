"""Ledgers of which a bookie may have lost a part, as bytes: crc32c u32 | ledger u64 ..."""

from collections.abc import Iterable
from struct import Struct

from weir.model.errors import ChecksumError, WireError
from weir.model.ids import Buffer, LedgerId
from weir.wire.checksum import crc32c
from weir.wire.journal import decode_ledgers, encode_ledgers

_CRC = Struct("<I")


def encode_doubtful(ledgers: Iterable[LedgerId]) -> bytes:
    body = encode_ledgers(sorted(ledgers))
    return _CRC.pack(crc32c(body)) + body


def decode_doubtful(data: Buffer) -> list[LedgerId]:
    if len(data) < _CRC.size:
        raise WireError(f"a list of ledgers in doubt in {len(data)} bytes")
    body = memoryview(data)[_CRC.size :]
    if crc32c(body) != _CRC.unpack_from(data)[0]:
        raise ChecksumError("checksum of the ledgers in doubt does not match")
    return decode_ledgers(body)
