"""Committed messages of many partitions as they come: a thread per broker that leads some of them.

A thread that cannot go on says why, and all are begun anew where the worker has come to.

The state of all keys of a function: in memory, and in a topic that keeps the latest of each.
"""

import queue
import struct
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from weir.client.kafka.cluster import Cluster, Partition, create_topic
from weir.client.kafka.connection import KafkaConnection, check
from weir.client.kafka.fetch import ends, starts
from weir.client.kafka.settings import Address, KafkaSettings
from weir.model.errors import ConnectionLostError, WeirError
from weir.wire.kafka import messages as m
from weir.wire.kafka.record_batch import parse_header, split_batches
from weir.wire.kafka.records import Record, iter_records

#: A broker answers at once when something comes: this is how often one is asked where nothing does.
_MAX_WAIT_MS = 2_000
_PARTITION_BYTES, _FETCH_BYTES = 1 << 20, 8 << 20
#: Answers that wait to be worked on, of each broker; as they came, which is less than what is in them.
_QUEUED = 4
_NO_ID = bytes(16)
_CONTROL = struct.Struct(">hh")
_ABORT = 0


@dataclass(frozen=True, slots=True)
class Read:
    """Records of one partition, each with its offset; and where the partition goes on behind them."""

    partition: Partition
    records: Sequence[tuple[int, Record]]
    next_offset: int
    #: Behind the last that is committed there.
    end_offset: int


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a broker had of one partition, from an offset on; and where that goes on behind it."""

    partition: Partition
    data: memoryview
    offset: int
    next_offset: int
    aborted: Sequence[tuple[int, int]]
    end_offset: int

    def read(self) -> Read:
        records, _ = committed_records(self.data, self.offset, self.aborted)
        return Read(self.partition, records, self.next_offset, self.end_offset)


def committed_records(
    data: memoryview, offset: int, aborted: Iterable[tuple[int, int]]
) -> tuple[list[tuple[int, Record]], int]:
    """The records from this offset on, without those of transactions that were aborted; and the next offset."""
    waiting = deque(sorted(aborted, key=lambda one: one[1]))
    undone: set[int] = set()
    found: list[tuple[int, Record]] = []
    for batch in split_batches(data):
        header = parse_header(batch)
        last = header.base_offset + header.last_offset_delta
        while waiting and waiting[0][1] <= last:
            undone.add(waiting.popleft()[0])
        if header.control:
            for record in iter_records(batch):
                if record.key is not None and _CONTROL.unpack_from(record.key)[1] == _ABORT:
                    undone.discard(header.producer_id)
        elif not (header.transactional and header.producer_id in undone):
            for record in iter_records(batch):
                at = header.base_offset + record.offset_delta
                if at >= offset:
                    found.append((at, record))
        offset = max(offset, last + 1)
    return found, offset


class Reader:
    """`get` what has come, from these positions on; `close` it."""

    def __init__(
        self, settings: KafkaSettings, positions: Mapping[Partition, int], ids: Mapping[str, str] | None = None
    ) -> None:
        """`ids`: which topics the positions are of. `get` raises TopicNotFoundError if another topic has the name
        of one of them."""
        self._ids = ids or {}
        self._settings = replace(settings, retry_for_s=min(settings.retry_for_s, 5.0))
        self._stopped = threading.Event()
        self._failure: WeirError | None = None
        with Cluster(settings) as cluster:
            leaders = cluster.retry(lambda: cluster.by_leader(positions))
        self._come: queue.Queue[Sequence[_Answer]] = queue.Queue(_QUEUED * max(1, len(leaders)))
        #: The parts of an answer that are taken next.
        self._taken: deque[_Answer] = deque()
        self._connections: list[KafkaConnection] = []
        self._threads = [
            threading.Thread(target=self._run, args=(address, {one: positions[one] for one in mine}), daemon=True)
            for address, mine in leaders.items()
        ]
        for thread in self._threads:
            thread.start()

    def get(self, timeout_s: float) -> Read | None:
        """None if nothing came in time; raises what a thread failed of."""
        if not self._taken:
            with suppress(queue.Empty):
                self._taken += self._come.get(timeout=timeout_s) if timeout_s else self._come.get_nowait()
        if not self._taken and self._failure is not None:
            raise self._failure
        return self._taken.popleft().read() if self._taken else None

    def close(self) -> None:
        self._stopped.set()
        for connection in self._connections:
            connection.interrupt()
        while any(thread.is_alive() for thread in self._threads):
            try:  # one may wait for room
                self._come.get(timeout=0.02)
            except queue.Empty:
                continue

    def _run(self, address: Address, positions: dict[Partition, int]) -> None:
        try:
            with Cluster(self._settings) as cluster:
                connection = cluster.connection(address)
                self._connections.append(connection)
                while not self._stopped.is_set():
                    # A fetch names all topics in one way.
                    by_id = connection.fetches_by_id and all(self._ids.get(one.topic) for one in positions)
                    ids = {one.topic: bytes.fromhex(self._ids[one.topic]) for one in positions} if by_id else {}
                    names = {topic_id: name for name, topic_id in ids.items()}
                    answer = connection.ask(_request(positions, ids), m.FetchResponse)
                    check(answer.error_code, str(address))
                    found = [
                        _answered(
                            Partition(names.get(topic.topic_id, topic.topic), part.partition_index),
                            part,
                            positions,
                        )
                        for topic in answer.responses
                        for part in topic.partitions
                    ]
                    self._put([one for one in found if one.next_offset > one.offset])
        except WeirError as failure:
            self._failure = failure
        except OSError as failure:
            self._failure = ConnectionLostError(f"the connection to {address} is gone: {failure}")
        finally:
            if not self._stopped.is_set():
                self._put([], even_nothing=True)  # whoever waits shall look

    def _put(self, found: Sequence[_Answer], *, even_nothing: bool = False) -> None:
        while (found or even_nothing) and not self._stopped.is_set():
            try:
                self._come.put(found, timeout=0.1)
                return
            except queue.Full:
                continue


def _answered(
    partition: Partition, part: m.FetchResponse.PartitionData, positions: dict[Partition, int]
) -> _Answer:
    """The position is moved behind it."""
    offset = next_offset = positions[partition]
    check(part.error_code, f"{partition} at offset {offset}")
    data = part.records if isinstance(part.records, memoryview) else memoryview(b"")
    for batch in split_batches(data):
        header = parse_header(batch)
        next_offset = max(next_offset, header.base_offset + header.last_offset_delta + 1)
    positions[partition] = next_offset
    aborted = [(one.producer_id, one.first_offset) for one in part.aborted_transactions or ()]
    return _Answer(partition, data, offset, next_offset, aborted, part.last_stable_offset)


def _request(positions: Mapping[Partition, int], ids: Mapping[str, bytes]) -> m.FetchRequest:
    topics: dict[str, list[m.FetchRequest.FetchPartition]] = {}
    for partition, offset in positions.items():
        topics.setdefault(partition.topic, []).append(
            m.FetchRequest.FetchPartition(
                partition=partition.index,
                current_leader_epoch=-1,
                fetch_offset=offset,
                partition_max_bytes=_PARTITION_BYTES,
            )
        )
    return m.FetchRequest(
        replica_id=-1,
        max_wait_ms=_MAX_WAIT_MS,
        min_bytes=1,
        max_bytes=_FETCH_BYTES,
        isolation_level=1,
        topics=[
            m.FetchRequest.FetchTopic(topic=name, topic_id=ids.get(name, _NO_ID), partitions=parts)
            for name, parts in topics.items()
        ],
    )


def read_all(
    settings: KafkaSettings,
    partitions: Sequence[Partition],
    starts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
) -> list[Record]:
    """Every committed record between these offsets, partition by partition in order."""
    open_ends = {one: ends[one] for one in partitions if starts[one] < ends[one]}
    reader = Reader(settings, {one: starts[one] for one in open_ends})
    found: list[Record] = []
    try:
        while open_ends:
            read = reader.get(1.0)
            if read is None:
                continue
            found += [record for at, record in read.records if at < ends[read.partition]]
            if read.next_offset >= ends[read.partition]:
                open_ends.pop(read.partition, None)
    finally:
        reader.close()
    return found


class KeyedState:
    """Changes are stored by whoever commits them (`records`), and hold from then on (`hold`)."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}
        self.bytes = 0

    def load(self, cluster: Cluster, topic: str) -> None:
        """All that is committed. The topic is made if there is none."""
        create_topic(cluster, topic, {"cleanup.policy": "compact"})
        partitions = cluster.partitions([topic])
        records = read_all(cluster.settings, partitions, starts(cluster, partitions), ends(cluster, partitions))
        for record in records:
            value = None if record.value is None else bytes(record.value)
            self.hold({b"" if record.key is None else bytes(record.key)[1:]: value})

    def records(
        self, topic: str, changed: Mapping[bytes, bytes | None], now_ms: int
    ) -> Iterable[tuple[Partition, Record]]:
        """As they are stored; keys behind a byte, since an empty one is a key too."""
        return [(Partition(topic, 0), Record(0, now_ms, b"k" + key, value)) for key, value in changed.items()]

    def hold(self, changed: Mapping[bytes, bytes | None]) -> None:
        for key, value in changed.items():
            before = self.values.pop(key, None)
            if before is not None:
                self.bytes -= len(key) + len(before)
            if value is not None:
                self.values[key] = value
                self.bytes += len(key) + len(value)
