"""Tables that are looked after: what is joined, expired, erased and removed, and that nothing else changes."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from weir.client.kafka.cluster import Cluster
from weir.model.errors import LakeConflictError, LakeError
from weir.spark.lake.catalog import Definition, NamespaceLake
from weir.spark.lake.export import LocalJobs, SparkJobs
from weir.spark.lake.table import drop_table, find_table
from weir.spark.lake.upkeep import ErasedKeys, Kept, Limits, Tasks, Upkeep, drop_deleted, tombstones
from weir.wire.kafka.records import Record, build_batch

from .conftest import Topics
from .lake_kit import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]

DAY_MS = 86_400_000
EVERYTHING = Limits(small_files=2, snapshots_s=0.0, orphans_s=0.0)


@pytest.fixture
def lake(topics: Topics, tmp_path: Path) -> Lake:
    return Lake(topics, tmp_path, LocalJobs())


def upkeep(lake: Lake, topic: str, tasks: Tasks | None = None, *, later_s: float = 60.0) -> Upkeep:
    table, definition = lake.table(topic), lake.definition
    return Upkeep(table, definition, tasks or LocalJobs(), EVERYTHING, wall_s=lambda: time.time() + later_s)


def parquet(lake: Lake, tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.rglob("*.parquet"))


def test_small_files_become_one_with_the_same_rows_and_the_old_ones_and_orphans_go(
    topics: Topics, lake: Lake, tmp_path: Path
) -> None:
    topic = topics.create()
    for value in ("a", "b", "c"):
        topics.fill(topic, [value])
        lake.export(topic)
    before = lake.rows(topic)
    orphan = Path(parquet(lake, tmp_path)[0].parent, "of-a-killed-export.parquet")
    orphan.write_bytes(b"half")
    with Cluster(topics.cluster().settings) as cluster:
        done = upkeep(lake, topic).all(cluster)
    assert done.joined == 3
    assert done.snapshots == 3
    assert lake.rows(topic) == before
    assert len(parquet(lake, tmp_path)) == 1
    topics.fill(topic, ["d"])
    lake.export(topic)
    assert lake.places(topic) == [(0, at) for at in range(4)], "the next export goes on where the last one was"


def test_an_export_that_comes_between_makes_the_joining_fail_and_nothing_is_lost(
    topics: Topics, lake: Lake
) -> None:
    topic = topics.create()
    for value in ("a", "b"):
        topics.fill(topic, [value])
        lake.export(topic)

    class Slow(LocalJobs):
        def map(self, work, items):  # type: ignore[no-untyped-def]
            found = super().map(work, items)
            topics.fill(topic, ["c"])
            lake.export(topic)
            return found

    late = Upkeep(lake.table(topic), lake.definition, Slow(), EVERYTHING)
    with pytest.raises(LakeConflictError):
        late.join_files()
    assert lake.places(topic) == [(0, 0), (0, 1), (0, 2)]


def test_days_older_than_the_table_keeps_go_and_the_others_stay(topics: Topics, lake: Lake) -> None:
    topic = topics.create()
    now = int(time.time() * 1000)
    topics.fill(topic, ["old", "new", "without a time"], times=[now - 40 * DAY_MS, now, -1])
    lake.export(topic)
    lake.definition = Definition(lake.definition.to, lake.definition.catalog, keep_ms=30 * DAY_MS)
    assert upkeep(lake, topic).expire_days() == 1
    assert sorted(row["value"] for row in lake.rows(topic)) == [b"new", b"without a time"]
    assert lake.table(topic).offsets() == {0: 3}


def test_a_tombstone_in_a_compacted_topic_erases_the_key_from_the_table_and_its_files_by_sparks_tasks(
    topics: Topics, lake: Lake, spark: "SparkSession"
) -> None:
    topic = f"erased-{os.getpid()}"
    admin = AdminClient({"bootstrap.servers": topics.servers})
    admin.create_topics([NewTopic(topic, 1, config={"cleanup.policy": "compact"})])[topic].result(30)
    topics.fill(topic, ["ann", "bob"])
    lake.export(topic)
    topics.send(topic, build_batch([Record(0, 1_700_000_000_000, b"ann", None)]))
    lake.export(topic)
    with Cluster(topics.cluster().settings) as cluster:
        done = upkeep(lake, topic, SparkJobs(spark)).all(cluster)
    assert done.erased == 1
    assert [(row["key"], row["value"]) for row in lake.rows(topic)] == [(b"bob", b"bob"), (b"ann", None)]
    assert len(lake.table(topic).table.metadata.snapshots) == 1, "no older snapshot has it either"
    assert upkeep(lake, topic).erase_keys() == 0


def test_typed_keys_are_erased_by_the_bytes_that_were_sent() -> None:
    keys = pa.array([{"n": 1}, {"n": 2}, {"n": 1}])
    rows = pa.table(
        {
            "key": keys,
            "raw_key": pa.array([b"k1", b"k2", b"k1"]),
            "value": pa.array([{"v": 1}, {"v": 2}, None]),
            "raw_value": pa.array([b"1", b"2", None]),
            "offset": pa.array([5, 6, 7]),
            "corrupt": pa.nulls(3, pa.binary()),
        }
    )
    found = ErasedKeys.of([tombstones(rows.to_batches()[0])])
    assert (found.keys.to_pylist(), found.offsets.tolist()) == ([b"k1"], [7])
    assert found.left(rows.to_batches()[0]).column("offset").to_pylist() == [6, 7]
    old = rows.drop_columns(["raw_key", "raw_value"])  # exported before bytes were kept: nobody can tell
    assert found.left(old.to_batches()[0]).num_rows == 3


def test_the_table_of_a_deleted_topic_goes_with_its_files_and_others_stay(
    topics: Topics, lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, deleted = topics.create(), topics.create()
    for topic in (kept, deleted):
        topics.fill(topic, ["a"])
        lake.export(topic)
    name = lake.table(deleted).topic
    place = Path(lake.table(deleted).location.removeprefix("file://"))
    (place / "data" / "of-a-killed-export.parquet").write_bytes(b"half")
    topics.delete(deleted)
    lakes = [NamespaceLake(name.namespace, lake.definition, {})]
    with Cluster(topics.cluster().settings) as cluster:
        assert drop_deleted(cluster, lakes) == [name]
        assert drop_deleted(cluster, lakes) == []
    assert find_table(name, lake.definition) is None
    assert not place.exists(), "with what exports that came to nothing had left"
    assert not caplog.messages, "nobody is told of trouble that is none"
    assert len(parquet(lake, tmp_path)) == 1
    assert lake.places(kept) == [(0, 0)]


def test_a_table_of_another_weir_is_neither_written_nor_dropped(topics: Topics, lake: Lake) -> None:
    topic = topics.create()
    topics.fill(topic, ["a"])
    lake.export(topic)
    name, ours = lake.table(topic).topic, lake.definition
    topics.delete(topic)
    topics.create(name=topic)
    lake.definition = Definition(ours.to, ours.catalog, owner="another")
    with pytest.raises(LakeError, match="another Weir"):
        lake.export(topic)
    with Cluster(topics.cluster().settings) as cluster:
        assert drop_deleted(cluster, [NamespaceLake(name.namespace, lake.definition, {})]) == []
    assert find_table(name, ours) is not None


def test_what_lies_where_a_table_would_stays_whole_of_a_catalog_that_is_lost(topics: Topics, lake: Lake) -> None:
    """As of a bucket, whose catalog lies beside the broker's data by default; or of two Weirs with one bucket."""
    topic = topics.create()
    topics.fill(topic, ["a"])
    lake.export(topic)
    first = lake.definition
    lake.definition = Definition(first.to, first.catalog.replace("catalog.db", "another.db"), owner="another")
    topics.fill(topic, ["b"])
    lake.export(topic)
    assert lake.places(topic) == [(0, 0), (0, 1)]
    assert upkeep(lake, topic).remove_orphans() == 0
    drop_table(lake.table(topic), lake.definition)
    lake.definition = first
    assert lake.places(topic) == [(0, 0)]


def test_with_nothing_to_do_nothing_is_done(topics: Topics, lake: Lake) -> None:
    topic = topics.create()
    topics.fill(topic, ["a"])
    lake.export(topic)
    with Cluster(topics.cluster().settings) as cluster:
        assert Upkeep(lake.table(topic), lake.definition, LocalJobs()).all(cluster) == Kept()
