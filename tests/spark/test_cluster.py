"""Source and sink, export and replay on a Spark standalone cluster: one master and two workers."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.testing.processes.up import environment

from .conftest import Reads, Topics
from .sql_session import stored
from .standalone import DEADLINE_S, SparkCluster

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]

_DRIVER = """
import sys
import weir.spark
master, servers, source, target, checkpoint = sys.argv[1:]
spark = weir.spark.session("cluster", master=master, config={
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.cores.max": "2",
    "spark.executor.cores": "1", "spark.sql.shuffle.partitions": "2"})
frame = spark.readStream.format("weir").options(**{
    "kafka.bootstrap.servers": servers, "startingOffsets": "earliest"}).load(source)
query = frame.select("key", "value").writeStream.format("weir").options(**{
    "kafka.bootstrap.servers": servers, "topic": target, "checkpointLocation": checkpoint,
    }).trigger(availableNow=True).start()
assert query.awaitTermination(200)
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
print("executors", executors, flush=True)
spark.stop()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master that has two workers."""
    found = SparkCluster(tmp_path_factory.mktemp("standalone"))
    try:
        yield found.start()
    finally:
        found.close()


@pytest.mark.longest
def test_a_cluster_of_two_workers_runs_source_and_sink(
    topics: Topics, read: Reads, tmp_path: Path, cluster: SparkCluster
) -> None:
    source, target = topics.create(2), topics.create(2)
    for part in range(2):
        topics.fill(source, [f"{part}-{number}" for number in range(100)], part)
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER, cluster.url, topics.servers, source, target, str(tmp_path / "checkpoint")],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "executors 2" in done.stdout
    assert sorted(read.values(target)) == sorted(f"{part}-{number}" for part in range(2) for number in range(100))


@pytest.mark.soak
def test_a_cluster_of_two_workers_runs_export_and_replay(
    topics: Topics, tmp_path: Path, cluster: SparkCluster
) -> None:
    def weir(*words: str, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "weir.cli.main", *words, "--url", topics.up.http_url],
            env={**environment(), **cluster.variables, "XDG_STATE_HOME": str(tmp_path), **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, (done.stdout, done.stderr[-4000:])
        return done.stdout

    source, target = topics.create(2, name="on-two-workers"), topics.create(2, name="again-on-two-workers")
    values = {part: [f"{part}-{number:03d}" for number in range(100)] for part in range(2)}
    for part in range(2):
        topics.fill(source, values[part], part)
    weir("lake", "on", source, "--to", f"file://{tmp_path}/lake")
    try:
        weir("lake", "run", "--once", "--master", cluster.url)
        assert cluster.ran("weir-lake") == ["left", "right"]
        told = json.loads(weir("lake", "status", source, "--json"))
        exported = {one["partition"]: one["exported"] for one in told}
        assert exported == {0: 100, 1: 100}
        for part in range(2):
            topics.trim(source, 60, part)  # from here on these are in the table alone
        where = "CAST(value AS string) LIKE '%5'"
        weir(
            *("replay", "--topic", source, "--where", where, "--into", target, "--no-server"),
            WEIR_SPARK_MASTER=cluster.url,
        )
        assert cluster.ran("weir-sql") == ["left", "right"]
    finally:
        weir("lake", "off", source)
    picked = [value for part in range(2) for value in values[part] if value.endswith("5")]
    assert [value for _, value in stored(topics.servers, target)] == picked
