"""The columns of a topic's table, and Arrow batches made to have exactly those.

Parquet files of a table: written in row groups of a good size, read one row group at a time, and described.

Rows of several files in the order of their offsets, of which no more is in memory than a row group of each file
that is being read: values may be large, and files of days overlap where producers give times as they like.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import parquet_file_to_data_file, parquet_path_to_id_mapping
from pyiceberg.types import DateType, TimestampType, TimestamptzType
from pyspark.sql.pandas.types import to_arrow_type

from weir.spark.columns import RAW_KEY, RAW_VALUE
from weir.spark.records.decoder import SCHEMA_WITH_HEADERS
from weir.spark.values.typed import ValueSchema

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata


#: The bytes of values that are not as the schema says; their `value` is null.
CORRUPT = "corrupt"
#: Types that may become wider, as Iceberg has it and a cast does without loss.
_WIDER = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
    pa.string(): (pa.large_string(),),
    pa.binary(): (pa.large_binary(),),
}


def topic_schema(values: ValueSchema | None) -> Any:
    """What a topic with such values has as a table: the columns of `format("weir")` without `topic`, the
    producer's protocol, and where values are typed the bytes of those that do not fit, and of all: what is
    replayed is what was sent."""
    fields = [field for field in SCHEMA_WITH_HEADERS if field.name != "topic"]
    if values is not None:
        fields[1] = pa.field("value", to_arrow_type(values.type, timezone="UTC"))
        if values.key_type is not None:
            fields[0] = pa.field("key", to_arrow_type(values.key_type, timezone="UTC"))
    fields.append(pa.field("protocol", pa.string()))
    if values is not None:
        fields.append(pa.field(CORRUPT, pa.binary()))
        if values.key_type is not None:
            fields.append(pa.field(RAW_KEY, pa.binary()))
        fields.append(pa.field(RAW_VALUE, pa.binary()))
    return pa.schema([pa.field(field.name, _nullable(field.type)) for field in fields])


def _nullable(kind: Any) -> Any:
    """The same, and nothing in it must be there: a later schema may do without it."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _nullable(one.type)) for one in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _nullable(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _nullable(kind.item_type))
    return kind


