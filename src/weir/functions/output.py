"""What came of a batch of messages, stored at once: sent messages, state, and how far the subscription is.

One transaction has all of it. Whoever takes the transactional id over ends what was open, and its predecessor can
store nothing more: so a worker that is killed, or replaced while it still believes to run, neither loses nor
doubles anything (docs/adr/0046).

What a function says, in a topic: JSON lines, sent by a thread of their own.

While the topic takes them, whoever says more than can be sent waits. Once it does not, lines are left out, and
their number is told when it does again.

Which partition of a topic a message goes to: by its key as Kafka's clients and the sink of Spark do it.
"""

import json
import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.connection import RETRIABLE, KafkaConnection, check
from weir.client.kafka.groups import of_topic
from weir.client.kafka.produce import ProducerId, Sender, end_epoch, init_producer
from weir.client.kafka.settings import KafkaSettings
from weir.functions.executor_protocol import LogLine
from weir.model.batch import Stamp
from weir.model.definitions import Function
from weir.model.errors import WeirError
from weir.wire.kafka import messages as m
from weir.wire.kafka.record_batch import TRANSACTIONAL, Compression
from weir.wire.kafka.records import Record, build_batch

#: An open transaction holds back what is behind it: of a worker that died, until another takes its place.
_TIMEOUT_MS = 30_000
_SEQUENCES = 1 << 31
#: About so many bytes are a batch.
_BATCH_BYTES = 512 * 1024
#: A record of so many is compressed.
_PACKED_BYTES = 4 * 1024 * 1024

Records = Mapping[Partition, Sequence[Record]]


class Committer:
    """Begun by `take_over`; then one `commit` after the other. After an error, it must be begun anew."""

    def __init__(self, cluster: Cluster, transactional_id: str, group: str) -> None:
        self._cluster = cluster
        self._id = transactional_id
        self._group = group
        #: Which topics positions are of.
        self.topic_ids: dict[str, str] = {}
        self._producer = ProducerId(-1, -1)
        self._sequences: dict[Partition, int] = {}
        self._sender = Sender(cluster, transactional_id=transactional_id)

    def take_over(self) -> None:
        """From now on nobody else of this id can commit, and what they left open is ended; as is what was begun
        here and refused."""
        self._cluster.close()  # answers may be on their way that nobody will take
        self._sender = Sender(self._cluster, transactional_id=self._id)
        self._producer = init_producer(self._cluster, self._id, _TIMEOUT_MS)

    def commit(self, records: Records, positions: Mapping[Partition, int]) -> None:
        """All of it, or nothing; StaleEpochError if another has taken over."""
        self._sequences.clear()
        # Before anything is sent: it may have to be asked for, on a connection where no other answer is awaited.
        self._cluster.retry(lambda: self._cluster.group_coordinator(self._group))
        batches = {partition: chunks(some) for partition, some in records.items() if some}
        for turn in range(max((len(parts) for parts in batches.values()), default=0)):
            self._sender.send(
                {
                    partition: self._sealed(partition, parts[turn])
                    for partition, parts in batches.items()
                    if turn < len(parts)
                }
            )
        self._move(positions)
        self._producer = end_epoch(self._cluster, self._id, self._producer, commit=True)

    # --- steps --------------------------------------------------------------------------------------------------

    def _move(self, positions: Mapping[Partition, int]) -> None:
        """The group's positions, while what was sent is on its way."""
        topics: dict[str, list[m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]] = {}
        for partition, offset in positions.items():
            topics.setdefault(partition.topic, []).append(
                m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                    partition_index=partition.index,
                    committed_offset=offset,
                    committed_leader_epoch=-1,
                    committed_metadata=of_topic(self.topic_ids.get(partition.topic, "")),
                )
            )
        request = m.TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=self._group,
            producer_id=self._producer.id,
            producer_epoch=self._producer.epoch,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[
                m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=name, partitions=parts)
                for name, parts in topics.items()
            ],
        )

        def moved(connection: KafkaConnection) -> None:
            for topic in connection.receive(m.TxnOffsetCommitResponse).topics:
                for part in topic.partitions:
                    check(part.error_code, f"{self._group} on {topic.name}-{part.partition_index}")

        def ask() -> None:
            connection = self._cluster.group_coordinator(self._group)
            connection.send(request)
            moved(connection)

        try:
            connection = self._cluster.group_coordinator(self._group)
            connection.send(request)
            self._sender.flush()
            moved(connection)
        except RETRIABLE:
            self._cluster.close()
            self._sender.flush()
            self._cluster.retry(ask)

    def _sealed(self, partition: Partition, records: Sequence[Record]) -> bytes:
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = (sequence + len(records)) % _SEQUENCES
        stamp = Stamp(self._producer.id, self._producer.epoch, sequence)
        # What came compressed may be larger than a broker takes: it fails, and is put by, as it came.
        packed = Compression.ZSTD if _size(records[0]) > _PACKED_BYTES else Compression.NONE
        return build_batch(records, attributes=TRANSACTIONAL, stamp=stamp, compression=packed)


def chunks(records: Sequence[Record]) -> list[list[Record]]:
    """Batches of a size that every broker takes, with offsets counted from 0 in each."""
    found: list[list[Record]] = []
    size = _BATCH_BYTES
    for record in records:
        mine = _size(record)
        if size + mine > _BATCH_BYTES:
            found.append([])
            size = 0
        last = found[-1]
        last.append(Record(len(last), record.timestamp, record.key, record.value, record.headers))
        size += mine
    return found


def _size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"") + 64 * (1 + len(record.headers))


_SEED, _MIX, _MASK = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash by which Kafka's own clients spread keys."""
    size = len(data)
    found = (_SEED ^ size) & _MASK
    for at in range(0, size & ~3, 4):
        word = (int.from_bytes(data[at : at + 4], "little") * _MIX) & _MASK
        word ^= word >> 24
        found = ((found * _MIX) & _MASK) ^ ((word * _MIX) & _MASK)
    if size & 3:
        found = ((found ^ int.from_bytes(data[size & ~3 :], "little")) * _MIX) & _MASK
    found ^= found >> 13
    found = (found * _MIX) & _MASK
    return found ^ (found >> 15)


class Routes:
    """Partitions of the topics that a function sends to; those without a key take turns by batches."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._counts: dict[str, int] = {}
        self._turn = 0

    def next_turn(self) -> None:
        self._turn += 1

    def look_anew(self) -> None:
        """Topics may have got more partitions."""
        self._counts.clear()

    def of(self, topic: str, key: bytes | None) -> Partition:
        """A topic that is not there is made."""
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = len(self._cluster.partitions([topic], create=True))
        if count == 1:
            return Partition(topic, 0)
        return Partition(topic, (murmur2(key) & 0x7FFFFFFF if key is not None else self._turn) % count)


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
