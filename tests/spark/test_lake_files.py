"""Files of tables, and what commits say of them, without brokers: row groups, bounds, manifests, snapshots."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo

from weir.client.kafka.cluster import Partition
from weir.model.topics import TopicName
from weir.spark.lake import parquet as files
from weir.spark.lake.catalog import Definition
from weir.spark.lake.export import Exporter, LocalJobs, Written
from weir.spark.lake.history import TopicHistory
from weir.spark.lake.parquet import RowsWriter, conform, data_file, topic_schema
from weir.spark.lake.table import LakeTable, open_table
from weir.spark.lake.upkeep import ErasedKeys, Limits, Upkeep, may_have_tombstones
from weir.spark.options import parse
from weir.spark.source.planning import Range

USERS = TopicName.parse("users")
START_US, DAY_US = 1_700_000_000_000_000, 86_400_000_000
_NUMBERS = {pa.timestamp("us", tz="UTC"): pa.int64(), pa.date32(): pa.int32()}
FOUND = pa.schema([("key", pa.binary()), ("offset", pa.int64())])


class Users:
    """The table of one topic with one partition, whose keys are users."""

    def __init__(self, folder: Path, schema: Any = None) -> None:
        self.definition = Definition(f"file://{folder}/lake", f"sqlite:///{folder}/catalog.db")
        self.table: LakeTable = open_table(USERS, self.definition, schema or topic_schema(None), "1")
        self.end = 0
        self._exporter = Exporter(None, LocalJobs())  # type: ignore[arg-type]

    def written(
        self, rows: Sequence[tuple[bytes, Any]], offsets: Sequence[int] | None = None, days: int = 0
    ) -> Any:
        """A file of these keys and values that is in no table yet; with the next offsets, if none are given."""
        schema, count = self.table.arrow_schema, len(rows)
        columns = {
            "key": pa.array([key for key, _ in rows], pa.binary()),
            "value": pa.array([value for _, value in rows], schema.field("value").type),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(offsets or range(self.end, self.end + count), pa.int64()),
            "timestamp": pa.array([START_US + days * DAY_US] * count, schema.field("timestamp").type),
        }
        writer = RowsWriter(self.table.table.io, f"{self.table.location}/data/{days}-{self.end}.parquet", schema)
        batch = pa.RecordBatch.from_pydict(columns)
        for at in range(count):
            writer.add(conform(batch.slice(at, 1), schema))
        writer.close()
        return data_file(self.table.table.io, self.table.table.metadata, writer.path)

    def add(self, rows: Sequence[tuple[bytes, Any]]) -> Any:
        """The same, added by one commit."""
        file = self.written(rows)
        self.commit(file, len(rows))
        return file

    def commit(self, file: Any, rows: int) -> None:
        added = Range(Partition("users", 0), self.end, self.end + rows)
        self.end += rows
        self._exporter._add(self.table, {0: self.end}, [added], [Written(added, rows, 0, (file,))], 0)

    def upkeep(self, limits: Limits | None = None, *, at_s: float | None = None) -> Upkeep:
        wall = {} if at_s is None else {"wall_s": lambda: at_s}
        return Upkeep(self.table, self.definition, LocalJobs(), limits, **wall)  # type: ignore[arg-type]

    def files(self) -> list[Any]:
        return [task.file for task in self.table.table.scan().plan_files()]

    def rows(self) -> list[tuple[bytes, Any]]:
        found = self.table.table.scan().to_arrow().sort_by("offset")
        return list(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))


@pytest.fixture
def users(tmp_path: Path) -> Users:
    return Users(tmp_path)


def groups(file: Any) -> int:
    return int(pq.read_metadata(file.file_path.removeprefix("file://")).num_row_groups)


def test_a_footer_that_leaves_long_keys_out_does_not_hide_them_from_who_looks_for_them(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_GROUP_ROWS", 2)
    long = b"z" * 5000  # of which a footer has no bounds
    users.add([(b"ann", b"1"), (b"bob", b"2"), (long, b"3"), (long, b"4")])
    assert groups(users.files()[0]) == 2
    found = users.table.table.scan(row_filter=EqualTo("key", long)).to_arrow()
    assert found["value"].to_pylist() == [b"3", b"4"]
    assert users.table.table.scan(row_filter="offset >= 4").to_arrow().num_rows == 0


@pytest.mark.parametrize(("kind", "most"), [(pa.timestamp("us", tz="UTC"), 2**62), (pa.date32(), 2**30)])
def test_a_typed_value_that_is_a_time_that_no_calendar_has_is_kept_and_stops_no_export(
    tmp_path: Path, kind: Any, most: int
) -> None:
    users = Users(tmp_path, topic_schema(None).set(1, pa.field("value", kind)))
    users.add([(b"ann", most)])
    assert users.table.table.scan().to_arrow()["value"].combine_chunks().view(_NUMBERS[kind]).to_pylist() == [most]
    (file,) = users.files()
    assert file.partition[0] == START_US // DAY_US
    known = {users.table.table.schema().find_column_name(one) for one in file.lower_bounds}
    assert {"key", "offset", "timestamp"} <= known
    assert "value" not in known


def test_small_files_become_one_row_group_with_all_rows_in_order(users: Users) -> None:
    for at in range(10):
        users.add([(b"%d" % at, b"v"), (b"%d" % at, b"w")])
    before = users.rows()
    assert users.upkeep(Limits(small_files=2)).join_files() == 10
    (file,) = users.files()
    assert (users.rows(), groups(file), file.record_count) == (before, 1, 20)


def test_a_value_is_read_with_few_others_however_many_rows_a_batch_could_have(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_GROUP_BYTES", 1000)
    file = users.written([(b"k", b"v" * 600)] * 6)
    assert groups(file) == 3
    with users.table.table.io.new_input(file.file_path).open() as source:
        assert [batch.num_rows for batch in files.batches_of(source)] == [2, 2, 2]


def test_commits_do_not_leave_a_manifest_each_for_ever(users: Users) -> None:
    file = users.written([(b"ann", b"1")])
    for _ in range(25):
        users.table.table.metadata.properties["commit.manifest.min-count-to-merge"] = "10"  # and not 100
        users.commit(file, 1)
    snapshot = users.table.table.current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(users.table.table.io)
    assert len(manifests) <= 10
    assert sum(one.added_files_count + one.existing_files_count for one in manifests) == 25  # type: ignore[operator]
    assert (users.table.offsets(), users.table.lost()) == ({0: 25}, 0)


def test_of_a_table_with_a_commit_every_second_not_all_snapshots_of_a_day_stay(users: Users) -> None:
    file = users.written([(b"ann", b"1")])
    for _ in range(12):
        users.commit(file, 1)
    now_s = users.table.table.metadata.snapshots[-1].timestamp_ms / 1000
    limits = Limits(most_snapshots=5)
    assert users.upkeep(limits, at_s=now_s).expire_snapshots() == 0, "those of the last hour are there for readers"
    where = users.table.table.metadata_location
    assert users.upkeep(limits, at_s=now_s + 1800).expire_snapshots() == 0
    assert users.table.table.refresh().metadata_location == where, "and nothing was committed"
    assert users.upkeep(limits, at_s=now_s + 3601).expire_snapshots() >= 7
    assert len(users.table.table.metadata.snapshots) <= 5
    assert users.table.offsets() == {0: 12}


def test_keys_are_erased_where_they_are_and_other_files_stay_as_they_are(users: Users) -> None:
    first = users.add([(b"ann", b"1"), (b"bob", b"2"), (b"ann", b"3")])
    users.add([(b"zoe", b"4"), (b"zoe", b"5")])
    last = users.add([(b"ann", None), (b"ann", b"6"), (b"", None)])
    schema = users.table.table.schema()
    assert [may_have_tombstones(one, schema) for one in (first, last)] == [False, True]
    before = {file.file_path for file in users.files()}
    assert users.upkeep().erase_keys() == 2
    assert users.rows() == [
        *[(b"bob", b"2"), (b"zoe", b"4"), (b"zoe", b"5")],
        *[(b"ann", None), (b"ann", b"6"), (b"", None)],
    ]
    after = {file.file_path for file in users.files()}
    assert len(before - after) == 1
    where = users.table.table.metadata_location
    assert users.upkeep().erase_keys() == 0
    assert users.table.table.refresh().metadata_location == where


def test_a_file_of_other_keys_or_of_later_offsets_need_not_be_looked_into(users: Users) -> None:
    file = users.add([(b"h" * 40, b"1"), (b"m", b"2")])
    schema = users.table.table.schema()

    def erased(key: bytes, offset: int) -> ErasedKeys:
        return ErasedKeys.of([pa.table([[key], [offset]], schema=FOUND)])

    assert erased(b"h" * 40, 9).may_be_in(file, schema)
    assert erased(b"m", 9).may_be_in(file, schema)
    assert not erased(b"a", 9).may_be_in(file, schema)
    assert not erased(b"z", 9).may_be_in(file, schema)
    assert not erased(b"m", 0).may_be_in(file, schema)


@pytest.mark.parametrize("among", [(0, 40), (7, 31), (12, 13), (39, 40)])
def test_history_comes_in_the_order_of_offsets_a_row_group_of_each_file_at_a_time(
    users: Users, monkeypatch: pytest.MonkeyPatch, among: tuple[int, int]
) -> None:
    monkeypatch.setattr(files, "_GROUP_ROWS", 3)
    for days, offsets in enumerate(([*range(0, 20, 2)], [*range(1, 20, 2)], [*range(20, 30)])):
        rows = [(b"k", b"%d" % offset) for offset in offsets]
        users.commit(users.written(rows, offsets, days), len(rows))
    users.add([(b"k", b"%d" % offset) for offset in range(30, 40)])
    table = users.table.table
    history = TopicHistory("users", table.metadata_location, {}, {0: 0}, users.table.offsets())
    options = parse({"kafka.bootstrap.servers": "x:1", "subscribe": "users"}, streaming=False)
    batches = list(history.read(Range(Partition("users", 0), *among), options, None))
    assert [offset for batch in batches for offset in batch["offset"].to_pylist()] == [*range(*among)]
    assert [value for batch in batches for value in batch["value"].to_pylist()] == [
        b"%d" % at for at in range(*among)
    ]
    assert max(batch.num_rows for batch in batches) <= 2 * 3
