"""What keeps a table in shape: small files joined; old days, erased keys, old snapshots and orphans removed.

Each is a commit of its own that changes nothing else, and can be done again; an export that comes between makes it
fail, and the next time does it.
"""

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileType

from weir.client.kafka.admin import topic_config
from weir.client.kafka.cluster import Cluster
from weir.client.registry import kafka_name
from weir.model.errors import TopicNotFoundError
from weir.model.topics import TopicName
from weir.spark.lake.definitions import Definition, NamespaceLake
from weir.spark.lake.erasing import Erased, ErasedKeys, may_have_tombstones
from weir.spark.lake.rewriting import (
    Rewrite,
    RewriteJob,
    Rewritten,
    find_tombstones,
    replace_files,
    rewrite,
    same_names,
)
from weir.spark.lake.stores import folder_in, store_options
from weir.spark.lake.tables import LakeTable, drop_table, find_table, is_own, tables_in

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

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
