"""CRC32C over any buffer, the one checksum that Weir stores and sends."""

from typing import cast

import crc32c as _crc32c

from weir.model.ids import Buffer


def crc32c(data: Buffer, seed: int = 0) -> int:
    """The checksum of `data`, continued from `seed`."""
    return cast(int, _crc32c.crc32c(data, seed))
