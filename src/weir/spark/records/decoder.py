"""Stored record batches to Arrow, with the columns of Spark's Kafka source and no Python object per message.

The compiled loops of `kernels` find where everything is; keys and values are then copied once, into Arrow's own
buffers. Batches are opened and verified here, one call each.

The records of stored batches, decompressed one behind the other into memory that is used again and again.

Fresh memory costs more than decompressing into it, and so does joining the pieces.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.model.errors import ChecksumError, FrameTooLargeError, WireError
from weir.model.ids import Buffer
from weir.spark.records import kernels
from weir.spark.records.kernels import Ints
from weir.wire.checksum import crc32c
from weir.wire.entry import MAX_PAYLOAD_BYTES
from weir.wire.kafka.compression import decompress_into
from weir.wire.kafka.record_batch import (
    ATTRIBUTES_AT,
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    ORIGIN_MASK,
    ORIGIN_SHIFT,
    ORIGINS,
    TRANSACTIONAL,
    Compression,
    parse_header,
)

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


_FIELDS = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("timestampType", pa.int32()),
]
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_HEADER_LIST = pa.list_(pa.field("element", _HEADER))
#: What Spark expects of a batch, to the letter.
SCHEMA = pa.schema(_FIELDS)
SCHEMA_WITH_HEADERS = pa.schema([*_FIELDS, ("headers", _HEADER_LIST)])

#: What a later Weir knows and this one does not is null.
_PROTOCOLS = pa.array([*ORIGINS, None], pa.string())

#: Opened records that become one Arrow batch: enough to hide the cost of a batch, few enough to stay in a cache.
_PIECE_BYTES = 16 * 1024 * 1024
_US_PER_MS = 1000
#: The years 1 to 9999: neither SQL nor Python's dates know others. Microseconds that a client gave as milliseconds
#: are the last moment of them.
_LEAST_MS, _MOST_MS = -62_135_596_800_000, 253_402_300_799_999


class BatchTable:
    """The whole batches in the records of a fetch: their headers, read and in order."""

    def __init__(self, data: Buffer) -> None:
        self.data = memoryview(data)
        table = np.empty((len(self.data) // HEADER_BYTES + 1, kernels.BATCH_COLUMNS), np.int64)
        found, bad = kernels.scan_batches(kernels.bytes_of(self.data), table)
        if bad >= 0:
            parse_header(self.data[bad:])  # says what is wrong with it, usually
            raise WireError(f"the record batch at byte {bad} of a fetch is malformed")
        self.rows: Ints = table[:found]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def next_offset(self) -> int:
        """The offset after the last one; there must be a batch."""
        return int(self.rows[-1, kernels.BASE] + self.rows[-1, kernels.LAST_DELTA] + 1)


@dataclass(frozen=True, slots=True)
class Decoder:
    """Turns batches of one partition into Arrow."""

    topic: str
    partition: int
    headers: bool = False
    verify: bool = True
    #: A column more, the last: by which protocol each was written.
    protocol: bool = False
    opener: Opener = field(default_factory=Opener, repr=False)

    @property
    def schema(self) -> Any:
        found = SCHEMA_WITH_HEADERS if self.headers else SCHEMA
        return found.append(pa.field("protocol", pa.string())) if self.protocol else found

    def decode(self, table: BatchTable, first: int, end: int, chosen: NDArray[np.bool_]) -> Iterator[Any]:
        """Arrow batches of the records with offsets from `first` on and below `end`, of the chosen batches."""
        rows = table.rows
        base = rows[:, kernels.BASE]
        wanted = chosen & (base < end) & (base + rows[:, kernels.LAST_DELTA] >= first)
        for batches in _pieces(rows[wanted]):
            if self.verify:
                for batch in batches.tolist():
                    _verify(table.data, batch)
            while len(batches):
                data, bounds = self.opener.open(table.data, batches)
                found = self._records(data, bounds, batches[: len(bounds)], first, end)
                batches = batches[len(bounds) :]
                if found.num_rows:
                    yield found

    def _records(self, data: Buffer, bounds: Ints, batches: Ints, first: int, end: int) -> Any:
        view = kernels.bytes_of(data)
        counts = batches[:, kernels.RECORDS]
        # A header may claim what it likes; there is room for what its bytes can hold.
        if (counts > (bounds[:, 1] - bounds[:, 0]) // kernels.LEAST_RECORD_BYTES).any():
            raise WireError(f"{self._where(batches[0])} claims more records than it has bytes for")
        records = np.empty((kernels.RECORD_COLUMNS, int(counts.sum())), np.int64)
        taken = np.empty(len(batches), np.int64)
        count, bad = kernels.scan_records(view, batches, bounds, (first, end), records, taken)
        if bad >= 0:
            raise WireError(f"{self._where(batches[bad])} is malformed")
        append_time = (batches[:, kernels.ATTRIBUTES] & LOG_APPEND_TIME) != 0
        origins = np.minimum((batches[:, kernels.ATTRIBUTES] >> ORIGIN_SHIFT) & ORIGIN_MASK, len(ORIGINS))
        time_types = np.repeat(append_time.astype(np.int32), taken)
        return self._arrow(view, records[:, :count], time_types, np.repeat(origins, taken))

    def _arrow(self, view: Any, records: Ints, time_types: NDArray[np.int32], origins: Ints) -> Any:
        count = records.shape[1]
        times = np.clip(records[kernels.TIME], _LEAST_MS, _MOST_MS) * _US_PER_MS
        arrays = [
            binary_array(pa.binary(), view, records[kernels.KEY_AT], records[kernels.KEY_SIZE]),
            binary_array(pa.binary(), view, records[kernels.VALUE_AT], records[kernels.VALUE_SIZE]),
            _repeated(self.topic.encode(), count),
            _numbers(pa.int32(), np.full(count, self.partition, np.int32)),
            _numbers(pa.int64(), records[kernels.OFFSET].copy()),
            _numbers(SCHEMA.field("timestamp").type, times),
            _numbers(pa.int32(), time_types),
        ]
        if self.headers:
            arrays.append(_headers(view, records[kernels.HEADERS_AT], records[kernels.HEADERS]))
        if self.protocol:
            arrays.append(_PROTOCOLS.take(pa.array(origins)))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _where(self, batch: Ints) -> str:
        return f"the record batch at offset {batch[kernels.BASE]} of {self.topic}-{self.partition}"


def all_of(table: BatchTable) -> NDArray[np.bool_]:
    """Every batch but the markers of transactions: what one reads who does not ask how transactions ended."""
    plain: NDArray[np.bool_] = (table.rows[:, kernels.ATTRIBUTES] & CONTROL) == 0
    return plain


def committed_of(table: BatchTable, aborted: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Every batch that is no marker and not of an aborted transaction.

    `aborted` has the producer and the first offset of each, as the broker told with the records.
    """
    chosen = all_of(table)
    waiting = sorted(aborted, key=lambda one: one[1], reverse=True)
    ended: set[int] = set()
    if not waiting:
        return chosen
    transactional = np.flatnonzero(table.rows[:, kernels.ATTRIBUTES] & TRANSACTIONAL)
    for index in transactional.tolist():
        batch = table.rows[index].tolist()
        producer = batch[kernels.PRODUCER]
        while waiting and waiting[-1][1] <= batch[kernels.BASE] + batch[kernels.LAST_DELTA]:
            ended.add(waiting.pop()[0])
        if producer in ended:
            chosen[index] = False
            if batch[kernels.ATTRIBUTES] & CONTROL:  # the marker: what follows is of another transaction
                ended.discard(producer)
    return chosen


