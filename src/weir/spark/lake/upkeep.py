"""What keeps a table in shape: small files joined; old days, erased keys, old snapshots and orphans removed.

Each is a commit of its own that changes nothing else, and can be done again; an export that comes between makes it
fail, and the next time does it.

Files of a table replaced by others with the same rows, or with fewer: what tasks do, and their commit.

Keys that are to be gone from a table: found by the tombstones of a compacted topic, looked for in its files.

All of it works on columns: a table has many more rows than there are tombstones.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileType
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import schema_to_pyarrow

from weir.client.kafka.cluster import Cluster, topic_config
from weir.client.schemas import kafka_name
from weir.model.errors import LakeConflictError, TopicNotFoundError
from weir.model.topics import TopicName
from weir.spark.columns import RAW_KEY, RAW_VALUE
from weir.spark.lake.catalog import Definition, NamespaceLake, folder_in, store_options, suit_store
from weir.spark.lake.parquet import RowsWriter, batches_of, conform, data_file
from weir.spark.lake.table import LakeTable, drop_table, find_table, is_own, summary_of, tables_in

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata


_FOUND = pa.schema([("key", pa.binary()), ("offset", pa.int64())])


@dataclass(frozen=True, slots=True)
class ErasedKeys:
    """Keys of one partition, each once, and for each the offset of its last tombstone: what is older is to go.
    Travels to tasks."""

    keys: Any
    offsets: Any

    @classmethod
    def of(cls, tombstones: Iterable[Any]) -> "ErasedKeys":
        """Of what `tombstones_in` found in files of one partition."""
        rows = pa.concat_tables([_FOUND.empty_table(), *tombstones])
        last = rows.group_by("key").aggregate([("offset", "max")]).combine_chunks()
        offsets = last["offset_max"].to_numpy()
        return cls(last["key"].combine_chunks(), offsets)

    def __len__(self) -> int:
        return len(self.keys)

    def hits(self, batch: Any) -> Any:
        """Which rows of a batch are to be gone, as an array of truth; None if none is."""
        keys = sent_keys(batch)
        if keys is None or not len(self):
            return None
        at = pc.fill_null(pc.index_in(keys, value_set=self.keys.cast(keys.type)), -1).to_numpy(
            zero_copy_only=False
        )
        if not (at >= 0).any():
            return None
        found = (at >= 0) & (batch.column("offset").to_numpy(zero_copy_only=False) < self.offsets[at])
        return found if found.any() else None

    def left(self, batch: Any) -> Any:
        """The rows of a batch that stay."""
        gone = self.hits(batch)
        return batch if gone is None else batch.filter(pa.array(~gone))

    def may_be_in(self, file: "DataFile", schema: "Schema") -> bool:
        """By the file's own word of its least and greatest key and offset."""
        number = _id(schema, RAW_KEY) or _id(schema, "key")
        offset = schema.find_field("offset").field_id
        low, high = file.lower_bounds or {}, file.upper_bounds or {}
        if offset in low and int.from_bytes(low[offset], "little", signed=True) >= int(self.offsets.max()):
            return False
        if number not in low or number not in high or not pa.types.is_binary(self.keys.type):
            return True
        # Bounds are cut: the upper one is made larger then, the lower one is a beginning.
        within = pc.and_(
            pc.greater_equal(self.keys, pa.scalar(low[number], pa.binary())),
            pc.less_equal(self.keys, pa.scalar(high[number], pa.binary())),
        )
        return bool(pc.any(within).as_py())


def may_have_tombstones(file: "DataFile", schema: "Schema") -> bool:
    """By the file's own count of values that are null; where it has none, they must be looked for."""
    nulls = file.null_value_counts or {}
    number = _id(schema, RAW_VALUE) or _id(schema, "value")
    return nulls.get(number or 0, 1) > 0


