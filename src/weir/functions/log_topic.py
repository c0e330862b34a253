"""What a function says, in a topic: JSON lines, sent by a thread of their own.

While the topic takes them, whoever says more than can be sent waits. Once it does not, lines are left out, and
their number is told when it does again.
"""

import json
import logging
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.producing import Sender
from weir.client.kafka.settings import KafkaSettings
from weir.functions.committing import chunks
from weir.functions.protocol import LogLine
from weir.model.errors import WeirError
from weir.model.functions import Function
from weir.wire.kafka.records_build import Record, build_batch

log = logging.getLogger(__name__)

_QUEUED = 1_000
_LINES = 500
#: How long whoever says something waits for room, at the most.
_PATIENCE_S = 5.0


def line_of(function: Function, line: LogLine) -> Record:
    """As JSON: when, how grave, who said what, and about which message."""
    said = {
        "time": line.time_ms,
        "level": line.level,
        "function": function.name.local,
        "version": function.version,
        "logger": line.logger,
        "message": line.text,
    }
    if line.offset >= 0:
        said |= {"topic": line.topic, "partition": line.partition, "offset": line.offset}
    return Record(0, line.time_ms, function.name.local.encode(), json.dumps(said, ensure_ascii=False).encode(), ())


def _left_out(left_out: int) -> list[LogLine]:
    text = f"{left_out} lines are left out: they could not be stored"
    return [LogLine(time.time_ns() // 1_000_000, "WARNING", "weir", text)] if left_out else []


class LogTopic:
    """Without a topic lines go to the worker's own log."""

    def __init__(self, settings: KafkaSettings, function: Function, topic: str | None) -> None:
        self._settings = settings
        self._function = function
        self._topic = topic
        self._lines: queue.Queue[LogLine | None] = queue.Queue(_QUEUED)
        self._thread: threading.Thread | None = None
        #: Whether lines are taken, as far as is known.
        self._taken = True
        #: Lines for which there was no room, that could not be sent, and of which that has been told.
        self._refused = self._lost = self._told = 0

    def say(self, lines: Sequence[LogLine]) -> None:
        if self._topic is None:
            for line in lines:
                log.info("%s: %s %s", self._function.name.local, line.level, line.text)
            return
        if lines and self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        until = time.monotonic() + _PATIENCE_S
        for at, line in enumerate(lines):
            try:
                self._lines.put(line, timeout=max(0.001, until - time.monotonic()) if self._taken else 0.001)
            except queue.Full:
                self._taken = False  # until something is
                self._refused += len(lines) - at
                return

    def close(self) -> None:
        if self._thread is not None:
            with suppress(queue.Full):
                self._lines.put(None, timeout=_PATIENCE_S)
            self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        with Cluster(self._settings) as cluster:
            ended = False
            while not ended:
                lines = [self._lines.get()]
                while len(lines) < _LINES and not self._lines.empty():
                    lines.append(self._lines.get())
                ended = None in lines
                said = [line for line in lines if line is not None]
                left_out = self._refused + self._lost - self._told
                try:
                    self._send(cluster, [*said, *_left_out(left_out)])
                    self._taken = True
                    self._told += left_out
                except WeirError as failure:
                    if not self._lost:
                        log.warning("lines of %s are lost: %s", self._function.name.local, failure)
                    self._taken = False
                    self._lost += len(said)

    def _send(self, cluster: Cluster, lines: Sequence[LogLine]) -> None:
        if not lines or self._topic is None:
            return
        partition: Partition = cluster.partitions([self._topic], create=True)[0]
        sender = Sender(cluster)
        for records in chunks([line_of(self._function, line) for line in lines]):
            sender.send({partition: build_batch(records)})
        sender.flush()
