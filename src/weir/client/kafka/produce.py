"""Record batches sent as they are, many at a time.

Producer ids, and transactions as their coordinator sees them.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weir.client.kafka.cluster import Cluster, Partition, Patience
from weir.client.kafka.connection import RETRIABLE, KafkaConnection, check
from weir.client.kafka.settings import Address
from weir.model.errors import WeirError
from weir.model.ids import Buffer
from weir.wire.kafka import messages as m

_ALL = -1
_DUPLICATE_SEQUENCE = 46

Batches = Mapping[Partition, Buffer]


class Sender:
    """Sends one batch per partition and request; up to `window` requests wait for their answers.

    After a lost connection or a moved leader, everything that was not answered is sent again, in its order. So the
    batches should bear an idempotent producer's stamp, or some may be stored twice.
    """

    def __init__(self, cluster: Cluster, *, transactional_id: str | None = None, window: int = 4) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._window = window
        self._waiting: deque[tuple[Address, Batches]] = deque()
        #: Where the first message of the last batch of each partition was stored.
        self.stored: dict[Partition, int] = {}

    def send(self, batches: Batches) -> None:
        """Send batches, and wait while too much is on its way."""
        for address, partitions in self._cluster.retry(lambda: self._cluster.by_leader(batches)).items():
            part = {partition: batches[partition] for partition in partitions}
            while len(self._waiting) >= self._window:
                self._settle()
            self._waiting.append((address, part))
            try:
                self._cluster.connection(address).send(self._request(part))
            except RETRIABLE as failure:
                self._send_again(failure)

    def flush(self) -> None:
        """Wait until everything is stored."""
        while self._waiting:
            self._settle()

    def _settle(self) -> None:
        """Take the oldest answer."""
        address, _ = self._waiting[0]
        try:
            self._take(self._cluster.connection(address).receive(m.ProduceResponse))
            self._waiting.popleft()
        except RETRIABLE as failure:
            self._send_again(failure)

    def _take(self, answer: m.ProduceResponse) -> None:
        for topic in answer.responses:
            for part in topic.partition_responses:
                partition = Partition(topic.name, part.index)
                if part.error_code != _DUPLICATE_SEQUENCE:  # that one is there already
                    check(part.error_code, str(partition), part.error_message)
                self.stored[partition] = part.base_offset

    def _send_again(self, failure: WeirError) -> None:
        """One request at a time, which keeps the order whatever happens meanwhile."""
        patience = Patience(self._cluster.settings.retry_for_s)
        patience.wait(failure)
        self._cluster.close()
        while self._waiting:
            _, batches = self._waiting[0]
            try:
                for address, partitions in self._cluster.by_leader(batches).items():
                    request = self._request({partition: batches[partition] for partition in partitions})
                    self._take(self._cluster.connection(address).ask(request, m.ProduceResponse))
                self._waiting.popleft()
            except RETRIABLE as again:
                self._cluster.close()
                patience.wait(again)

    def _request(self, batches: Batches) -> m.ProduceRequest:
        topics: dict[str, list[m.ProduceRequest.PartitionProduceData]] = {}
        for partition, records in batches.items():
            topics.setdefault(partition.topic, []).append(
                m.ProduceRequest.PartitionProduceData(index=partition.index, records=records)
            )
        return m.ProduceRequest(
            transactional_id=self._transactional_id,
            acks=_ALL,
            timeout_ms=round(self._cluster.settings.request_timeout_s * 1000),
            topic_data=[
                m.ProduceRequest.TopicProduceData(name=name, partition_data=parts)
                for name, parts in topics.items()
            ],
        )


@dataclass(frozen=True, slots=True)
class ProducerId:
    """An idempotent producer: a newer epoch of the same id fences this one."""

    id: int
    epoch: int


def init_producer(cluster: Cluster, transactional_id: str | None = None, timeout_ms: int = 60_000) -> ProducerId:
    """A producer id. With a transactional id: fences the former producer of it, and ends what it left open."""
    request = m.InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, producer_id=-1, producer_epoch=-1
    )

    def ask() -> ProducerId:
        found = _of(cluster, transactional_id).ask(request, m.InitProducerIdResponse)
        check(found.error_code, transactional_id or "a producer id")
        return ProducerId(found.producer_id, found.producer_epoch)

    return cluster.retry(ask)


def add_partitions(
    cluster: Cluster, transactional_id: str, producer: ProducerId, partitions: Iterable[Partition]
) -> None:
    """Make these partitions part of the open transaction, before anything is sent to them."""
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition.index)
    request = m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[
            m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=parts)
            for name, parts in topics.items()
        ],
    )

    def ask() -> None:
        answer = _of(cluster, transactional_id).ask(request, m.AddPartitionsToTxnResponse)
        for topic in answer.results_by_topic_v3_and_below:
            for part in topic.results_by_partition:
                check(part.partition_error_code, f"{transactional_id} on {topic.name}-{part.partition_index}")

    cluster.retry(ask)


def end(cluster: Cluster, transactional_id: str, producer: ProducerId, *, commit: bool) -> None:
    """Commit or abort the open transaction."""
    request = m.EndTxnRequest(
        transactional_id=transactional_id, producer_id=producer.id, producer_epoch=producer.epoch, committed=commit
    )

    def ask() -> None:
        answer = _of(cluster, transactional_id).ask(request, m.EndTxnResponse)
        check(answer.error_code, transactional_id)

    cluster.retry(ask)


def end_epoch(cluster: Cluster, transactional_id: str, producer: ProducerId, *, commit: bool) -> ProducerId:
    """Commit or abort the open transaction; who the producer is from now on. Of a client with `joining_by_use`."""
    request = m.EndTxnRequest(
        transactional_id=transactional_id, producer_id=producer.id, producer_epoch=producer.epoch, committed=commit
    )

    def ask() -> ProducerId:
        answer = _of(cluster, transactional_id).ask(request, m.EndTxnResponse)
        check(answer.error_code, transactional_id)
        return ProducerId(answer.producer_id, answer.producer_epoch)

    return cluster.retry(ask)


def _of(cluster: Cluster, transactional_id: str | None) -> KafkaConnection:
    return cluster.any() if transactional_id is None else cluster.transaction_coordinator(transactional_id)