def tombstones_in(source: Any) -> Any:
    """Keys and offsets of the messages without a value in a file; not of those whose value does not fit."""
    whole = pq.ParquetFile(source)
    there = whole.schema_arrow.names
    wanted = [name for name in ("key", RAW_KEY, "value", RAW_VALUE, "offset", "corrupt") if name in there]
    if RAW_VALUE in there:
        wanted.remove("value")
    if RAW_KEY in there:
        wanted.remove("key")
    found = [tombstones(batch) for batch in batches_of(source, wanted)]
    return pa.concat_tables([_FOUND.empty_table(), *found])


def tombstones(rows: Any) -> Any:
    """The same of a batch."""
    keys = sent_keys(rows)
    if keys is None:
        return _FOUND.empty_table()
    gone = rows.column(RAW_VALUE if RAW_VALUE in rows.schema.names else "value").is_null()
    if "corrupt" in rows.schema.names:
        gone = pc.and_(gone, rows.column("corrupt").is_null())
    gone = pc.and_(gone, pc.is_valid(keys))
    found = [keys.filter(gone).cast(pa.binary()), rows.column("offset").filter(gone)]
    return pa.table(found, schema=_FOUND)


def has_any(source: Any, erased: ErasedKeys) -> bool:
    """Whether a file has rows that are to be gone; only its keys are read."""
    there = pq.read_schema(source).names
    wanted = [RAW_KEY if RAW_KEY in there else "key", "offset"]
    return any(erased.hits(batch) is not None for batch in batches_of(source, wanted))


def sent_keys(rows: Any) -> Any:
    """Keys as they were sent, of a batch; None if they are not known: typed ones have their bytes in a column of
    their own, but for files of before tables had it."""
    found = rows.column(RAW_KEY if RAW_KEY in rows.schema.names else "key")
    return found if pa.types.is_binary(found.type) or pa.types.is_large_binary(found.type) else None


def _id(schema: "Schema", name: str) -> int | None:
    return next((field.field_id for field in schema.fields if field.name == name), None)


#: By partition.
Erased = Mapping[int, ErasedKeys]

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


log = logging.getLogger(__name__)
A = TypeVar("A")
B = TypeVar("B")

_DAY_MS = 86_400_000
#: However many there are, snapshots of so long stay for those who read them.
_LEAST_SNAPSHOTS_S = 3600.0
#: Up to which offset of each partition tombstones have been looked for.
ERASED = "weir.erased"


@dataclass(frozen=True, slots=True)
class Limits:
    """When what is done. Files below `small_bytes` are joined to `file_bytes` once there are `small_files`."""

    small_bytes: int = 32 * 1024 * 1024
    small_files: int = 8
    file_bytes: int = 256 * 1024 * 1024
    snapshots_s: float = 86_400.0
    most_snapshots: int = 1000
    orphans_s: float = 86_400.0


@dataclass(frozen=True, slots=True)
class Kept:
    """What was done. `erased`: rows of keys that are to be gone, `expired`: files older than the table keeps."""

    joined: int = 0
    expired: int = 0
    erased: int = 0
    snapshots: int = 0
    orphans: int = 0


class Tasks(Protocol):
    """Whoever does pieces of work that need each other not."""

    def map(self, work: Callable[[A], B], items: Sequence[A]) -> list[B]: ...


