"""One topic's messages into its table: which offsets, written by whom, and the one commit that adds them.

Where an export begins is what the table says. Files have names of their own, and are nothing until the commit,
which says that it follows the snapshot that was read; so what dies anywhere, or comes second, adds nothing, and
the next export begins at the same offset. Behind the commit is only what can be told again: how far the topic may
be trimmed.

One range of offsets written as Parquet files, a file for each day in it: what a task of Spark does.

Ranges written by Spark's tasks, or by this process.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark import TaskContext
from pyspark.accumulators import Accumulator
from pyspark.sql import SparkSession

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.fetch import ends, starts
from weir.client.schemas import kafka_name, schemas_by
from weir.model.errors import (
    ConfigError,
    DataLostError,
    LakeConflictError,
    LakeUnfinishedError,
    SchemaNotFoundError,
    TopicNotFoundError,
)
from weir.model.topics import TopicName
from weir.spark.lake.catalog import Definition, in_a_line, store_options, suit_store
from weir.spark.lake.parquet import CORRUPT, RowsWriter, conform, data_file, storable, topic_schema
from weir.spark.lake.table import LOST, MERGED, OFFSETS, RANGES, LakeTable, open_table, summary_of
from weir.spark.lake.topics import hold_one, keep
from weir.spark.options import Registry, SourceOptions, Wanted, parse
from weir.spark.source.planning import Losses, Range, limited, split
from weir.spark.source.reading import check_same_topic, read_range
from weir.spark.tables.names import WeirCluster
from weir.spark.values.typed import ValueSchema, value_schema

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


#: Offsets that one commit adds at the most, and that one task reads.
COMMIT_OFFSETS, TASK_OFFSETS = 8_000_000, 1_000_000


class Jobs(Protocol):
    """Whoever writes ranges; `done` is told how many offsets each that is written had."""

    def run(self, job: WriteJob, ranges: Sequence[Range], done: Callable[[int], None]) -> Sequence[Written]: ...


class Told(Protocol):
    """Whoever watches an export."""

    def begin(self, topic: TopicName, offsets: int) -> None: ...

    def advance(self, offsets: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export has added, and how long it took."""

    topic: TopicName
    rows: int
    files: int
    bytes: int
    lost: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Standing:
    """How far one partition is. `exported`: the first offset that is not in the table; None: there is no table."""

    partition: int
    exported: int | None
    end: int

    @property
    def lag(self) -> int:
        return max(0, self.end - (self.exported or 0))


@dataclass(frozen=True, slots=True)
class _Work:
    """What the commits of one export have in common."""

    cluster: Cluster
    options: SourceOptions
    values: ValueSchema | None
    table: LakeTable
    definition: Definition
    topic_id: str


class _Nobody:
    def begin(self, topic: TopicName, offsets: int) -> None: ...

    def advance(self, offsets: int) -> None: ...


