"""Columns of Arrow to record batches: what the sink writes, without one object per row."""

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
from weir.model.message import DELIVER_AT
from weir.spark.sink.kernels import choose, measure, write
from weir.spark.source.kernels import Bytes, Ints, bytes_of
from weir.wire.kafka.records import TRANSACTIONAL, Compression, sealed

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