class Upkeep:
    """Of one table."""

    def __init__(
        self,
        found: LakeTable,
        definition: Definition,
        tasks: Tasks,
        limits: Limits | None = None,
        *,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._found = found
        self._definition = definition
        self._tasks = tasks
        self._limits = limits or Limits()
        self._wall_s = wall_s

    def all(self, cluster: Cluster) -> Kept:
        """Everything that is due."""
        expired = self.expire_days()
        erased = self.erase_keys() if self._is_compacted(cluster) else 0
        joined = self.join_files()
        return Kept(joined, expired, erased, self.expire_snapshots(now=bool(erased)), self.remove_orphans())

    # --- rows ---------------------------------------------------------------------------------------------------

    def expire_days(self) -> int:
        """How many files of days that are older than the table keeps are gone. Messages without a time (-1, which
        is the day before 1970) stay: nobody knows how old they are."""
        if self._definition.keep_ms is None:
            return 0
        last = int(self._wall_s() * 1000 - self._definition.keep_ms) // _DAY_MS
        old = [file for file in self._files() if file.partition[0] is not None and 0 <= file.partition[0] < last]
        if old:
            replace_files(self._found, old, [])
        return len(old)

    def erase_keys(self) -> int:
        """How many rows are gone that a later tombstone of the same key is about, in a topic that is compacted."""
        done = {int(one): at for one, at in json.loads(self._found.table.properties.get(ERASED, "{}")).items()}
        ends = self._found.offsets()
        if all(done.get(partition, 0) >= end for partition, end in ends.items()):
            return 0
        files, schema = self._files(), self._found.table.schema()
        new = [
            file
            for file in files
            if self._place(file)[2] >= done.get(self._place(file)[0], 0) and may_have_tombstones(file, schema)
        ]
        job = RewriteJob(self._found.table.metadata, store_options(self._definition))
        tombstones = self._tasks.map(lambda file: find_tombstones(job, file), new) if new else []
        erased = {
            partition: keys
            for partition in ends
            if len(
                keys := ErasedKeys.of(
                    rows for file, rows in zip(new, tombstones, strict=True) if self._place(file)[0] == partition
                )
            )
        }
        wanted = [
            Rewrite((file,), partition)
            for file in files
            if (partition := self._place(file)[0]) in erased and erased[partition].may_be_in(file, schema)
        ]
        said = {ERASED: json.dumps({str(one): end for one, end in ends.items()})}
        changed = self._rewrite(wanted, erased, said)
        before = sum(file.record_count for one in changed for file in one.old)
        return before - sum(file.record_count for one in changed for file in one.new)

    def join_files(self) -> int:
        """How many small files have become parts of larger ones."""
        limits, schema = self._limits, self._found.arrow_schema
        groups: dict[tuple[int, int], list[DataFile]] = {}
        for file in self._files():
            if file.file_size_in_bytes < limits.small_bytes:
                groups.setdefault((file.partition[0], self._place(file)[0]), []).append(file)
        wanted = []
        for small in groups.values():
            if len(small) < limits.small_files:
                continue
            small.sort(key=lambda file: self._place(file)[1])
            fit = [file for file in small if same_names(self._footer(file), schema)]
            wanted += [Rewrite(tuple(run)) for run in _runs(fit, limits.file_bytes) if len(run) > 1]
        self._rewrite(wanted)
        return sum(len(one.files) for one in wanted)

    def _rewrite(
        self,
        wanted: Sequence[Rewrite],
        erased: Erased | None = None,
        properties: dict[str, str] | None = None,
    ) -> list[Rewritten]:
        """What has become of those that had to change."""
        job = RewriteJob(self._found.table.metadata, store_options(self._definition), erased or {})
        done = self._tasks.map(lambda one: rewrite(job, one), wanted) if wanted else []
        changed = [one for one in done if one.old]
        if changed:
            old, new = [file for one in changed for file in one.old], [file for one in changed for file in one.new]
            replace_files(self._found, old, new, properties)
        elif properties:
            with self._found.table.transaction() as transaction:
                transaction.set_properties(properties)
        return changed

    # --- files --------------------------------------------------------------------------------------------------

    def expire_snapshots(self, *, now: bool = False) -> int:
        """How many snapshots are gone, with what only they had; but for the current one. `now`: all others."""
        table, before = self._found.table, len(self._found.table.metadata.snapshots)
        last_s = self._wall_s() + 1 if now else self._oldest_s()
        current = table.metadata.current_snapshot_id
        if all(
            one.timestamp_ms >= last_s * 1000 or one.snapshot_id == current for one in table.metadata.snapshots
        ):
            return 0
        held = _files_of(self._found)
        table.maintenance.expire_snapshots().older_than(datetime.fromtimestamp(last_s, UTC)).commit()
        table.refresh()
        gone = before - len(table.metadata.snapshots)
        if gone:
            for path in held - _files_of(self._found):
                table.io.delete(path)
        return gone

    def _oldest_s(self) -> float:
        """From when on snapshots stay. All of them are in a file that each commit writes anew: of a table with one
        every few seconds, not all of a day."""
        limits, now_s = self._limits, self._wall_s()
        times = sorted((one.timestamp_ms for one in self._found.table.metadata.snapshots), reverse=True)
        if len(times) <= limits.most_snapshots:
            return now_s - limits.snapshots_s
        newest_s = times[limits.most_snapshots - 1] / 1000
        return max(now_s - limits.snapshots_s, min(newest_s, now_s - _LEAST_SNAPSHOTS_S))

    def remove_orphans(self) -> int:
        """How many files are gone that no snapshot knows: of exports that came to nothing, a day ago or longer."""
        table = self._found.table
        table.refresh()
        known = {_bare(path) for path in _files_of(self._found)}
        known |= {_bare(one.metadata_file) for one in table.metadata.metadata_log} | {
            _bare(table.metadata_location)
        }
        store, path = folder_in(table.io, table.location())
        last_s, gone = self._wall_s() - self._limits.orphans_s, 0
        for one in store.get_file_info(FileSelector(path, recursive=True, allow_not_found=True)):
            if one.type is FileType.File and one.path not in known and one.mtime_ns / 1e9 < last_s:
                store.delete_file(one.path)
                gone += 1
        return gone

    # --- what is asked ------------------------------------------------------------------------------------------

    def _files(self) -> "list[DataFile]":
        return [task.file for task in self._found.table.scan().plan_files()]

    def _place(self, file: "DataFile") -> tuple[int, int, int]:
        """Partition, first and last offset."""
        schema = self._found.table.schema()
        partition, offset = schema.find_field("partition").field_id, schema.find_field("offset").field_id
        low, high = file.lower_bounds or {}, file.upper_bounds or {}
        return _number(low[partition]), _number(low[offset]), _number(high[offset])

    def _footer(self, file: "DataFile") -> Any:
        with self._found.table.io.new_input(file.file_path).open() as source:
            return pq.read_schema(source)

    def _is_compacted(self, cluster: Cluster) -> bool:
        return "compact" in topic_config(cluster, kafka_name(self._found.topic), "cleanup.policy")


def _number(bound: bytes) -> int:
    """As Iceberg writes a column's least and greatest."""
    return int.from_bytes(bound, "little", signed=True)


def _runs(files: "Sequence[DataFile]", most_bytes: int) -> "list[list[DataFile]]":
    runs: list[list[DataFile]] = [[]]
    size = 0
    for file in files:
        if size + file.file_size_in_bytes > most_bytes and runs[-1]:
            runs.append([])
            size = 0
        runs[-1].append(file)
        size += file.file_size_in_bytes
    return runs


def _files_of(found: LakeTable) -> set[str]:
    """Every file that a snapshot knows."""
    table, paths = found.table, set()
    for snapshot in table.metadata.snapshots:
        paths.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in paths:
                paths.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                paths.update(entry.data_file.file_path for entry in entries)
    return paths


def _bare(path: str) -> str:
    """As the store has it. Hadoop, which may be what a catalog writes by, says `file:/x`."""
    scheme, found, rest = path.partition("://")
    return rest if found else scheme.removeprefix("file:")


def drop_deleted(cluster: Cluster, lakes: Sequence[NamespaceLake]) -> list[TopicName]:
    """Tables of topics that no longer exist go, with their files. Those that the lake is off for stay."""
    gone = []
    for lake in lakes:
        for definition in {one for one in (lake.every, *lake.topics.values()) if one is not None}:
            tables = tables_in(lake.namespace, definition)
            told = cluster.describe([kafka_name(topic) for topic in tables if lake.of(topic) == definition])
            for topic in tables:
                if not isinstance(told.get(kafka_name(topic)), TopicNotFoundError):
                    continue
                found = find_table(topic, definition)
                if found is not None and is_own(found, definition):
                    drop_table(found, definition)
                    gone.append(topic)
    return gone
