"""The records of stored batches, decompressed one behind the other into memory that is used again and again.

Fresh memory costs more than decompressing into it, and so does joining the pieces.
"""

import numpy as np

from weir.model.errors import FrameTooLargeError
from weir.model.ids import Buffer
from weir.spark.source import kernels
from weir.spark.source.kernels import Ints
from weir.wire.entry import MAX_PAYLOAD_BYTES
from weir.wire.kafka.compression import decompress_into
from weir.wire.kafka.records import HEADER_BYTES, Compression

_COMPRESSION = 7
#: Room that is kept for the next batches; more is given back. Beyond it no further batch is opened in one go.
_KEPT_BYTES = 64 * 1024 * 1024
_LEAST_BYTES = 64 * 1024
#: Of the first room: records often shrink to less than a fifth.
_RATIO = 8


class Opener:
    """What it gave is overwritten by what it gives next."""

    def __init__(self) -> None:
        self._room = bytearray()

    def open(self, data: memoryview, batches: Ints) -> tuple[Buffer, Ints]:
        """Bytes with the records of the first of these batches, and where in them each begins and ends: of all of
        them, unless they are much when opened."""
        bounds = np.empty((len(batches), 2), np.int64)
        if not (batches[:, kernels.ATTRIBUTES] & _COMPRESSION).any():
            bounds[:, 0] = batches[:, kernels.AT] + HEADER_BYTES
            bounds[:, 1] = batches[:, kernels.AT] + batches[:, kernels.SIZE]
            return data, bounds
        if len(self._room) > _KEPT_BYTES:
            self._room = bytearray()
        at = 0
        for index, batch in enumerate(batches.tolist()):
            place = batch[kernels.AT]
            body = data[place + HEADER_BYTES : place + batch[kernels.SIZE]]
            end = at + self._add(Compression(batch[kernels.ATTRIBUTES] & _COMPRESSION), body, at)
            bounds[index] = at, end
            at = end
            if at > _KEPT_BYTES:
                return memoryview(self._room)[:at], bounds[: index + 1]
        return memoryview(self._room)[:at], bounds

    def _add(self, kind: Compression, body: memoryview, at: int) -> int:
        """Open one batch behind what is there already; its size."""
        while True:
            room = memoryview(self._room)[at : at + MAX_PAYLOAD_BYTES]
            size = decompress_into(kind, body, room)
            if size is not None:
                return size
            if len(room) == MAX_PAYLOAD_BYTES:
                raise FrameTooLargeError(f"records decompress to more than {MAX_PAYLOAD_BYTES} bytes")
            self._grow(at, len(body))

    def _grow(self, at: int, body: int) -> None:
        """There was too little room for so many compressed bytes. What lies before them stays."""
        more = max(2 * (len(self._room) - at), _RATIO * body, _LEAST_BYTES)
        grown = bytearray(max(at + min(more, MAX_PAYLOAD_BYTES), 2 * at))
        grown[:at] = memoryview(self._room)[:at]
        self._room = grown
