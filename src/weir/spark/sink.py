"""The data sink `weir`: rows to topics, each epoch exactly once.

A task writes in a transaction of its own and leaves it open. The driver then has the broker commit those of the
tasks that count, by one durable decision that also notes the epoch. So an epoch that Spark writes again, since the
driver died before its checkpoint, is aborted and leaves nothing; a task that died leaves an open transaction, and
nobody commits it.

What a worker has ready for the next task of a stream's sink: a producer, and how many partitions topics have.

A task needs a transactional id that nobody had before, and the broker writes down who has it. Between two
micro-batches there is time for that: it is done by a thread, while the driver decides about what was written last.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Lock, Thread
from typing import Any, TypeVar
from uuid import uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from weir.client.kafka.cluster import Cluster, Partition, Patience, admin_url, open_transactions
from weir.client.kafka.produce import ProducerId, Sender, add_partitions, end, init_producer
from weir.client.kafka.settings import KafkaSettings
from weir.client.sink_epochs import Epoch, SinkAccess, Written, commit_epoch, forget
from weir.model.batch import Stamp
from weir.model.errors import DataLostError, NetworkError, NotOwnerError, TopicClosedError, WeirError
from weir.model.topics import SINK_PREFIX
from weir.spark.options import SinkOptions, stream_identity
from weir.spark.records.encoder import Chunk, Splitter, chunks
from weir.spark.source.reading import access_by
from weir.spark.workers import borrowed, query_id, settle
from weir.wire.kafka.compression import compressor

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


T = TypeVar("T")

#: How long one broker is asked before another is looked for.
_BROKER_PATIENCE_S = 5.0
_SEQUENCES = 1 << 31
#: Where the brokers said that their admin REST is, until it does not answer.
_admin_urls: dict[KafkaSettings, str] = {}
_MOST_URLS = 16
#: Spark gives a task that it kills two seconds to end.
_KILLED_AFTER_S, _PAUSE_S = 2.5, 0.25


@dataclass
class TaskWritten(WriterCommitMessage):
    """What a task did: nothing, if it had no rows."""

    transaction: Written | None
    rows: int
    #: The id of the streaming query that the task is of, which its checkpoint has; empty for a batch.
    query: str = ""


class TaskWriter:
    """One attempt of one task. `ready`: a producer that was made ready for it."""

    def __init__(
        self,
        options: SinkOptions,
        sink: str,
        cluster: Cluster,
        ready: Ready | None = None,
        attempt: str = "",
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._ready = ready
        self._id = new_id(sink, attempt) if ready is None else ready.transactional_id
        self._producer: ProducerId | None = None
        self._sender = Sender(cluster, transactional_id=self._id)
        self._counts: dict[str, int] = {}
        self._sequences: dict[Partition, int] = {}
        self._compress = compressor(options.compression)
        self._splitter = Splitter(options.topic, self._count, now_ms=_now_ms)

    def write(self, batches: Iterator[Any]) -> TaskWritten:
        """Store all rows in a transaction, which stays open."""
        rows = 0
        try:
            for batch in batches:
                if len(batch):
                    rows += len(batch)
                    self._write(batch)
            self._sender.flush()
        except BaseException:
            self._give_up()
            raise
        query = query_id() or ""
        if self._producer is None:
            return TaskWritten(None, 0, query)
        return TaskWritten(Written(self._id, self._producer.id, self._producer.epoch), rows, query)

    def _write(self, batch: Any) -> None:
        found = [(partition, list(chunks(rows))) for partition, rows in self._splitter.split(batch)]
        if self._producer is None and self._ready is not None:
            self._producer = self._ready.producer
        elif self._producer is None:
            self._producer = init_producer(self._cluster, self._id, self._options.timeout_ms)
        new = [partition for partition, _ in found if partition not in self._sequences]
        if new:
            self._sender.flush()  # the coordinator may be on the same connection, and answers come in turn
            add_partitions(self._cluster, self._id, self._producer, new)
            self._sequences.update(dict.fromkeys(new, 0))
        # One batch per partition and request: first each partition's first, then the second ones.
        for turn in range(max(len(parts) for _, parts in found)):
            self._sender.send(
                {
                    partition: self._sealed(partition, parts[turn])
                    for partition, parts in found
                    if turn < len(parts)
                }
            )

    def _sealed(self, partition: Partition, chunk: Chunk) -> bytes:
        producer, sequence = self._producer, self._sequences[partition]
        stamp = Stamp(producer.id, producer.epoch, sequence) if producer is not None else Stamp(-1, -1)
        self._sequences[partition] = (sequence + chunk.count) % _SEQUENCES
        return chunk.seal(stamp, self._options.compression, self._compress)

    def _count(self, topic: str) -> int:
        if topic not in self._counts:
            self._counts[topic] = partition_count(self._cluster, topic)
        return self._counts[topic]

    def _give_up(self) -> None:
        forget_counts(self._options.kafka)
        if self._producer is not None:
            abort(self._options, [Written(self._id, self._producer.id, self._producer.epoch)])


def write_rows(
    options: SinkOptions, sink: str, batches: Iterator[Any], *, again: bool, attempt: str = ""
) -> TaskWritten:
    """What a task does. `again`: more tasks of the sink will come, and something is made ready for them.
    `attempt`: begins the names of its transactions."""
    ready = take(options, sink) if again else None
    with borrowed(options.kafka) as cluster:
        written = TaskWriter(options, sink, cluster, ready, attempt).write(batches)
    if again and written.transaction is not None:
        prepare(options, sink)
    elif ready is not None:
        keep(options, sink, ready)
    settle()
    return written


class BatchWriter(DataSourceArrowWriter):
    """A batch write: all rows, or none. With `sinkId` and `sinkEpoch`, the same epoch is written once, however
    often it is tried: for `foreachBatch`."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        named = options.sink_id if options.sink_epoch is not None else None
        self._sink = named or f"batch-{uuid4().hex}"
        #: Two writes of one epoch may run at once: the client of the first was killed, and Spark has not ended it.
        #: The abort of one must not end transactions of the other.
        self._attempt = f"{uuid4().hex[:12]}-"

    def write(self, iterator: Iterator[Any]) -> TaskWritten:
        return write_rows(self._options, self._sink, iterator, again=False, attempt=self._attempt)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        epoch, mine = self._options.sink_epoch, _transactions(messages)
        if epoch is None:
            ask_some_broker(self._options, lambda access: commit_epoch(access, self._sink, 0, mine))
            ask_some_broker(self._options, lambda access: forget(access, self._sink))
            return
        if not _commit(self._options, self._sink, epoch, messages).committed:
            abort(self._options, mine)
        sweep(self._options, self._sink, mine)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Tasks that were under way when another failed are being killed, and do not clean up."""
        abort(self._options, _transactions(messages))
        until = time.monotonic() + _KILLED_AFTER_S
        while True:
            end_all(self._options, left_open(self._options, self._sink, (), self._attempt))
            if time.monotonic() > until:
                return
            time.sleep(_PAUSE_S)


class StreamWriter(DataSourceStreamArrowWriter):
    """A stream's writes: epoch by epoch, each once."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._sink = stream_identity(options)

    def write(self, iterator: Iterator[Any]) -> TaskWritten:
        return write_rows(self._options, self._sink, iterator, again=True)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        mine = _transactions(messages)
        # What others left is looked for while the epoch is being committed: tasks of the next one come after both.
        left: list[str] = []
        looking = Thread(target=lambda: left.extend(left_open(self._options, self._sink, mine)), daemon=True)
        looking.start()
        try:
            found = _commit(self._options, self._sink, batchId, messages)
            if not found.committed:
                abort(self._options, mine)
        finally:
            looking.join()
        self._sweep(left)
        settle()
        if not found.committed and found.last > batchId:
            # Spark repeats the last epoch of a checkpoint and no earlier one: the sink has other rows under this
            # number.
            raise DataLostError(
                f"sink {self._sink!r} has epoch {found.last}, and the query's checkpoint is at epoch {batchId}: "
                "it is another checkpoint, or an older copy, and its rows would be taken for duplicates",
                hint="start the query with the checkpoint that has written it, or give it another sinkId",
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """What tasks that are being killed leave is ended with the next epoch that is written."""
        abort(self._options, _transactions(messages))
        self._sweep(left_open(self._options, self._sink, ()))

    def _sweep(self, left: Sequence[str]) -> None:
        end_all(self._options, left)


def sweep(options: SinkOptions, sink: str, mine: Sequence[Written]) -> None:
    """End what a former driver, or a task that died, left open: readers of committed messages wait for it. A
    driver that comes after one that died writes that one's last epoch again, so this is soon."""
    end_all(options, left_open(options, sink, mine))


def left_open(options: SinkOptions, sink: str, mine: Sequence[Written], attempt: str = "") -> list[str]:
    """Transactions of the sink, or of one attempt of it, that are open and not among `mine`."""
    known = {one.transactional_id for one in mine}
    with suppress(WeirError), borrowed(options.kafka) as cluster:
        found = open_transactions(cluster, f"{PREFIX}{sink}/{attempt}")
        return [name for name in found if name not in known]
    return []


def end_all(options: SinkOptions, left: Sequence[str]) -> None:
    if left:
        with suppress(WeirError), borrowed(options.kafka) as cluster:
            for name in left:
                init_producer(cluster, name)  # who takes an id over ends what is open there


def abort(options: SinkOptions, transactions: Sequence[Written]) -> None:
    """Leave nothing of them. One that cannot be reached ends by itself when its time is over."""
    with borrowed(options.kafka) as cluster:
        for one in transactions:
            with suppress(WeirError):
                end(cluster, one.transactional_id, ProducerId(one.producer_id, one.epoch), commit=False)


def ask_some_broker(options: SinkOptions, work: Callable[[SinkAccess], T]) -> T:
    """What the admin REST answers. Where a broker said that it is, it is looked for anew if that one is gone; so
    `work` must be fit to be done twice."""
    patience = Patience(options.kafka.retry_for_s)
    while True:
        try:
            return work(replace(access_of(options), patience_s=_BROKER_PATIENCE_S))
        except (NetworkError, TopicClosedError, NotOwnerError) as failure:
            _admin_urls.pop(options.kafka, None)
            patience.wait(failure)


def access_of(options: SinkOptions) -> SinkAccess:
    """The admin REST: as it was given, or as the brokers say."""
    url = options.admin_url or _admin_urls.get(options.kafka)
    if url is None:
        with borrowed(options.kafka) as cluster:
            url = admin_url(cluster)
        while len(_admin_urls) >= _MOST_URLS:
            _admin_urls.pop(next(iter(_admin_urls)))
        _admin_urls[options.kafka] = url
    return access_by(url, options.kafka)


def _commit(options: SinkOptions, sink: str, epoch: int, messages: Sequence[WriterCommitMessage | None]) -> Epoch:
    """SinkOfOtherQueryError, as the admin REST tells it, if the last epoch is of another checkpoint."""
    mine = _transactions(messages)
    query = next((one.query for one in messages if isinstance(one, TaskWritten) and one.query), "")
    return ask_some_broker(
        options,
        lambda access: commit_epoch(access, sink, epoch, mine, query=query, instead_of=options.take_over),
    )


def _transactions(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [one.transaction for one in messages if isinstance(one, TaskWritten) and one.transaction is not None]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