def storable(kind: Any) -> bool:
    """Whether Parquet can hold it: it has no records without fields."""
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(storable(one.type) for one in kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return storable(kind.value_type)
    if pa.types.is_map(kind):
        return storable(kind.key_type) and storable(kind.item_type)
    return not pa.types.is_null(kind)


def fits(kind: Any, column: Any) -> bool:
    """Whether every value of a type can be in a column of another, as it is."""
    if pa.types.is_struct(column):
        if not pa.types.is_struct(kind):
            return False
        there = {one.name: one.type for one in column}
        return all(one.name in there and fits(one.type, there[one.name]) for one in kind)
    if pa.types.is_list(column) or pa.types.is_large_list(column):
        return (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and fits(
            kind.value_type, column.value_type
        )
    if pa.types.is_map(column):
        return (
            pa.types.is_map(kind)
            and fits(kind.key_type, column.key_type)
            and fits(kind.item_type, column.item_type)
        )
    if pa.types.is_decimal(column) and pa.types.is_decimal(kind):
        return bool(kind.scale == column.scale and kind.precision <= column.precision)
    return bool(kind == column or column in _WIDER.get(kind, ()))


def reads_as(column: Any, kind: Any) -> bool:
    """Whether what is in a column can be read as another type: of numbers that are wider by now, and of records
    with more fields, which are null where there were none."""
    if pa.types.is_struct(kind) and pa.types.is_struct(column):
        there = {one.name: one.type for one in column}
        return all(one.name not in there or reads_as(there[one.name], one.type) for one in kind)
    if pa.types.is_list(kind) and pa.types.is_list(column):
        return reads_as(column.value_type, kind.value_type)
    if pa.types.is_map(kind) and pa.types.is_map(column):
        return reads_as(column.key_type, kind.key_type) and reads_as(column.item_type, kind.item_type)
    return fits(kind, column) or fits(column, kind)


def conform(batch: Any, schema: Any) -> Any:
    """The batch with these columns: those that it lacks are null, those that it has beside them are left out."""
    names = set(batch.schema.names)
    arrays = [
        _as(batch.column(field.name), field.type) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _as(array: Any, kind: Any) -> Any:
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        parts = {field.name: at for at, field in enumerate(array.type)}
        children = [
            _as(array.field(parts[field.name]), field.type)
            if field.name in parts
            else pa.nulls(len(array), field.type)
            for field in kind
        ]
        # `field` gives the children without the struct's own nulls.
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return pa.array(array.to_pylist(), kind)  # records in lists and maps, of which some fields are new or gone


_GROUP_ROWS = 128 * 1024
_GROUP_BYTES = 32 * 1024 * 1024
_BATCH_ROWS = 64 * 1024
#: Of a table: what is noted of a column's values.
_METRICS = "write.metadata.metrics.column."


class RowsWriter:
    """One file. Small batches become row groups together."""

    def __init__(self, io: FileIO, path: str, schema: Any) -> None:
        self.path = path
        self.rows = 0
        self._stream = io.new_output(path).create(overwrite=True)
        self._writer = pq.ParquetWriter(self._stream, schema, compression="zstd")
        self._waiting: list[Any] = []
        self._waiting_rows = self._waiting_bytes = 0

    def add(self, batch: Any) -> None:
        self._waiting.append(batch)
        self.rows += batch.num_rows
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= _GROUP_BYTES or self._waiting_rows >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting_rows:
            whole = pa.Table.from_batches(self._waiting).combine_chunks()
            self._writer.write_table(whole, row_group_size=_GROUP_ROWS)
        self._waiting = []
        self._waiting_rows = self._waiting_bytes = 0

    def close(self) -> None:
        self._flush()
        self._writer.close()
        self._stream.close()

    def abandon(self) -> None:
        """Close the stream without a footer; the caller deletes the file."""
        self._stream.close()
        self._writer.is_open = False  # else it writes the footer when it is collected


def data_file(io: FileIO, metadata: "TableMetadata", path: str) -> "DataFile":
    """A file as a commit adds it, with what its footer says of its columns."""
    try:
        found = parquet_file_to_data_file(io, metadata, path)
    except OverflowError:  # a time in a typed value that Python's dates do not know
        without = {f"{_METRICS}{name}": "counts" for name in _dates(metadata.schema())}
        found = parquet_file_to_data_file(
            io, metadata.model_copy(update={"properties": {**metadata.properties, **without}}), path
        )
    with io.new_input(path).open() as source:
        footer = pq.read_metadata(source)
    for number in _unbounded(footer, metadata.schema()):
        for bounds in (found.lower_bounds, found.upper_bounds):
            bounds.pop(number, None)
    return found


def _dates(schema: "Schema") -> list[str]:
    """Columns of typed keys and values that are times or days. Of those in records nothing but counts is noted."""
    kinds = (DateType, TimestampType, TimestamptzType)
    return [one.name for one in schema.fields if one.name != "timestamp" and isinstance(one.field_type, kinds)]


def _unbounded(footer: Any, schema: "Schema") -> set[int]:
    """Columns of which some row group does not tell the least and the greatest: long ones are not in a footer.
    What the others tell is not of the whole file, and who goes by it would leave rows out."""
    ids, found = parquet_path_to_id_mapping(schema), set()
    for group in (footer.row_group(at) for at in range(footer.num_row_groups)):
        for column in (group.column(at) for at in range(group.num_columns)):
            told = column.statistics if column.is_stats_set else None
            empty = told is not None and told.has_null_count and told.null_count == column.num_values
            if not empty and (told is None or not told.has_min_max):
                found.add(ids[column.path_in_schema])
    return found


def batches_of(
    source: Any, columns: list[str] | None = None, among: tuple[int, int] | None = None
) -> Iterator[Any]:
    """All rows of a file, or those from an offset up to before another. A row group at a time: a batch over
    several could have any number of large values."""
    file = pq.ParquetFile(source)
    for group in range(file.num_row_groups):
        if among is not None and not _overlaps(file.metadata.row_group(group), among):
            continue
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns):
            if among is None:
                yield batch
                continue
            offsets = batch.column("offset").to_numpy()
            first, end = offsets.searchsorted(among[0]), offsets.searchsorted(among[1])
            if end > first:
                yield batch.slice(first, end - first)


def _overlaps(group: Any, among: tuple[int, int]) -> bool:
    """By what the footer says of a row group's offsets."""
    for column in (group.column(at) for at in range(group.num_columns)):
        if column.path_in_schema == "offset" and column.is_stats_set and column.statistics.has_min_max:
            return bool(column.statistics.max >= among[0] and column.statistics.min < among[1])
    return True


@dataclass(slots=True)
class _Head:
    """What was read of a file and is not told yet, and what comes behind it."""

    batch: Any
    rest: Iterator[Any]

    @property
    def last(self) -> int:
        return int(self.batch.column("offset")[-1].as_py())

    def taken(self, last: int) -> Any:
        """Rows up to this offset, which are told now; empty if there are none."""
        count = int(self.batch.column("offset").to_numpy().searchsorted(last, side="right"))
        found, self.batch = self.batch.slice(0, count), self.batch.slice(count)
        return found

    def goes_on(self) -> bool:
        """Whether there are more, which are read if there are none at hand."""
        while not self.batch.num_rows:
            following = next(self.rest, None)
            if following is None:
                return False
            self.batch = following
        return True


#: Where the rows of a file begin, and what reads them in order.
Source = tuple[int, Callable[[], Iterator[Any]]]


def in_order(sources: Sequence[Source], schema: Any) -> Iterator[Any]:
    """Tables of this schema. A file is opened when its first offset is reached."""
    waiting = sorted(sources, key=lambda one: one[0], reverse=True)
    heads: list[_Head] = []
    while heads or waiting:
        # Whatever is read later of these files lies behind the end of what is at hand.
        last = min((head.last for head in heads), default=None)
        if waiting and (last is None or waiting[-1][0] <= last):
            head = _Head(_nothing(schema), waiting.pop()[1]())
            if head.goes_on():
                heads.append(head)
            continue
        if last is None:
            break
        parts = [part for head in heads if (part := head.taken(last)).num_rows]
        heads = [head for head in heads if head.goes_on()]
        found = pa.Table.from_batches(parts, schema)
        yield found if len(parts) == 1 else found.sort_by("offset")


def _nothing(schema: Any) -> Any:
    return pa.RecordBatch.from_pylist([], schema)
