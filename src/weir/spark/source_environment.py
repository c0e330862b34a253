"""The environment of Spark's source processes, complete before the first query starts.

Spark's JVM keeps one map of environment variables for each Python data source. Every streaming query adds four
variables to it, in its own thread and without a lock. Two queries that start in the same moment corrupt the map,
and from then on no task of the JVM that reads or writes the source can be serialized
(docs/internals/spark-defects.md).

A map that has all of its keys, and has grown as far as it will, is not changed in its structure by further puts.
So Weir puts the four variables itself, twice, under a lock, before a query can start. Where the JVM cannot be
reached (Spark Connect), queries start one after the other instead.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import Any

from py4j.protocol import Py4JError

log = logging.getLogger(__name__)

#: The sources whose maps are filled: `weir.spark.source`, `weir.spark.functions`.
SOURCES = ("weir", "weir-function")
#: Every query puts these (PythonStreamingSourceRunner.init of Spark 4.3); a test finds further ones.
KEYS = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")
#: A put into a table that is full enough grows it, even if the key exists; after the second time it is large.
_TIMES = 2
#: The folder whose `sitecustomize` connects the source's process before it loads anything.
EARLY = str(Path(__file__).with_name("early_connection"))
_PATH = "PYTHONPATH"
#: What Spark starts for each query's source.
_SOURCE_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"

#: Queries that start one after the other: how long one is waited for, and how often it is asked.
_PATIENCE_S, _POLL_S = 120.0, 0.05
_TRIES = 5
_INITIALIZING = "Initializing"
_NOT_CONNECTED = "Python worker failed to connect back"

_filling = Lock()
_starting = Lock()
_warned = False


def settle_environment(spark: Any, *, search: bool = False) -> bool:
    """Complete the maps of Weir's sources. False if the JVM of this session cannot be reached, or is not as it is
    known here: then queries must start one after the other, by `start_in_turn`. `search`: have Spark search for
    sources if it has not yet, for queries that the JVM starts by itself."""
    global _warned  # noqa: PLW0603 - one warning per process
    if getattr(spark, "_jsparkSession", None) is None:
        return False
    try:
        with _filling:
            for variables in environments(spark, search=search):
                _fill(spark, variables)
    except (Py4JError, AttributeError, TypeError) as failure:
        if not _warned:
            log.warning("the environment of Spark's sources is not filled, queries start in turn: %s", failure)
        _warned = True
        return False
    return True


def environments(spark: Any, *, search: bool = False) -> Iterator[Any]:
    """The maps of those of Weir's sources that this session knows, as objects of Java."""
    package = spark._jvm.org.apache.spark.sql.execution.datasources
    manager = getattr(getattr(package, "DataSourceManager$"), "MODULE$")
    if not search and not manager.dataSourceBuilders().isDefined():
        return  # Spark has not searched for sources yet, so that no plan can have one
    known = spark._jsparkSession.sessionState().dataSourceManager()
    for name in SOURCES:
        if known.dataSourceExists(name):
            yield known.lookupDataSource(name).dataSourceCls().envVars()


def _fill(spark: Any, variables: Any) -> None:
    """Spark overwrites the values; only that the keys exist is of importance."""
    conf = spark._jsc.sc().conf()
    values = {
        "SPARK_LOCAL_DIRS": spark._jvm.org.apache.spark.util.Utils.getLocalDir(conf),
        "SPARK_AUTH_SOCKET_TIMEOUT": str(conf.getTimeAsSeconds("spark.python.authenticate.socketTimeout", "15s")),
        "SPARK_BUFFER_SIZE": str(conf.getInt("spark.buffer.size", 65536)),
        "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
    }
    values = {key: variables.get(key) or value for key, value in values.items()}
    before = variables.get(_PATH) or ""
    if EARLY not in before.split(os.pathsep):
        values[_PATH] = os.pathsep.join(filter(None, (EARLY, before)))
    for _ in range(_TIMES):
        for key, value in values.items():
            variables.put(key, value)


def warn_unprotected() -> None:
    """For a streaming source to call: warn if Spark started its process without Weir's environment, because the
    program that has the JVM never imported `weir.spark`."""
    paths = os.environ.get(_PATH, "").split(os.pathsep)
    if sys.orig_argv[1:3] == ["-m", _SOURCE_RUNNER] and EARLY not in paths:
        log.warning(
            "this program's streaming queries are not protected from two defects of Spark on a busy machine: "
            "add `import weir.spark` to it (docs/internals/spark-defects.md)"
        )


def start_in_turn(start: Callable[[], Any]) -> Any:
    """Start a query, and return it when its sources are there. One whose source process was too slow for Spark's
    10 s is started again: it has read nothing yet."""
    with _starting:
        query = start()
        for attempt in range(2, _TRIES + 1):
            if not _has_missed_connection(query):
                break
            log.warning("the process of a query's source was too slow for Spark; attempt %d follows", attempt)
            query = start()
        return query


def _has_missed_connection(query: Any) -> bool:
    """Whether it ended since its source process did not connect in time; waits until the sources are there."""
    deadline = monotonic() + _PATIENCE_S
    while query.isActive and monotonic() < deadline:
        if not str(query.status["message"]).startswith(_INITIALIZING):
            return False
        sleep(_POLL_S)
    return not query.isActive and _NOT_CONNECTED in str(query.exception())
