"""A Spark standalone cluster: one master and its workers, each a process of its own that can be killed."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pyspark

from weir.spark.java import find_java
from weir.testing.processes.states import processes_below

DEADLINE_S = 240.0
_ADDRESS = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
_SIZE = ("--cores", "1", "--memory", "600m")
#: Of drivers: what a user writes into spark-defaults.conf.
_DEFAULTS = """
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.driver.memory 512m
spark.executor.memory 512m
spark.executor.cores 1
spark.cores.max 2
spark.sql.shuffle.partitions 2
"""


def kill_all(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Those that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


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

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def said(self, pattern: str) -> str:
        """What fits the pattern in its log, once it is there."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            found = re.search(pattern, self.log)
            if found is not None:
                return found[1]
            assert self.process.poll() is None, self.log
            time.sleep(0.1)
        raise AssertionError(self.log)

    def kill(self) -> None:
        """It and all that it has started, as if its machine had lost its power."""
        kill_all([*processes_below(self.process.pid), self.process.pid])
        self.process.wait(60)


class SparkCluster:
    """`left` and `right` work for the master at `url`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._master = Daemon(folder, "master", "org.apache.spark.deploy.master.Master", *_ADDRESS)
        self.workers: dict[str, Daemon] = {}
        (folder / "conf").mkdir()
        (folder / "conf" / "spark-defaults.conf").write_text(_DEFAULTS)

    def start(self) -> "SparkCluster":
        self.url = self._master.said(r"Starting Spark master at (spark://\S+)")
        for name in ("left", "right"):
            self.add(name)
        for worker in self.workers.values():
            worker.said(r"(Successfully registered with master)")
        return self

    def add(self, name: str) -> None:
        work = ("org.apache.spark.deploy.worker.Worker", *_ADDRESS, *_SIZE, self.url)
        self.workers[name] = Daemon(self._folder, name, *work)

    @property
    def variables(self) -> dict[str, str]:
        """Of the environment of a driver."""
        return {"SPARK_CONF_DIR": str(self._folder / "conf"), "SPARK_LOCAL_IP": "127.0.0.1"}

    def ran(self, application: str) -> list[str]:
        """The workers that had executors of it."""
        asked = rf"Asked to launch executor \S+ for {re.escape(application)}"
        return [name for name, worker in self.workers.items() if re.search(asked, worker.log)]

    def close(self) -> None:
        for daemon in (*self.workers.values(), self._master):
            if daemon.process.poll() is None:
                daemon.process.terminate()
        for daemon in (*self.workers.values(), self._master):
            daemon.process.wait(60)
