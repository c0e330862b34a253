"""CRC32C over any buffer, the one checksum that Weir stores and sends."""

from fastcrc.crc32 import iscsi as crc32c

__all__ = ["crc32c"]
