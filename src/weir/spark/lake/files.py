"""Parquet files of a table: written in row groups of a good size, read one row group at a time, and described."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import parquet_file_to_data_file, parquet_path_to_id_mapping
from pyiceberg.types import DateType, TimestampType, TimestamptzType

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

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
