"""A Spark session that suits Weir: the right Java, interpreter, sockets, checkpoints and state store.

The settings are a table, so that they can be shown, documented and used for a session of one's own.
"""

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from weir.model.errors import SparkSetupError
from weir.spark.hooking import hook_readers
from weir.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Settings, and why they are there. Times are medians of a micro-batch (shared/design/findings.md).
_ALWAYS = {
    # The JVM and its Python workers talk over Unix sockets: 328 -> 249 ms.
    "spark.python.unix.domain.socket.enabled": "true",
    # Checkpoint files are renamed within one file system, not by way of Hadoop's FileContext: 249 -> 156 ms.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # State that does not have to fit into the JVM's memory; stateful operators written in Python need it.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Filters on partition, offset and timestamp reach the source; off unless told.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # The lake's columns are known by their ids, whatever they were called when a file was written.
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

#: Workers of another interpreter would not find the data source, and Spark would not say so.
_INTERPRETERS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")

#: For a session within one machine: no host name is looked up. A group-by gets no 200 tasks either, see below.
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def settings(master: str = "local[*]") -> dict[str, str]:
    """The settings of `session()`, for a session of one's own."""
    found = dict(_ALWAYS)
    if master.startswith("local"):
        found |= _LOCAL
        found["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 2))
    log_settings = Path(__file__).with_name("log4j2.properties")
    found["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={log_settings.as_uri()}"
    return found


def session(
    name: str = "weir", *, master: str = "local[*]", config: Mapping[str, str] | None = None
) -> "SparkSession":
    """The running session, or a new one; `config` goes over Weir's settings."""
    prepare()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).master(master)
    for key, value in (settings(master) | dict(config or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def make_known() -> None:
    """Let sessions that the user builds find `format("weir")`: those to come by the environment, which they start
    their interpreter by unless it says otherwise, and one that runs already by registration."""
    for name in _INTERPRETERS:
        os.environ.setdefault(name, sys.executable)
    hook_readers()
    loaded = sys.modules.get("pyspark.sql")
    running = None if loaded is None else loaded.SparkSession.getActiveSession()
    if running is not None:
        from weir.spark.source.source import WeirSource

        running.dataSource.register(WeirSource)


def prepare() -> None:
    """Set what must be set in the environment before the JVM starts."""
    if find_spec("pyspark") is None:
        raise SparkSetupError("PySpark is not installed")
    os.environ["JAVA_HOME"] = find_java().home
    for name in _INTERPRETERS:
        os.environ.setdefault(name, sys.executable)