class Exporter:
    """`reached` is told which step was done; tests end the process there."""

    def __init__(
        self, place: WeirCluster, jobs: Jobs, *, reached: Callable[[str], None] = lambda step: None
    ) -> None:
        self._place = place
        self._jobs = jobs
        self._reached = reached

    def export(self, topic: TopicName, definition: Definition, told: Told | None = None) -> Exported | None:
        """All that is acknowledged now, in as many commits as it takes; None if there was nothing new."""
        told, began = told or _Nobody(), time.monotonic()
        options = self._options(topic)
        with Cluster(options.kafka) as cluster:
            values = self._values(topic)
            topic_id = cluster.topic_id(kafka_name(topic))
            table = open_table(topic, definition, topic_schema(values), topic_id)
            goal = _by_index(ends(cluster, cluster.partitions([kafka_name(topic)])))
            waiting = sum(max(0, end - table.offsets().get(index, 0)) for index, end in goal.items())
            told.begin(topic, waiting)
            work = _Work(cluster, options, values, table, definition, topic_id)
            self._keep(work)
            rows = files = size = lost = 0
            try:
                while (added := self._commit(work, goal, told)) is not None:
                    rows += sum(one.rows for one in added)
                    files += sum(len(one.files) for one in added)
                    size, lost = size + sum(one.bytes for one in added), lost + sum(one.lost for one in added)
                    self._keep(work)
                    self._reached("kept")
            except TopicNotFoundError:
                raise
            except Exception as failure:
                if not rows:
                    raise
                raise LakeUnfinishedError(f"{rows} rows were added; then: {in_a_line(failure)}") from failure
        return Exported(topic, rows, files, size, lost, time.monotonic() - began) if rows or lost else None

    # --- one commit ------------------------------------------------------------------------------------------

    def _commit(self, work: "_Work", goal: Mapping[int, int], told: Told) -> Sequence[Written] | None:
        """None if everything up to the goal is in the table."""
        table, done = work.table, work.table.offsets()
        ranges, gone = self._ranges(work.cluster, table.topic, done, goal)
        reached = done | {one.partition.index: one.end for one in ranges}
        if reached == done:
            return None
        store = store_options(work.definition)
        job = WriteJob(uuid4().hex, work.options, work.values, table.table.metadata, store, work.topic_id)
        self._reached("planned")
        pieces = split(ranges, None, TASK_OFFSETS)
        written = self._jobs.run(job, pieces, told.advance) if pieces else ()
        self._reached("written")
        # The goal, and what is gone, may be of a topic that was created again; the tasks check what they read.
        check_same_topic(work.cluster, kafka_name(table.topic), work.topic_id)
        lost = gone + sum(one.lost for one in written)
        self._add(table, reached, ranges, written, lost)
        self._reached("committed")
        return [*written, Written(Range(Partition("", 0), 0, 0), 0, gone)] if gone else written

    def _ranges(
        self, cluster: Cluster, topic: TopicName, done: Mapping[int, int], goal: Mapping[int, int]
    ) -> tuple[list[Range], int]:
        """What is added next of each partition, maybe nothing, and how many offsets before it are no longer there.
        What was trimmed before the table began is not missed."""
        name = kafka_name(topic)
        oldest = _by_index(starts(cluster, [Partition(name, index) for index in goal]))
        first = {Partition(name, index): max(done.get(index, 0), oldest[index]) for index in goal}
        gone = sum(max(0, min(oldest[index], goal[index]) - done[index]) for index in goal if index in done)
        last = limited(first, {Partition(name, index): end for index, end in goal.items()}, COMMIT_OFFSETS)
        return [Range(one, first[one], max(first[one], end)) for one, end in last.items()], gone

    def _add(
        self,
        found: LakeTable,
        offsets: Mapping[int, int],
        ranges: Sequence[Range],
        written: Sequence[Written],
        lost: int,
    ) -> None:
        table = found.table
        said = summary_of(offsets, found.lost() + lost)
        covered = {str(one.partition.index): [one.start, one.end] for one in ranges if one.size}
        kept = {name: said[name] for name in (OFFSETS, LOST) if name in said}
        # Even if somebody has changed the table's property: a repeated append would add the same offsets again.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        table.metadata.properties[MERGED] = "true"
        try:
            with table.transaction() as transaction:
                transaction.set_properties(kept)
                summary = said | {RANGES: json.dumps(covered)}
                with transaction.update_snapshot(snapshot_properties=summary).merge_append() as append:
                    for file in (file for one in written for file in one.files):
                        append.append_data_file(file)
                self._reached("staged")
        except CommitFailedException as late:
            for file in (file for one in written for file in one.files):
                with suppress(Exception):
                    table.io.delete(file.file_path)
            raise LakeConflictError(f"the table of {found.topic} was changed by another process") from late

    # --- around it -------------------------------------------------------------------------------------------

    def _keep(self, work: "_Work") -> None:
        """Tell the brokers what is in the table: the topic keeps the rest, whatever its retention says, and the
        lag is in everybody's metrics. DataLostError if the topic was deleted and created again: nothing of the new
        one is in the table."""
        cluster, topic, table = work.cluster, work.table.topic, work.table
        name = kafka_name(topic)
        there = {partition.index for partition in cluster.partitions([name])}
        done = {Partition(name, index): offset for index, offset in table.offsets().items() if index in there}
        new = {Partition(name, index): 0 for index in there if Partition(name, index) not in done}
        if new:
            done |= starts(cluster, new)
        check_same_topic(cluster, name, work.topic_id)
        keep(cluster, done, {name: work.topic_id})
        try:
            check_same_topic(cluster, name, work.topic_id)
        except DataLostError:  # created again since the last look: the position is not one in the new topic
            hold_one(cluster, topic)
            raise

    def standing(self, topic: TopicName, table: LakeTable | None) -> list[Standing]:
        """Of every partition."""
        with Cluster(self._options(topic).kafka) as cluster:
            return standing_of(_by_index(ends(cluster, cluster.partitions([kafka_name(topic)]))), table)

    def _options(self, topic: TopicName) -> SourceOptions:
        given = {**self._place.options, "subscribe": "-", "includeHeaders": "true"}
        wanted = Wanted(topics=(kafka_name(topic),))  # its name may have a comma
        return replace(parse(given, streaming=False), registry=None, wanted=wanted)

    def _values(self, topic: TopicName) -> ValueSchema | None:
        """What the registry has of the values now; None if they stay bytes: it has nothing, or nothing that can be
        columns."""
        access = self._place.access
        try:
            versions = schemas_by(access, topic)
            found = value_schema(kafka_name(topic), list(versions), permissive=True)
        except (SchemaNotFoundError, ConfigError):
            return None
        schema = topic_schema(found)
        return found if all(storable(field.type) for field in schema) else None


