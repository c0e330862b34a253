"""Whether some bytes occur in a batch's records, without keeping what is decompressed for it."""

from collections.abc import Callable

from cramjam import DecompressionError, lz4, zstd

from weir.model.ids import Buffer
from weir.wire.kafka.records import HEADER_BYTES, BatchHeader, Compression
from weir.wire.kafka.records_read import open_records

_INTO: dict[Compression, Callable[[Buffer, bytearray], int]] = {
    Compression.LZ4: lz4.decompress_into,
    Compression.ZSTD: zstd.decompress_into,
}
#: Most batches fit when decompressed; others are decompressed into memory of their own.
_ROOM_BYTES = 1024 * 1024


class Searcher:
    """Room to decompress into is made once, and used again for each search."""

    def __init__(self) -> None:
        self._room = bytearray()

    def has(self, batch: bytes, header: BatchHeader, wanted: bytes) -> bool:
        """WireError if the records cannot be decompressed."""
        if header.compression is Compression.NONE:
            return batch.find(wanted, HEADER_BYTES) >= 0
        into = _INTO.get(header.compression)
        if into is not None:
            if not self._room:
                self._room = bytearray(_ROOM_BYTES)
            try:
                size = into(memoryview(batch)[HEADER_BYTES:], self._room)
            except DecompressionError:
                pass  # there is too little room, or it is damaged: which of them is found out below
            else:
                return self._room.find(wanted, 0, size) >= 0
        return wanted in bytes(open_records(batch, header))
