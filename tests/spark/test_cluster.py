"""Source and sink on a Spark standalone cluster: one master and two workers, each a process of its own."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from weir.spark.java import find_java

from .conftest import Reads, Topics

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]

_DEADLINE_S = 240.0
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


class Daemon:
    """A process of Spark's own, and what it has logged."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self._log = folder / f"{name}.log"
        home = os.path.dirname(pyspark.__file__)
        environment = os.environ | {
            "JAVA_HOME": find_java().home,
            "SPARK_HOME": home,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_WORKER_DIR": str(folder / name),
            "PYSPARK_PYTHON": sys.executable,
        }
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [f"{home}/bin/spark-class", *arguments], env=environment, stdout=log, stderr=log
            )

    def said(self, pattern: str) -> str:
        """What fits the pattern in its log, once it is there."""
        deadline = time.monotonic() + _DEADLINE_S
        while time.monotonic() < deadline:
            found = re.search(pattern, self._log.read_text(errors="replace"))
            if found is not None:
                return found[1]
            assert self.process.poll() is None, self._log.read_text(errors="replace")
            time.sleep(0.1)
        raise AssertionError(self._log.read_text(errors="replace"))


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a master that has two workers."""
    ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    leader = Daemon(tmp_path, "master", "org.apache.spark.deploy.master.Master", *ports)
    daemons = [leader]
    try:
        url = leader.said(r"Starting Spark master at (spark://\S+)")
        for name in ("left", "right"):
            sizes = ("--cores", "1", "--memory", "600m")
            daemons.append(Daemon(tmp_path, name, "org.apache.spark.deploy.worker.Worker", *ports, *sizes, url))
        for worker in daemons[1:]:
            worker.said(r"(Successfully registered with master)")
        yield url
    finally:
        for daemon in daemons:
            daemon.process.terminate()
        for daemon in daemons:
            daemon.process.wait(60)


@pytest.mark.longest
def test_a_cluster_of_two_workers_runs_source_and_sink(
    topics: Topics, read: Reads, tmp_path: Path, master: str
) -> None:
    source, target = topics.create(2), topics.create(2)
    for part in range(2):
        topics.fill(source, [f"{part}-{number}" for number in range(100)], part)
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER, master, topics.servers, source, target, str(tmp_path / "checkpoint")],
        capture_output=True,
        text=True,
        check=False,
        timeout=_DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "executors 2" in done.stdout
    assert sorted(read.values(target)) == sorted(f"{part}-{number}" for part in range(2) for number in range(100))
