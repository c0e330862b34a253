"""What a function says, in a topic: JSON lines, sent by a thread of their own; what cannot be sent is left out."""

import json
import logging
import queue
import threading
from collections.abc import Sequence

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.producing import Sender
from weir.client.kafka.settings import KafkaSettings
from weir.functions.protocol import LogLine
from weir.model.errors import WeirError
from weir.model.functions import Function
from weir.wire.kafka.records_build import Record, build_batch

log = logging.getLogger(__name__)

_QUEUED = 1_000
_LINES = 500


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


class LogTopic:
    """`say` never waits. Without a topic lines go to the worker's own log."""

    def __init__(self, settings: KafkaSettings, function: Function, topic: str | None) -> None:
        self._settings = settings
        self._function = function
        self._topic = topic
        self._lines: queue.Queue[LogLine | None] = queue.Queue(_QUEUED)
        self._thread: threading.Thread | None = None

    def say(self, lines: Sequence[LogLine]) -> None:
        if self._topic is None:
            for line in lines:
                log.info("%s: %s %s", self._function.name.local, line.level, line.text)
            return
        if lines and self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        for line in lines:
            try:
                self._lines.put_nowait(line)
            except queue.Full:
                return

    def close(self) -> None:
        if self._thread is not None:
            self._lines.put(None)
            self._thread.join(10)

    def _run(self) -> None:
        with Cluster(self._settings) as cluster:
            ended = False
            while not ended:
                lines = [self._lines.get()]
                while len(lines) < _LINES and not self._lines.empty():
                    lines.append(self._lines.get())
                ended = None in lines
                try:
                    self._send(cluster, [line for line in lines if line is not None])
                except WeirError as failure:
                    log.warning("lines of %s are lost: %s", self._function.name.local, failure)

    def _send(self, cluster: Cluster, lines: Sequence[LogLine]) -> None:
        if not lines or self._topic is None:
            return
        partition: Partition = cluster.partitions([self._topic], create=True)[0]
        records = [line_of(self._function, line) for line in lines]
        numbered = [Record(at, one.timestamp, one.key, one.value, ()) for at, one in enumerate(records)]
        sender = Sender(cluster)
        sender.send({partition: build_batch(numbered)})
        sender.flush()
