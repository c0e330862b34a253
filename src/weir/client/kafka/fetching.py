"""Whole record batches of one partition, with the next request on its way while the last answer is worked on."""

from collections.abc import Sequence
from dataclasses import dataclass

from weir.client.kafka.cluster import Cluster, Partition, Patience
from weir.client.kafka.connection import KafkaConnection
from weir.client.kafka.refusals import RETRIABLE, check
from weir.model.errors import WireError
from weir.wire.kafka import messages as m

#: How long the broker may wait for something to come.
_MAX_WAIT_MS = 500


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer: batches as they are stored, the last one maybe cut short, and where the partition stands."""

    records: memoryview
    start_offset: int
    end_offset: int
    #: Up to here all transactions are decided.
    stable_offset: int
    #: Producer and first offset of transactions that were aborted within.
    aborted: Sequence[tuple[int, int]]


class Fetcher:
    """`ask` for what begins at an offset, then `take` it; one at a time."""

    def __init__(
        self, cluster: Cluster, partition: Partition, *, committed: bool = True, topic_id: str = ""
    ) -> None:
        """`topic_id`: of the topic that is meant; TopicNotFoundError if another one has its name. Brokers that
        know no ids ignore it."""
        self._topic_id = bytes.fromhex(topic_id)
        self._cluster = cluster
        self._partition = partition
        self._isolation = 1 if committed else 0
        self._asked = (0, 0)
        self._connection: KafkaConnection | None = None

    def ask(self, offset: int, max_bytes: int) -> None:
        """Ask for batches from the one on that holds this offset. The first comes whole however large it is."""
        self._asked = (offset, max_bytes)
        try:
            self._send()
        except RETRIABLE:
            self._connection = None  # `take` will ask again

    def take(self) -> Fetched:
        """What was asked for; OffsetTrimmedError if the partition no longer, or not yet, has it."""
        patience = Patience(self._cluster.settings.retry_for_s)
        while True:
            try:
                if self._connection is None:
                    self._send()
                return self._receive()
            except RETRIABLE as failure:
                self._connection = None
                self._cluster.close()
                patience.wait(failure)

    def _send(self) -> None:
        connection = self._cluster.connection(self._cluster.leader(self._partition))
        offset, max_bytes = self._asked
        part = m.FetchRequest.FetchPartition(
            partition=self._partition.index,
            current_leader_epoch=-1,
            fetch_offset=offset,
            partition_max_bytes=max_bytes,
        )
        request = m.FetchRequest(
            replica_id=-1,
            max_wait_ms=_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=self._isolation,
            topics=[
                m.FetchRequest.FetchTopic(
                    topic=self._partition.topic,
                    topic_id=self._topic_id if self._topic_id and connection.fetches_by_id else bytes(16),
                    partitions=[part],
                )
            ],
        )
        connection.send(request)
        self._connection = connection

    def _receive(self) -> Fetched:
        if self._connection is None:
            raise WireError("nothing was asked for")
        answer = self._connection.receive(m.FetchResponse)
        check(answer.error_code, str(self._partition))
        for topic in answer.responses:
            for part in topic.partitions:
                check(part.error_code, f"{self._partition} at offset {self._asked[0]}")
                return _fetched(part)
        raise WireError(f"a fetch was answered without {self._partition}")


def _fetched(part: m.FetchResponse.PartitionData) -> Fetched:
    records = part.records
    if not isinstance(records, memoryview):
        records = memoryview(b"")
    return Fetched(
        records,
        part.log_start_offset,
        part.high_watermark,
        part.last_stable_offset,
        [(one.producer_id, one.first_offset) for one in part.aborted_transactions or ()],
    )
