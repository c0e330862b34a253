"""Files of a table replaced by others with the same rows, or with fewer: what tasks do, and their commit."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow

from weir.model.errors import LakeConflictError
from weir.spark.lake.columns import conform
from weir.spark.lake.stores import suit_store
from weir.spark.lake.tables import LakeTable, summary_of
from weir.spark.source.columns import RAW_KEY

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

_FIELD_ID = b"PARQUET:field_id"
_BATCH_ROWS = 64 * 1024

#: By key, the offset of a tombstone: older messages of the key are to be gone.
Erased = Mapping[bytes, int]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files of one day and one partition, in the order of their offsets, that become one. Travels to a task."""

    files: "tuple[DataFile, ...]"
    erased: Erased | None = None


@dataclass(frozen=True, slots=True)
class RewriteJob:
    """What all tasks need to know."""

    metadata: "TableMetadata"
    store: Mapping[str, str]


def rewrite(job: RewriteJob, wanted: Rewrite) -> "tuple[DataFile, ...]":
    """The file that takes their place; none if no row is left."""
    suit_store(job.store)
    io = load_file_io(dict(job.store), job.metadata.location)
    schema = schema_to_pyarrow(job.metadata.schema())
    folder = wanted.files[0].file_path.rpartition("/")[0]
    path, rows = f"{folder}/rewritten-{uuid4().hex}.parquet", 0
    with (
        io.new_output(path).create(overwrite=True) as stream,
        pq.ParquetWriter(stream, schema, compression="zstd") as writer,
    ):
        for file in wanted.files:
            with io.new_input(file.file_path).open() as source:
                for batch in pq.ParquetFile(source).iter_batches(_BATCH_ROWS):
                    kept = conform(left(named(batch, schema), wanted.erased), schema)
                    rows += kept.num_rows
                    writer.write_batch(kept)
    if not rows:
        io.delete(path)
        return ()
    return (parquet_file_to_data_file(io, job.metadata, path),)


def same_names(file_schema: Any, schema: Any) -> bool:
    """Whether a file's fields below the columns are those of the table, so that it can be read by names."""
    known = _ids(schema)
    return all(known.get(number, name) == name for number, name in _ids(file_schema, below=True).items())


def _ids(schema: Any, *, below: bool = False) -> dict[bytes, str]:
    found: dict[bytes, str] = {}

    def look(field: Any, *, top: bool) -> None:
        number = (field.metadata or {}).get(_FIELD_ID)
        if number is not None and not (below and top):
            found[number] = field.name
        if pa.types.is_struct(field.type):
            for one in field.type:
                look(one, top=False)

    for field in schema:
        look(field, top=True)
    return found


def named(batch: Any, schema: Any) -> Any:
    """A table or batch with the names that columns have now: they are known by their ids."""
    now = {field.metadata[_FIELD_ID]: field.name for field in schema}
    names = [now.get((field.metadata or {}).get(_FIELD_ID, b""), field.name) for field in batch.schema]
    return batch.rename_columns(names)


def sent_keys(rows: Any) -> list[Any]:
    """Keys as they were sent, of a table or batch: typed ones have their bytes in a column of their own."""
    found: list[Any] = rows.column(RAW_KEY if RAW_KEY in rows.schema.names else "key").to_pylist()
    return found


def left(batch: Any, erased: Erased | None) -> Any:
    if not erased:
        return batch
    keys, offsets = sent_keys(batch), batch.column("offset").to_pylist()
    kept = [
        not isinstance(key, bytes) or offset >= erased.get(key, -1)
        for key, offset in zip(keys, offsets, strict=True)
    ]
    return batch.filter(pa.array(np.array(kept, bool)))


def replace_files(
    found: LakeTable,
    old: "Sequence[DataFile]",
    new: "Sequence[DataFile]",
    properties: Mapping[str, str] | None = None,
    reached: Callable[[str], None] = lambda step: None,
) -> None:
    """One commit; LakeConflictError if another came before it, and then nothing is changed."""
    table = found.table
    table.metadata.properties["commit.retry.num-retries"] = "0"
    said = summary_of(found.offsets(), found.lost())
    try:
        with table.transaction() as transaction:
            if properties:
                transaction.set_properties(dict(properties))
            with transaction.update_snapshot(snapshot_properties=said).overwrite() as overwrite:
                overwrite.delete_by_predicate(AlwaysTrue())  # of all manifests, the files that are named now
                for file in old:
                    overwrite.delete_data_file(file)
                for file in new:
                    overwrite.append_data_file(file)
            reached("staged")
    except CommitFailedException as late:
        for file in new:
            with suppress(Exception):
                table.io.delete(file.file_path)
        raise LakeConflictError(f"the table of {found.topic} was changed by another process") from late
