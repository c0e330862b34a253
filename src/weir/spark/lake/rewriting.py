"""Files of a table replaced by others with the same rows, or with fewer: what tasks do, and their commit."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import schema_to_pyarrow

from weir.model.errors import LakeConflictError
from weir.spark.lake.columns import conform
from weir.spark.lake.erasing import Erased, has_any, tombstones_in
from weir.spark.lake.files import RowsWriter, batches_of, data_file
from weir.spark.lake.stores import suit_store
from weir.spark.lake.tables import LakeTable, summary_of

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

T = TypeVar("T")

_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files of one day and one partition, in the order of their offsets, that become one. Travels to a task."""

    files: "tuple[DataFile, ...]"
    #: Whose keys are to be gone from them.
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class RewriteJob:
    """What all tasks need to know."""

    metadata: "TableMetadata"
    store: Mapping[str, str]
    erased: Erased = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """`new`: what takes the place of the old files; nothing if no row is left."""

    old: "tuple[DataFile, ...]"
    new: "tuple[DataFile, ...]"


def rewrite(job: RewriteJob, wanted: Rewrite) -> Rewritten:
    """The files without rows that are to be gone; untouched (and so neither old nor new) if they have none."""
    suit_store(job.store)
    io = load_file_io(dict(job.store), job.metadata.location)
    erased = None if wanted.partition is None else job.erased[wanted.partition]
    if erased is not None and not any(_with(io, file, lambda it: has_any(it, erased)) for file in wanted.files):
        return Rewritten((), ())
    schema = schema_to_pyarrow(job.metadata.schema())
    folder = wanted.files[0].file_path.rpartition("/")[0]
    writer = RowsWriter(io, f"{folder}/rewritten-{uuid4().hex}.parquet", schema)
    for file in wanted.files:
        with io.new_input(file.file_path).open() as source:
            for batch in batches_of(source):
                kept = named(batch, schema)
                writer.add(conform(kept if erased is None else erased.left(kept), schema))
    writer.close()
    if not writer.rows:
        io.delete(writer.path)
        return Rewritten(wanted.files, ())
    return Rewritten(wanted.files, (data_file(io, job.metadata, writer.path),))


def find_tombstones(job: RewriteJob, file: "DataFile") -> Any:
    """Keys and offsets of messages without a value."""
    suit_store(job.store)
    return _with(load_file_io(dict(job.store), job.metadata.location), file, tombstones_in)


def _with(io: Any, file: "DataFile", work: Callable[[Any], T]) -> T:
    with io.new_input(file.file_path).open() as source:
        return work(source)


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

    for column in schema:
        look(column, top=True)
    return found


def named(batch: Any, schema: Any) -> Any:
    """A table or batch with the names that columns have now: they are known by their ids."""
    now = {field.metadata[_FIELD_ID]: field.name for field in schema}
    names = [now.get((field.metadata or {}).get(_FIELD_ID, b""), field.name) for field in batch.schema]
    return batch.rename_columns(names)


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
