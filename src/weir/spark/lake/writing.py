"""One range of offsets written as Parquet files, a file for each day in it: what a task of Spark does."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark import TaskContext

from weir.spark.lake.columns import CORRUPT, conform
from weir.spark.lake.files import RowsWriter, data_file
from weir.spark.lake.stores import suit_store
from weir.spark.source.options import Registry, SourceOptions
from weir.spark.source.planning import Losses
from weir.spark.source.ranges import Range
from weir.spark.source.reading import read_range
from weir.spark.values.typed import ValueSchema

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

_US_PER_DAY = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Days that are written at the same time: producers may give any time, and each open file has a buffer.
_OPEN_FILES = 16


@dataclass(frozen=True, slots=True)
class WriteJob:
    """What all tasks of one export need to know; travels there."""

    #: Names the files: those of an export that came to nothing are nobody's, whatever it was doing when it died.
    export: str
    options: SourceOptions
    values: ValueSchema | None
    metadata: "TableMetadata"
    store: Mapping[str, str]
    #: Of the topic that the table is of; a task fails if another topic has its name by now.
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """What one range has become. `lost`: offsets that had been trimmed."""

    range: Range
    rows: int
    lost: int
    files: "tuple[DataFile, ...]" = ()

    @property
    def bytes(self) -> int:
        return sum(file.file_size_in_bytes for file in self.files)


def write_range(job: WriteJob, wanted: Range, reached: Callable[[str], None] = lambda step: None) -> Written:
    """Files of the range's rows, in the order of their offsets; they are in no table yet. `reached` is told
    `writing` with a file begun, and `closed` with all of them whole."""
    losses = Losses(fail=False)
    values = None if job.values is None else {wanted.partition.topic: job.values}
    options = job.options if values is None else _with_corrupt(job.options)
    suit_store(job.store)
    io = load_file_io(dict(job.store), job.metadata.location)
    writer = _Days(job, wanted, io, schema_to_pyarrow(job.metadata.schema()))
    try:
        for batch in read_range(options, wanted, values, losses, protocol=True, topic_id=job.topic_id):
            writer.add(batch)
            reached("writing")
        files = writer.close()
        reached("closed")
    except BaseException:
        writer.abandon()
        raise
    return Written(wanted, writer.rows, losses.count, files)


def _with_corrupt(options: SourceOptions) -> SourceOptions:
    from dataclasses import replace

    return replace(options, registry=Registry("", permissive=True, corrupt=CORRUPT), raw=True)


class _Days:
    """The files of one range."""

    def __init__(self, job: WriteJob, wanted: Range, io: FileIO, schema: Any) -> None:
        self.rows = 0
        self._job = job
        self._range = wanted
        self._io = io
        self._schema = schema
        self._open: dict[int, RowsWriter] = {}
        self._paths: list[str] = []
        context = TaskContext.get()
        self._attempt = 0 if context is None else context.taskAttemptId()

    def add(self, batch: Any) -> None:
        self.rows += batch.num_rows
        found = conform(batch, self._schema)
        for day, part in _by_day(found):
            self._file(day).add(part)

    def close(self) -> "tuple[DataFile, ...]":
        while self._open:
            self._open.pop(next(iter(self._open))).close()
        return tuple(data_file(self._io, self._job.metadata, path) for path in self._paths)

    def abandon(self) -> None:
        """Nobody will add what was written; what cannot be deleted now is an orphan, and goes later."""
        for one in self._open.values():
            with suppress(Exception):
                one.abandon()
        for path in self._paths:
            with suppress(Exception):
                self._io.delete(path)

    def _file(self, day: int) -> RowsWriter:
        found = self._open.pop(day, None)
        if found is None:
            if len(self._open) >= _OPEN_FILES:
                self._open.pop(next(iter(self._open))).close()
            found = self._begin(day)
        self._open[day] = found  # the one that was used last is closed last
        return found

    def _begin(self, day: int) -> RowsWriter:
        job, wanted = self._job, self._range
        name = f"{wanted.partition.index:05d}-{wanted.start:019d}-{wanted.end:019d}"
        name += f"-{job.export}-{self._attempt}-{len(self._paths)}.parquet"
        path = f"{job.metadata.location}/data/day={_shown(day)}/{name}"
        found = RowsWriter(self._io, path, self._schema)
        self._paths.append(path)
        return found


def _by_day(batch: Any) -> Iterator[tuple[int, Any]]:
    times = np.asarray(batch.column("timestamp").cast(pa.int64()))
    days = times // _US_PER_DAY
    if not len(days):
        return
    if days[0] == days[-1] and (days == days[0]).all():
        yield int(days[0]), batch
        return
    for day in np.unique(days).tolist():
        yield day, batch.take(pa.array(np.flatnonzero(days == day)))


def _shown(day: int) -> str:
    try:
        return (_EPOCH + timedelta(days=day)).date().isoformat()
    except OverflowError:
        return str(day)
