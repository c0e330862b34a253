"""What a Python worker of Spark keeps from one task to the next: connections, and a heap that is quickly searched.

Spark uses its workers again, for every micro-batch, and after each use has Python look for garbage in all that it
has loaded: tens of milliseconds with numba and Arrow, four times per micro-batch.
"""

import gc
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import TaskContext

from weir.client.kafka.cluster import Cluster
from weir.client.kafka.settings import KafkaSettings

#: After so many uses of a worker all is loaded that it needs.
_USES = 3
#: Connections that wait for the next task: so many of one query, for so long, and to so many clusters.
_MOST_IDLE, _IDLE_S, _MOST_KINDS = 4, 60.0, 16

#: As Spark gives it to the tasks of a stream.
_QUERY_ID = "sql.streaming.queryId"

_used = 0
_idle: dict[KafkaSettings, list[tuple[float, Cluster]]] = {}


def settle() -> None:
    """Called at the end of a use: what is loaded now stays, and need not be looked through for garbage. Only where
    a process is Spark's own; somebody else's heap is not ours to decide on."""
    global _used  # noqa: PLW0603 - of the process, which is what it is about
    if _used < _USES and "SPARK_REUSE_WORKER" in os.environ:
        _used += 1
        gc.freeze()


def query_id() -> str | None:
    """In a task of a stream, the id that its checkpoint has."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(_QUERY_ID)


@contextmanager
def borrowed(settings: KafkaSettings) -> Iterator[Cluster]:
    """The brokers, by connections that a task before has left, if they are still good. Who fails leaves none."""
    cluster = _waiting(settings) or Cluster(settings)
    try:
        yield cluster
    except BaseException:
        cluster.close()
        raise
    _leave(settings, cluster)


def _waiting(settings: KafkaSettings) -> Cluster | None:
    left = _idle.get(settings, [])
    while left:
        since, cluster = left.pop()
        if time.monotonic() - since < _IDLE_S and cluster.is_quiet():
            return cluster
        cluster.close()
    return None


def _leave(settings: KafkaSettings, cluster: Cluster) -> None:
    left = _idle.setdefault(settings, [])
    if len(left) >= _MOST_IDLE or not cluster.is_quiet():
        cluster.close()
        return
    cluster.forget_transactions()
    left.append((time.monotonic(), cluster))
    while len(_idle) > _MOST_KINDS:
        for _, old in _idle.pop(next(iter(_idle))):
            old.close()


def end_in_silence() -> None:
    """See to it that this worker, when its Spark ends while it waits for more, says nothing. Spark closes the
    connections of idle workers before it ends them, and one that is quick enough tries to tell it so, fails, and
    prints a traceback, or the first line of one, below whatever the user's program has printed last."""
    daemon: Any = sys.modules.get("__main__")
    spec = getattr(daemon, "__spec__", None)
    if spec is None or spec.name != "pyspark.daemon" or hasattr(daemon.worker, "before"):
        return
    before = daemon.worker

    def worker(sock: socket.socket, authenticated: bool) -> int:
        """As Spark's, once there is something to do."""
        try:
            more = sock.recv(1, socket.MSG_PEEK)
        except OSError:
            more = b""
        code: int = before(sock, authenticated) if more else 1
        return code

    worker.before = before  # type: ignore[attr-defined]
    daemon.worker = worker


end_in_silence()  # whatever a worker is used for, it loads this module for the first use
