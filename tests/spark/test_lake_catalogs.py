"""A catalog of the lake that is no file: a real PostgreSQL."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from weir.client.kafka.cluster import Cluster
from weir.model.errors import LakeConflictError
from weir.spark.lake.definitions import Definition, NamespaceLake
from weir.spark.lake.jobs import LocalJobs
from weir.spark.lake.tables import find_table
from weir.spark.lake.upkeep import Limits, Upkeep, drop_deleted
from weir.testing.processes.postgresql import PostgresqlServer

from .conftest import Topics
from .lake_driver_kit import count_every_offset
from .lake_kit import Lake

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def catalog() -> Iterator[str]:
    """Its address."""
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


def test_a_driver_that_is_killed_at_any_step_loses_no_offset_and_adds_none_twice(
    topics: Topics, lake: Lake
) -> None:
    count_every_offset(topics, lake)