def _pieces(batches: Ints) -> Iterator[Ints]:
    """Runs of batches that together are not much larger than a piece."""
    if not len(batches):
        return
    # Compressed ones are taken to be four times as large when opened; what matters is the order of magnitude.
    weight = np.where(batches[:, kernels.ATTRIBUTES] & 7, 4, 1)
    run = np.cumsum(batches[:, kernels.SIZE] * weight) // _PIECE_BYTES
    edges = np.flatnonzero(np.diff(run)) + 1
    yield from np.split(batches, edges)


def _verify(data: memoryview, batch: list[int]) -> None:
    at = batch[kernels.AT]
    if crc32c(data[at + ATTRIBUTES_AT : at + batch[kernels.SIZE]]) != batch[kernels.CHECKSUM]:
        raise ChecksumError(
            f"the record batch at offset {batch[kernels.BASE]} is damaged: its checksum does not hold"
        )


def _numbers(kind: Any, values: NDArray[Any]) -> Any:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def binary_array(kind: Any, view: Any, starts: Ints, sizes: Ints) -> Any:
    """An array of parts of `view`; a size of -1 is a null."""
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(np.maximum(sizes, 0), out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    kernels.copy_parts(view, starts, sizes, data)
    there = sizes >= 0
    valid = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(kind, len(sizes), [valid, pa.py_buffer(offsets), pa.py_buffer(data)])


def _repeated(text: bytes, count: int) -> Any:
    offsets = np.arange(count + 1, dtype=np.int32) * len(text)
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(text * count)]
    )


def _headers(view: Any, starts: Ints, counts: Ints) -> Any:
    """The headers of each record; null where there are none, as in Spark's Kafka source."""
    found = np.empty((4, int(counts.sum())), np.int64)
    kernels.scan_headers(view, starts, counts, found)
    names = binary_array(pa.binary(), view, found[0], found[1])
    values = binary_array(pa.binary(), view, found[2], found[3])
    pairs = pa.StructArray.from_arrays([_text(names), values], fields=list(_HEADER))
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    there = counts > 0
    valid = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(_HEADER_LIST, len(counts), [valid, pa.py_buffer(offsets)], children=[pairs])


def _text(names: Any) -> Any:
    """Names as text. They should be UTF-8; where one is not, those bytes are replaced."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())
