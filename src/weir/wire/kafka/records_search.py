"""Whether a record of a batch has a header of some name, found out at as little cost as may be.

Every batch that is produced is asked, so this is about bytes, not records. A header's name stands behind its
length, which is a byte that is rare in text: those bytes are looked for, and the name behind them. Where they are
frequent, as in binary values, all bytes are searched.
Nothing decompressed is kept. A name that occurs in a key or value is taken for a header's too: whoever asks looks
closer then.
"""

from collections.abc import Callable, Sequence
from typing import Any

from cramjam import DecompressionError, lz4, zstd

from weir.model.ids import Buffer
from weir.wire.kafka.records import HEADER_BYTES, BatchHeader, Compression
from weir.wire.kafka.records_build import zigzag
from weir.wire.kafka.records_read import open_records

_INTO: dict[Compression, Callable[[Buffer, bytearray], int]] = {
    Compression.LZ4: lz4.decompress_into,
    Compression.ZSTD: zstd.decompress_into,
}
#: Most batches fit when decompressed; others are decompressed into memory of their own.
_ROOM_BYTES = 1024 * 1024
#: So many places are looked at before all bytes are searched: it then costs little more than that.
_BYTES_PER_PLACE = 4096
_FEW_PLACES = 16


class Searcher:
    """Room to decompress into is made once, and used again for each search."""

    def __init__(self, beginning: bytes, names: Sequence[bytes]) -> None:
        """`beginning`: what all names begin with."""
        self._patterns = [zigzag(len(name)) + name for name in names]
        self._beginning = beginning
        self._pattern: Any = None
        self._room = bytearray()

    def has(self, batch: Buffer, header: BatchHeader) -> bool:
        """Whether any of the names is there. WireError if the records cannot be decompressed."""
        if not self._room:
            self._room = bytearray(_ROOM_BYTES)
        if header.compression is Compression.NONE:
            return self._is_in(self._searchable(batch), HEADER_BYTES, len(batch))
        into = _INTO.get(header.compression)
        if into is not None:
            try:
                size = into(memoryview(batch)[HEADER_BYTES:], self._room)
            except DecompressionError:
                pass  # there is too little room, or it is damaged: which of them is found out below
            else:
                return self._is_in(self._room, 0, size)
        opened = bytes(open_records(batch, header))
        return self._is_in(opened, 0, len(opened))

    def _searchable(self, batch: Buffer) -> bytes | bytearray:
        """A view cannot be searched; memory that is used again and again is the cheapest to copy to."""
        if not isinstance(batch, memoryview):
            return batch
        if len(batch) > len(self._room):
            return bytes(batch)
        memoryview(self._room)[: len(batch)] = batch  # to assign to the array itself would copy twice
        return self._room

    def _is_in(self, data: bytes | bytearray, start: int, end: int) -> bool:
        places = _FEW_PLACES + (end - start) // _BYTES_PER_PLACE
        for pattern in self._patterns:
            length = pattern[:1]
            at = data.find(length, start, end)
            while at >= 0:
                if data.startswith(pattern, at, end):
                    return True
                places -= 1
                if places < 0:
                    return self._is_deep_in(data, start, end)
                at = data.find(length, at + 1, end)
        return False

    def _is_deep_in(self, data: bytes | bytearray, start: int, end: int) -> bool:
        if self._pattern is None:
            import re2  # loaded when first needed: it takes its time

            # The fastest search that there is: by the first byte of what is looked for, as long as that is rare.
            self._pattern = re2.compile(self._beginning)
        return self._pattern.search(data, start, end) is not None
