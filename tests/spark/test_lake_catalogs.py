"""A catalog of the lake that is no file: a real PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.model.errors import LakeConflictError
from weir.spark.lake.definitions import Definition
from weir.spark.lake.jobs import LocalJobs
from weir.testing.processes.postgresql import PostgresqlServer

from .conftest import Topics
from .lake_kit import Lake

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgresqlServer]:
    server = PostgresqlServer.start()
    if server is None:
        pytest.skip("PostgreSQL is not installed")
    yield server
    server.close()


def test_a_catalog_in_postgresql_has_the_table_and_lets_one_of_two_exports_commit(
    topics: Topics, tmp_path: Path, postgresql: PostgresqlServer
) -> None:
    catalog = f"postgresql://weir@127.0.0.1:{postgresql.port}/postgres"
    lake = Lake(topics, tmp_path, LocalJobs())
    lake.definition = Definition(f"file://{tmp_path}/lake", catalog)
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
