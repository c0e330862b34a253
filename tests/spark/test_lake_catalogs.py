"""Catalogs of the lake that are no file: a real PostgreSQL, and Iceberg's own REST catalog server."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bench.iceberg_catalog import ARTIFACTS, RestCatalog
from click.testing import CliRunner
from pyiceberg.catalog import load_catalog

from weir.cli.main import cli
from weir.client.kafka.cluster import Cluster
from weir.client.schemas import topic_of
from weir.model.errors import LakeConflictError
from weir.spark.lake.catalog import Definition, NamespaceLake, namespace_lake, turn_off
from weir.spark.lake.export import LocalJobs, SparkJobs
from weir.spark.lake.table import find_table
from weir.spark.lake.upkeep import Limits, Upkeep, drop_deleted
from weir.testing.processes.postgresql import PostgresqlServer

from .conftest import Topics
from .lake_driver_kit import count_every_offset
from .lake_kit import Lake
from .sql_session import Sql, make_orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    missing = ARTIFACTS.missing()
    if missing:
        pytest.skip(missing)
    server = RestCatalog(tmp_path_factory.mktemp("catalog"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module", params=["postgresql", pytest.param("rest", marks=pytest.mark.soak)])
def catalog(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of each."""
    if request.param == "rest":
        yield request.getfixturevalue("rest").url
        return
    server = PostgresqlServer.start()
    if server is None:
        pytest.skip("PostgreSQL is not installed")
    with closing(server):
        yield f"postgresql://weir@127.0.0.1:{server.port}/postgres"


@pytest.fixture
def lake(topics: Topics, tmp_path: Path, catalog: str) -> Lake:
    found = Lake(topics, tmp_path, LocalJobs())
    found.definition = Definition(f"file://{tmp_path}/lake", catalog)
    return found


def test_a_catalog_has_the_table_and_lets_one_of_two_exports_commit(
    topics: Topics, tmp_path: Path, lake: Lake
) -> None:
    topic = topics.create(2)
    topics.fill(topic, ["a", "b"], 0)
    lake.export(topic)
    topics.fill(topic, ["c"], 1)

    class Late(LocalJobs):
        def run(self, job, ranges, done):  # type: ignore[no-untyped-def]
            found = super().run(job, ranges, done)
            lake.export(topic)
            return found

    late = Lake(topics, tmp_path, Late())
    late.definition = lake.definition
    with pytest.raises(LakeConflictError):
        late.export(topic)
    assert lake.places(topic) == [(0, 0), (0, 1), (1, 0)]
    assert len(list(tmp_path.rglob("*.parquet"))) == 2, "what was not added is gone"


def test_a_table_is_looked_after_and_goes_with_its_topic(topics: Topics, tmp_path: Path, lake: Lake) -> None:
    topic = topics.create()
    for value in ("a", "b", "c"):
        topics.fill(topic, [value])
        lake.export(topic)
    limits = Limits(small_files=2, snapshots_s=0.0, orphans_s=0.0)
    with Cluster(topics.cluster().settings) as cluster:
        later = Upkeep(lake.table(topic), lake.definition, LocalJobs(), limits, wall_s=lambda: time.time() + 60)
        done = later.all(cluster)
        assert (done.joined, done.snapshots) == (3, 3)
        assert lake.places(topic) == [(0, 0), (0, 1), (0, 2)]
        assert len(list(tmp_path.rglob("*.parquet"))) == 1
        name = lake.table(topic).topic
        topics.delete(topic)
        assert drop_deleted(cluster, [NamespaceLake(name.namespace, lake.definition, {})]) == [name]
    assert find_table(name, lake.definition) is None
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.soak
def test_a_driver_that_is_killed_at_any_step_loses_no_offset_and_adds_none_twice(
    topics: Topics, lake: Lake
) -> None:
    count_every_offset(topics, lake)


@pytest.mark.soak
def test_a_rest_catalog_is_named_by_a_setting_and_its_tables_are_read_by_pyiceberg_and_spark(
    topics: Topics, tmp_path: Path, rest: RestCatalog, spark: "SparkSession", sql: Sql
) -> None:
    topic = f"rest_{tmp_path.name}"
    make_orders(topics, topic, 0, 6)
    words = ["lake", "on", topic, "--to", str(tmp_path / "lake"), "--catalog", rest.url]
    done = CliRunner().invoke(cli, [*words, "--url", topics.up.http_url])
    assert done.exit_code == 0, (done.output, done.exception)
    lake = Lake(topics, tmp_path, SparkJobs(spark))
    name = topic_of(topic)
    found = namespace_lake(lake.place.access, name.namespace).of(name)
    assert found is not None
    assert found.catalog == rest.url
    lake.definition = found
    try:
        exported = lake.export(topic)
        assert exported is not None
        assert exported.rows == 6
        topics.trim(topic, 6)
        make_orders(topics, topic, 6, 3)

        table = load_catalog("anybody", type="rest", uri=rest.url).load_table(f"public__default.{topic}")
        rows = table.scan(row_filter="offset >= 2", selected_fields=("offset", "value")).to_arrow().to_pylist()
        assert sorted((row["offset"], row["value"]["id"]) for row in rows) == [(at, at) for at in range(2, 6)]
        files = [task.file.file_path for task in table.scan().plan_files()]
        assert sorted(row.id for row in spark.read.parquet(*files).select("value.id").collect()) == list(range(6))
        options = {"kafka.bootstrap.servers": topics.servers, "adminUrl": topics.up.http_url}
        frame = spark.read.format("weir").options(**options).load(topic)
        assert sorted(row.offset for row in frame.select("offset").collect()) == list(range(9))
        assert sql.rows(f"SELECT count(*), count(DISTINCT __offset), max(id) FROM {topic}") == [(9, 9, 8)]
    finally:
        turn_off(lake.place.access, name.namespace, name.local)


@pytest.mark.soak
def test_a_rest_catalog_that_was_killed_is_an_error_and_the_next_export_goes_on(
    topics: Topics, tmp_path: Path, rest: RestCatalog
) -> None:
    lake = Lake(topics, tmp_path, LocalJobs())
    lake.definition = Definition(f"file://{tmp_path}/lake", rest.url)
    topic = topics.create()
    topics.fill(topic, ["a"])
    lake.export(topic)
    topics.fill(topic, ["b"])

    class Killed(LocalJobs):
        def run(self, job, ranges, done):  # type: ignore[no-untyped-def]
            found = super().run(job, ranges, done)
            rest.kill()
            return found

    late = Lake(topics, tmp_path, Killed())
    late.definition = lake.definition
    with pytest.raises(Exception, match=r"[Cc]onnect"):
        late.export(topic)
    rest.start()
    lake.export(topic)
    assert lake.places(topic) == [(0, 0), (0, 1)]
