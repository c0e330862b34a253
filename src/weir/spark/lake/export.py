"""One topic's messages into its table: which offsets, written by whom, and the one commit that adds them.

Where an export begins is what the table says. Files have names of their own, and are nothing until the commit,
which says that it follows the snapshot that was read; so what dies anywhere, or comes second, adds nothing, and
the next export begins at the same offset. Behind the commit is only what can be told again: how far the topic may
be trimmed.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import uuid4

from pyiceberg.exceptions import CommitFailedException

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.offsets import ends, starts
from weir.client.registry import kafka_name, schemas_by
from weir.model.errors import (
    ConfigError,
    DataLostError,
    LakeConflictError,
    LakeUnfinishedError,
    SchemaNotFoundError,
    TopicNotFoundError,
)
from weir.model.topics import TopicName
from weir.spark.lake.columns import storable, topic_schema
from weir.spark.lake.definitions import Definition
from weir.spark.lake.failures import in_a_line
from weir.spark.lake.holding import hold_one, keep
from weir.spark.lake.stores import store_options
from weir.spark.lake.tables import LOST, MERGED, OFFSETS, RANGES, LakeTable, open_table, summary_of
from weir.spark.lake.writing import WriteJob, Written
from weir.spark.source.options import SourceOptions, Wanted, parse
from weir.spark.source.ranges import Range, limited, split
from weir.spark.source.reading import check_same_topic
from weir.spark.sql.cluster import WeirCluster
from weir.spark.values.typed import ValueSchema, value_schema

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