def standing_of(ends: Mapping[int, int], table: LakeTable | None) -> list[Standing]:
    """Of every partition that ends there."""
    done = {} if table is None else table.offsets()
    return [Standing(index, done.get(index), end) for index, end in sorted(ends.items())]


def _by_index(found: Mapping[Partition, int]) -> dict[int, int]:
    return {partition.index: offset for partition, offset in found.items()}


_LOOK_S = 0.25
A = TypeVar("A")
B = TypeVar("B")


class SparkJobs:
    """One task for each range, wherever the session's tasks run. `reached` travels there, and is told which step
    the first attempt of each has done; tests end the process there."""

    def __init__(self, spark: SparkSession, *, reached: Callable[[str], None] = lambda step: None) -> None:
        self._spark = spark
        self._reached = reached

    def run(self, job: WriteJob, ranges: Sequence[Range], done: Callable[[int], None]) -> Sequence[Written]:
        context = self._spark.sparkContext
        counted, shared, reached = context.accumulator(0), context.broadcast(job), self._reached

        def write(wanted: Range) -> Written:
            attempt = TaskContext.get()
            is_first = attempt is not None and attempt.attemptNumber() == 0
            found = write_range(shared.value, wanted, reached if is_first else lambda step: None)
            counted.add(wanted.size)
            return found

        watch = _Watch(counted, done)
        watch.start()
        try:
            context.setJobDescription(f"lake: {ranges[0].partition.topic}")
            return context.parallelize(list(ranges), len(ranges)).map(write).collect()
        finally:
            watch.close()
            shared.destroy()

    def map(self, work: Callable[[A], B], items: Sequence[A]) -> list[B]:
        return self._spark.sparkContext.parallelize(list(items), len(items)).map(work).collect()


class _Watch(Thread):
    """Tells how much is written while the driver waits."""

    def __init__(self, counted: "Accumulator[int]", done: Callable[[int], None]) -> None:
        super().__init__(name="lake-progress", daemon=True)
        self._counted = counted
        self._done = done
        self._ended = Event()
        self._told = 0

    def run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._look()

    def close(self) -> None:
        self._ended.set()
        self.join()
        self._look()

    def _look(self) -> None:
        now = self._counted.value
        if now > self._told:
            self._done(now - self._told)
            self._told = now


class LocalJobs:
    """In this process, one range after the other: for little."""

    def run(self, job: WriteJob, ranges: Sequence[Range], done: Callable[[int], None]) -> Sequence[Written]:
        found = []
        for wanted in ranges:
            found.append(write_range(job, wanted))
            done(wanted.size)
        return found

    def map(self, work: Callable[[A], B], items: Sequence[A]) -> list[B]:
        return [work(one) for one in items]
