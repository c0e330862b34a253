"""The Spark that connectors with `engine = "spark"` work by: one session for all, and another if its JVM dies."""

import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from weir.connect.place import Place
from weir.model.errors import ConnectorError, SparkSetupError, WeirError
from weir.model.installation import install_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STARTING = threading.Lock()
_THROWN = re.compile(r"(?::|Caused by:) [\w.$]+(?:Exception|Error): (.+)")
_CODES = re.compile(r"\s*SQLSTATE: \w+$")


def session() -> "SparkSession":
    """The one that runs, or a new one."""
    try:
        import weir.spark
    except ImportError:
        raise SparkSetupError(
            'engine = "spark" needs Spark', hint=f"install it: {install_command('spark')}"
        ) from None
    with _STARTING:
        _forget_dead()
        spark = weir.spark.session("weir-connect")
        # Spark finds a sink by the session of the calling thread; this makes it be that one.
        spark.createDataFrame([], "nothing int")
        return spark


def _forget_dead() -> None:
    """PySpark keeps a context whose JVM is gone for ever, and would give it to whoever asks."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway
    if gateway is None or _runs(gateway):
        return
    context: Any = SparkContext._active_spark_context
    with suppress(Exception):
        context.stop()
    with suppress(Exception):
        gateway.shutdown()
    forgotten: Any = SparkContext
    forgotten._gateway = forgotten._jvm = forgotten._active_spark_context = None
    SparkSession._instantiatedSession = None


def _runs(gateway: Any) -> bool:
    process = getattr(gateway, "proc", None)
    return process is None or process.poll() is None


def driver_runs() -> bool:
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    return gateway is not None and _runs(gateway)


def cancel(group: str) -> None:
    """End the jobs of a connector that shall end; by another thread than theirs."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    if context is not None and driver_runs():
        with suppress(Exception):
            context.cancelJobGroup(group)


def failed(failure: Exception) -> ConnectorError:
    """What happened, without the stacks of three programs."""
    from weir.spark.sql.progress import told

    if isinstance(failure, ConnectorError):
        return failure
    if isinstance(failure, WeirError):
        return ConnectorError(failure.what, hint=failure.hint)
    if not driver_runs():
        return ConnectorError("Spark's driver has ended", hint="another one is started with the next try")
    called = str(failure).startswith("An error occurred while calling")  # which says nothing yet
    return ConnectorError(innermost(failure) if called else told(failure))


def innermost(failure: Exception) -> str:
    """What the last of the errors says by which a Java program explains the one before."""
    thrown = [found for line in str(failure).splitlines() if (found := _THROWN.match(line.strip()))]
    said = thrown[-1][1] if thrown else str(failure).partition("\n")[0]
    return _CODES.sub("", said.partition("] ")[2] if said.startswith("[") else said).strip()


def connection(place: Place) -> Mapping[str, str]:
    """What Spark's source and sink need to come in."""
    from weir.spark.sql.cluster import WeirCluster

    servers = ",".join(map(str, place.kafka.servers))
    return WeirCluster(place.access, servers, place.kafka.tls is not None).options
