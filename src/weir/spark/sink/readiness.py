"""What a worker has ready for the next task of a stream's sink: a producer, and how many partitions topics have.

A task needs a transactional id that nobody had before, and the broker writes down who has it. Between two
micro-batches there is time for that: it is done by a thread, while the driver decides about what was written last.
"""

import time
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock, Thread
from uuid import uuid4

from weir.client.kafka.cluster import Cluster
from weir.client.kafka.settings import KafkaSettings
from weir.client.kafka.transactions import ProducerId, init_producer
from weir.model.errors import WeirError
from weir.model.owned_names import SINK_PREFIX
from weir.spark.sink.options import SinkOptions
from weir.spark.workers import borrowed

PREFIX = f"{SINK_PREFIX}/"
#: A producer that waited for longer is not used: the broker may have forgotten it.
_READY_S = 60.0
#: So long a topic is taken to have as many partitions as it had.
_COUNTED_S = 5.0
_MOST = 64

_Key = tuple[KafkaSettings, str, int]
_lock = Lock()
_ready: dict[_Key, "tuple[float, Ready]"] = {}
_counts: dict[tuple[KafkaSettings, str], tuple[float, int]] = {}


@dataclass(frozen=True, slots=True)
class Ready:
    """A transactional id that was used for nothing yet, and its producer."""

    transactional_id: str
    producer: ProducerId


def new_id(sink: str, attempt: str = "") -> str:
    """A transactional id that no task had before. `attempt`: which write of an epoch the task is of."""
    return f"{PREFIX}{sink}/{attempt}{uuid4().hex}"


def take(options: SinkOptions, sink: str) -> Ready | None:
    """One that is ready; it is the caller's alone then."""
    with _lock:
        since, found = _ready.pop(_key(options, sink), (float("-inf"), None))
    return found if time.monotonic() - since < _READY_S else None


def keep(options: SinkOptions, sink: str, ready: Ready) -> None:
    """For the next task, if there is none yet."""
    with _lock:
        _ready.setdefault(_key(options, sink), (time.monotonic(), ready))
        while len(_ready) > _MOST:
            _ready.pop(next(iter(_ready)))


def prepare(options: SinkOptions, sink: str) -> Thread:
    """Make one ready; the task does not wait for it, and nothing is lost if it cannot be made."""

    def work() -> None:
        with suppress(WeirError), borrowed(options.kafka) as cluster:
            name = new_id(sink)
            keep(options, sink, Ready(name, init_producer(cluster, name, options.timeout_ms)))

    started = Thread(target=work, daemon=True)
    started.start()
    return started


def partition_count(cluster: Cluster, topic: str) -> int:
    """How many partitions a topic has, or had a moment ago; it is made if it is not there."""
    key = (cluster.settings, topic)
    since, count = _counts.get(key, (float("-inf"), 0))
    if time.monotonic() - since >= _COUNTED_S:
        count = len(cluster.partitions([topic], create=True))
        while len(_counts) >= _MOST:
            _counts.pop(next(iter(_counts)), None)
        _counts[key] = (time.monotonic(), count)
    return count


def forget_counts(settings: KafkaSettings) -> None:
    """Something went wrong: a topic may be another one by now."""
    for key in [one for one in _counts if one[0] == settings]:
        _counts.pop(key, None)


def _key(options: SinkOptions, sink: str) -> _Key:
    return options.kafka, sink, options.timeout_ms
