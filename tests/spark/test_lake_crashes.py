"""Exports whose driver is killed at each step: every offset is in the table once, in folders and in S3."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow.fs import FileSelector

from weir.spark.lake.catalog import Definition, open_catalog
from weir.spark.lake.export import LocalJobs
from weir.spark.lake.table import drop_table
from weir.testing.processes.s3 import S3Server

from .conftest import Topics
from .lake_driver_kit import count_every_offset
from .lake_kit import Lake

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server.start(tmp_path_factory.mktemp("s3"))
    if server is None:
        pytest.skip("SeaweedFS is not installed")
    yield server
    server.close()


def test_a_driver_that_is_killed_at_any_step_loses_no_offset_and_adds_none_twice(
    topics: Topics, tmp_path: Path
) -> None:
    count_every_offset(topics, Lake(topics, tmp_path, LocalJobs()))


def test_the_same_holds_in_a_bucket_of_a_real_s3_server(
    topics: Topics, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    lake = Lake(topics, tmp_path, LocalJobs())
    lake.definition = Definition(
        f"s3://{s3.bucket}/weir", f"sqlite:///{tmp_path}/catalog.db", {"s3.endpoint": s3.url}
    )
    count_every_offset(topics, lake)
    left = FileSelector(f"{s3.bucket}/weir", recursive=True)
    (topic,) = {lake.table(name).topic for _, name in open_catalog(lake.definition).list_tables("public__default")}
    drop_table(lake.table(topic.local), lake.definition)
    assert [one.path for one in s3.files.get_file_info(left) if one.is_file] == [], "orphans go with the table"
