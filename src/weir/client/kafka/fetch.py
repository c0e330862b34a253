"""Where partitions begin and end, and which offset a moment has.

Whole record batches of one partition, with the next request on its way while the last answer is worked on.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weir.client.kafka.cluster import Cluster, Partition, Patience
from weir.client.kafka.connection import RETRIABLE, KafkaConnection, check, error_of
from weir.model.errors import WeirError, WireError
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


#: In place of a moment.
LATEST, EARLIEST = -1, -2
#: In place of an offset: there is no message that late.
NONE = -1


def list_offsets(
    cluster: Cluster, wanted: Mapping[Partition, int], *, committed: bool = True
) -> dict[Partition, int]:
    """For each partition the first offset whose message is not older than the moment (in ms), or NONE.

    With `committed`, LATEST is where the first open transaction begins, if one is open.
    """
    return cluster.retry(lambda: _list_offsets(cluster, [(wanted, committed)]))[0] if wanted else {}


def ends(cluster: Cluster, partitions: Iterable[Partition], *, committed: bool = True) -> dict[Partition, int]:
    """The offsets after the last messages."""
    return list_offsets(cluster, dict.fromkeys(partitions, LATEST), committed=committed)


def ends_of_each(cluster: Cluster, partitions: Sequence[Partition]) -> "dict[Partition, int | WeirError]":
    """The offset after the last message of each that is no part of an open transaction, or what is wrong with it:
    none of many is in the way of the others."""

    def ask() -> dict[Partition, int | WeirError]:
        found: dict[Partition, int | WeirError] = {}
        wanted = dict.fromkeys(partitions, LATEST)
        asked = []
        for address, some in cluster.by_leader(wanted).items():
            asked.append(cluster.connection(address))
            asked[-1].send(_request(some, wanted, 1))
        for connection in asked:
            for topic in connection.receive(m.ListOffsetsResponse).topics:
                for part in topic.partitions:
                    one = Partition(topic.name, part.partition_index)
                    found[one] = error_of(part.error_code, str(one)) if part.error_code else part.offset
        return found

    return cluster.retry(ask) if partitions else {}


def starts(cluster: Cluster, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """The offsets of the oldest messages that are still there."""
    return list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))


def bounds(
    cluster: Cluster, partitions: Iterable[Partition], *, committed: bool = True
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """Where partitions begin and where they end, asked at once."""
    wanted = list(partitions)
    if not wanted:
        return {}, {}
    questions = [(dict.fromkeys(wanted, EARLIEST), True), (dict.fromkeys(wanted, LATEST), committed)]
    begin, end = cluster.retry(lambda: _list_offsets(cluster, questions))
    return begin, end


def _list_offsets(
    cluster: Cluster, questions: Sequence[tuple[Mapping[Partition, int], bool]]
) -> list[dict[Partition, int]]:
    """Every question goes out before the first answer is taken."""
    found: list[dict[Partition, int]] = [{} for _ in questions]
    asked = []
    for (wanted, committed), answer in zip(questions, found, strict=True):
        for address, partitions in cluster.by_leader(wanted).items():
            connection = cluster.connection(address)
            connection.send(_request(partitions, wanted, 1 if committed else 0))
            asked.append((connection, answer))
    for connection, answer in asked:
        for topic in connection.receive(m.ListOffsetsResponse).topics:
            for part in topic.partitions:
                partition = Partition(topic.name, part.partition_index)
                check(part.error_code, str(partition))
                answer[partition] = part.offset
    return found


def _request(partitions: list[Partition], wanted: Mapping[Partition, int], isolation: int) -> m.ListOffsetsRequest:
    topics: dict[str, list[m.ListOffsetsRequest.ListOffsetsPartition]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(
            m.ListOffsetsRequest.ListOffsetsPartition(
                partition_index=partition.index, current_leader_epoch=-1, timestamp=wanted[partition]
            )
        )
    return m.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[
            m.ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=parts) for name, parts in topics.items()
        ],
    )
