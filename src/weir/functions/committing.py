"""What came of a batch of messages, stored at once: sent messages, state, and how far the subscription is.

One transaction has all of it. Whoever takes the transactional id over ends what was open, and its predecessor can
store nothing more: so a worker that is killed, or replaced while it still believes to run, neither loses nor
doubles anything (docs/adr/0046).
"""

from collections.abc import Mapping, Sequence

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.connection import KafkaConnection
from weir.client.kafka.positions import of_topic
from weir.client.kafka.producing import Sender
from weir.client.kafka.refusals import RETRIABLE, check
from weir.client.kafka.transactions import ProducerId, end_epoch, init_producer
from weir.model.batch import Stamp
from weir.wire.kafka import messages as m
from weir.wire.kafka.records import TRANSACTIONAL, Compression
from weir.wire.kafka.records_build import Record, build_batch

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
