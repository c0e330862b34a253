"""Columns of Arrow to record batches: what the sink writes, without one object per row.

Loops that write the bytes of Kafka's records from columns, and say which partition a key belongs to.

As in `kernels`, nothing is allocated in here. A row's part is where it begins in its column's bytes and how many
bytes it has, -1 for null.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.client.kafka.cluster import Partition
from weir.model.batch import Stamp
from weir.model.errors import ConfigError
from weir.model.messages import DELIVER_AT
from weir.spark.records.kernels import Bytes, Ints, bytes_of, compiled, inlined
from weir.wire.kafka.record_batch import TRANSACTIONAL, Compression, sealed

Out = NDArray[np.uint8] | Any

_SEED = 0x9747B28C
_MIX = 0x5BD1E995
_MASK = 0xFFFFFFFF


@inlined
def number_bytes(number: int) -> int:
    """How many bytes a zigzag number takes."""
    left = (number << 1) ^ (number >> 63)
    size = 1
    while left > 0x7F:
        left >>= 7
        size += 1
    return size


@inlined
def put_number(out: Out, at: int, number: int) -> int:
    """Write a zigzag number; the place after it."""
    left = (number << 1) ^ (number >> 63)
    while left > 0x7F:
        out[at] = (left & 0x7F) | 0x80
        left >>= 7
        at += 1
    out[at] = left
    return at + 1


@inlined
def put_part(out: Out, at: int, data: Bytes, start: int, size: int) -> int:
    """Write a sized part; the place after it."""
    at = put_number(out, at, size)
    if size > 0:
        source = data[start : start + size]
        target = out[at : at + size]
        for step in range(size):
            target[step] = source[step]
        at += size
    return at


@compiled
def measure(keys: Ints, values: Ints, headers: Ints, parts: Ints, bodies: Ints) -> None:
    """How many bytes each record has after its size, but for its deltas: those count from the first row of a
    batch, which is not known yet. `keys` and `values`: rows of (start, size); `headers`: rows of (first, end) in
    `parts`, whose rows are (name start, name size, value start, value size)."""
    for row in range(len(bodies)):
        size = 1
        for column in (keys, values):
            length = column[row, 1]
            size += number_bytes(length) + max(length, 0)
        first, end = headers[row, 0], headers[row, 1]
        size += number_bytes(end - first)
        for index in range(first, end):
            size += number_bytes(parts[index, 1]) + max(parts[index, 1], 0)
            size += number_bytes(parts[index, 3]) + max(parts[index, 3], 0)
        bodies[row] = size


@compiled
def write(  # noqa: PLR0917 (compiled functions take their arguments by position)
    rows: tuple[int, int],
    key_data: Bytes,
    keys: Ints,
    value_data: Bytes,
    values: Ints,
    times: Ints,
    name_data: Bytes,
    header_data: Bytes,
    headers: Ints,
    parts: Ints,
    bodies: Ints,
    out: Out,
) -> int:
    """Write the records of rows [first, end), offsets and times counted from the first; how many bytes they take.
    `bodies` is what `measure` found."""
    first, end = rows
    at = 0
    base = times[first]
    for row in range(first, end):
        time_delta, delta = times[row] - base, row - first
        at = put_number(out, at, bodies[row] + number_bytes(time_delta) + number_bytes(delta))
        out[at] = 0
        at = put_number(out, at + 1, time_delta)
        at = put_number(out, at, delta)
        at = put_part(out, at, key_data, keys[row, 0], keys[row, 1])
        at = put_part(out, at, value_data, values[row, 0], values[row, 1])
        at = put_number(out, at, headers[row, 1] - headers[row, 0])
        for index in range(headers[row, 0], headers[row, 1]):
            at = put_part(out, at, name_data, parts[index, 0], parts[index, 1])
            at = put_part(out, at, header_data, parts[index, 2], parts[index, 3])
    return at


@inlined
def murmur2(data: Bytes, start: int, size: int) -> int:
    """The hash by which Kafka's own clients spread keys."""
    found = (_SEED ^ size) & _MASK
    for block in range(size // 4):
        at = start + 4 * block
        word = (
            (data[at] & 0xFF)
            | ((data[at + 1] & 0xFF) << 8)
            | ((data[at + 2] & 0xFF) << 16)
            | ((data[at + 3] & 0xFF) << 24)
        )
        word = (word * _MIX) & _MASK
        word ^= word >> 24
        word = (word * _MIX) & _MASK
        found = ((found * _MIX) & _MASK) ^ word
    at = start + (size & ~3)
    left = size & 3
    if left == 3:
        found ^= (data[at + 2] & 0xFF) << 16
    if left >= 2:
        found ^= (data[at + 1] & 0xFF) << 8
    if left >= 1:
        found = ((found ^ (data[at] & 0xFF)) * _MIX) & _MASK
    found ^= found >> 13
    found = (found * _MIX) & _MASK
    return found ^ (found >> 15)


@compiled
def choose(data: Bytes, keys: Ints, partitions: int, chosen: Ints, spare: int) -> None:
    """The partition of each row that has none yet (-1): by its key, or `spare` if it has no key."""
    for row in range(len(chosen)):
        if chosen[row] < 0:
            if keys[row, 1] < 0:
                chosen[row] = spare
            else:
                chosen[row] = (murmur2(data, keys[row, 0], keys[row, 1]) & 0x7FFFFFFF) % partitions


#: Where a record's bytes go beyond key, value and headers: its size, and deltas of time and offset.
_AROUND_BYTES = 25
#: A batch ends with the record that reaches this, unless its first one does.
BATCH_BYTES = 512 * 1024
_MAX_RECORDS = 1 << 20


@dataclass(frozen=True, slots=True)
class Column:
    """Bytes, and where each row's begin and how many they are (-1: null)."""

    data: Bytes
    places: Ints


@dataclass(frozen=True, slots=True)
class Headers:
    """Each row's first and last header in `parts`; those say where names and values are."""

    names: Bytes
    values: Bytes
    rows: Ints
    parts: Ints


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one partition, ready to be written."""

    keys: Column
    values: Column
    times: Ints
    headers: Headers

    def __len__(self) -> int:
        return len(self.times)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The records of one batch, without their header: that needs a producer's sequence."""

    body: bytes
    count: int
    times: tuple[int, int]

    def seal(
        self,
        stamp: Stamp,
        compression: Compression,
        compress: Callable[[bytes], bytes] | None,
        attributes: int = TRANSACTIONAL,
    ) -> bytes:
        """The batch, as part of the stamped producer's transaction unless the attributes say otherwise."""
        return sealed(
            self.body if compress is None else compress(self.body),
            base_offset=0,
            attributes=attributes | compression,
            last_offset_delta=self.count - 1,
            times=self.times,
            stamp=stamp,
            records=self.count,
        )


def chunks(rows: Rows) -> Iterator[Chunk]:
    """The rows in their order, as batches of about BATCH_BYTES."""
    bodies: Ints = np.empty(len(rows), np.int64)
    headers = rows.headers
    measure(rows.keys.places, rows.values.places, headers.rows, headers.parts, bodies)
    ends = np.cumsum(bodies + _AROUND_BYTES)
    first = 0
    while first < len(rows):
        before = int(ends[first - 1]) if first else 0
        end = int(np.searchsorted(ends, before + BATCH_BYTES, side="right"))
        end = min(max(end, first + 1), first + _MAX_RECORDS)
        out: NDArray[np.uint8] = np.empty(int(ends[end - 1]) - before, np.uint8)
        size = write(
            (first, end),
            rows.keys.data,
            rows.keys.places,
            rows.values.data,
            rows.values.places,
            rows.times,
            headers.names,
            headers.values,
            headers.rows,
            headers.parts,
            bodies,
            out,
        )
        times = rows.times[first:end]
        yield Chunk(out[:size].tobytes(), end - first, (int(times[0]), int(times.max())))
        first = end


class Splitter:
    """Divides Arrow batches by topic and partition. `partitions` says how many a topic has."""

    def __init__(self, topic: str | None, partitions: Callable[[str], int], *, now_ms: Callable[[], int]) -> None:
        self._topic = topic
        self._partitions = partitions
        self._now_ms = now_ms
        self._turn = 0

    def split(self, batch: Any) -> Iterator[tuple[Partition, Rows]]:
        """Each partition's rows, in the order in which they came."""
        columns = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
        for topic, mine in self._by_topic(columns, len(batch)):
            keys = binary(mine.get("key"), len(mine["value"]))
            chosen = self._chosen(topic, mine.get("partition"), keys)
            present = np.unique(chosen)
            for index in present.tolist():
                if len(present) == 1:
                    part = mine
                else:
                    places = pa.array(np.flatnonzero(chosen == index))
                    part = {name: column.take(places) for name, column in mine.items()}
                yield Partition(topic, index), self._rows(part)

    def _by_topic(self, columns: Mapping[str, Any], size: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
        named = columns.get("topic")
        if named is None:
            if self._topic is None:
                raise ConfigError("rows have no topic", hint="give the option topic, or a column of that name")
            yield self._topic, columns
            return
        if self._topic is not None:  # the option wins, as in Spark's Kafka sink
            yield self._topic, columns
            return
        if named.null_count:
            raise ConfigError("a row's topic is null", hint="give every row one, or the option topic")
        for topic in pc.unique(named).to_pylist():
            mask = pc.equal(named, topic)
            yield topic, {name: column.filter(mask) for name, column in columns.items()}

    def _chosen(self, topic: str, given: Any, keys: Column) -> Ints:
        count = self._partitions(topic)
        rows = len(keys.places)
        chosen: Ints = np.full(rows, -1, np.int64)
        if given is not None:
            chosen[:] = pc.fill_null(given, -1).to_numpy(zero_copy_only=False)
            wrong = chosen[(chosen >= count) | (chosen < -1)]
            if len(wrong):
                raise ConfigError(f"{topic} has {count} partitions, and a row is for partition {wrong[0]}")
        self._turn += 1
        choose(keys.data, keys.places, count, chosen, self._turn % count)
        return chosen

    def _rows(self, columns: Mapping[str, Any]) -> Rows:
        values = columns["value"]
        size = len(values)
        times: Ints = np.full(size, self._now_ms(), np.int64)
        if "timestamp" in columns:
            given = milliseconds(columns["timestamp"])
            known = ~columns["timestamp"].is_null().to_numpy(zero_copy_only=False)
            times[known] = given[known]
        delays = columns.get("deliverAt")
        if delays is not None and delays.null_count == size:
            delays = None
        return Rows(
            binary(columns.get("key"), size),
            binary(values, size),
            times,
            headers_of(columns.get("headers"), delays, size),
        )


# --- columns as the loops want them ---


def milliseconds(column: Any) -> Ints:
    """A timestamp column since 1970; nulls are 0."""
    cast = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    found: Ints = pc.fill_null(cast, 0).to_numpy(zero_copy_only=False)
    return found


def binary(column: Any, size: int) -> Column:
    """A string or binary column; None stands for nulls all over."""
    if column is None or pa.types.is_null(column.type):
        places: Ints = np.zeros((size, 2), np.int64)
        places[:, 1] = -1
        return Column(bytes_of(b"\0"), places)
    column = column.cast(pa.binary())
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + size + 1].astype(np.int64)
    places = np.empty((size, 2), np.int64)
    places[:, 0] = ends[:-1]
    places[:, 1] = ends[1:] - ends[:-1]
    if column.null_count:
        places[column.is_null().to_numpy(zero_copy_only=False), 1] = -1
    return Column(bytes_of(data if data is not None and data.size else b"\0"), places)


def headers_of(column: Any, delays: Any, size: int) -> Headers:
    """The headers, and behind them when the row may be seen."""
    lists = _with_delays(column, delays, size)
    rows: Ints = np.zeros((size, 2), np.int64)
    if lists is None:
        return Headers(bytes_of(b"\0"), bytes_of(b"\0"), rows, np.zeros((0, 4), np.int64))
    ends = np.frombuffer(lists.buffers()[1], np.int32)[lists.offset : lists.offset + size + 1].astype(np.int64)
    rows[:, 0], rows[:, 1] = ends[:-1], ends[1:]
    if lists.null_count:
        rows[lists.is_null().to_numpy(zero_copy_only=False)] = 0
    flat = lists.values
    names, values = binary(flat.field(0), len(flat)), binary(flat.field(1), len(flat))
    if (names.places[:, 1] < 0).any():
        raise ConfigError("a header's key is null", hint="give every header one")
    return Headers(names.data, values.data, rows, np.hstack([names.places, values.places]))


def _with_delays(column: Any, delays: Any, size: int) -> Any:
    """A list column of headers, in which those of `deliverAt` come last; None if there is neither."""
    if delays is None:
        return None if column is None or pa.types.is_null(column.type) else column
    since_1970 = np.maximum(milliseconds(delays), 0)
    moments = pc.cast(pa.array(since_1970), pa.string()).cast(pa.binary())
    given = column.to_pylist() if column is not None and not pa.types.is_null(column.type) else [None] * size
    late = delays.is_valid().to_pylist()
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    # Rows that are to be delayed are held one by one by the broker anyway: here each may be an object.
    rows = [
        [*(headers or ()), {"key": DELIVER_AT.decode(), "value": moment}] if is_late else headers
        for headers, is_late, moment in zip(given, late, moments.to_pylist(), strict=True)
    ]
    return pa.array(rows, kind)
