"""Whether the JVM of this process can still run queries. If it cannot, only a new process can."""

import re
from typing import Any

from py4j.protocol import Py4JError

from weir.spark.sql.stream_query import failure_text

#: What PySpark raises where the JVM does not answer.
GATEWAY_FAILURES = (Py4JError, ConnectionError)


#: How Scala refuses to serialize a map that two threads have damaged (docs/internals/spark-defects.md).
_DAMAGED = re.compile(r"Illegal size \d+ of collection, expected \d+")


def jvm_defect(spark: Any, failure: BaseException | None = None) -> str:
    """Why this JVM can run no query any more; empty if nothing is known against it. `failure`: of a query."""
    if failure is not None and _DAMAGED.search(failure_text(failure)):
        return "the environment map of Spark's JVM is damaged"
    session = getattr(spark, "_jsparkSession", None)
    if session is None:  # Spark Connect: the JVM is elsewhere
        return ""
    try:
        stopped = session.sparkContext().isStopped()
    except GATEWAY_FAILURES:
        return "Spark's JVM has ended"
    return "Spark's context is stopped" if stopped else ""
