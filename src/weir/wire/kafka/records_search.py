"""Whether some bytes occur in the headers of a batch's records, found out at as little cost as may be.

Nothing decompressed is kept. Bytes that occur in a key or value are taken for a header's too: whoever asks looks
closer then.
"""

from collections.abc import Callable

from cramjam import DecompressionError, lz4, zstd

from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.wire.kafka.records import HEADER_BYTES, BatchHeader, Compression
from weir.wire.kafka.records_read import number, open_records

_INTO: dict[Compression, Callable[[Buffer, bytearray], int]] = {
    Compression.LZ4: lz4.decompress_into,
    Compression.ZSTD: zstd.decompress_into,
}
#: Most batches fit when decompressed; others are decompressed into memory of their own.
_ROOM_BYTES = 1024 * 1024
#: From this size of a record on it is faster to step over its value than to search it.
_LARGE_BYTES = 3 * 1024


class Searcher:
    """Room to decompress into is made once, and used again for each search."""

    def __init__(self) -> None:
        self._room = bytearray()

    def has(self, batch: bytes, header: BatchHeader, wanted: bytes) -> bool:
        """WireError if the records cannot be decompressed."""
        if header.compression is Compression.NONE:
            large = len(batch) >= header.records * _LARGE_BYTES
            if large and not _have_headers(batch, header.records):
                return False
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


def _have_headers(batch: bytes, records: int) -> bool:
    """Whether any record has a header, or is malformed."""
    at = HEADER_BYTES
    try:
        for _ in range(records):
            size, at = number(batch, at)
            end = at + size
            _, at = number(batch, at + 1)  # the time
            _, at = number(batch, at)  # the offset
            key, at = number(batch, at)
            value, at = number(batch, at + max(key, 0))
            at += max(value, 0)
            if batch[at] or at + 1 != end:
                return True
            at = end
    except (IndexError, WireError):
        return True
    return at != len(batch)
