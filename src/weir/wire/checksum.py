"""CRC32C over any buffer, the one checksum that Weir stores and sends."""

from crc32c import crc32c

__all__ = ["crc32c"]
