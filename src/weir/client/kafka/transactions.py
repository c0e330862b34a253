"""Producer ids, and transactions as their coordinator sees them."""

from collections.abc import Iterable
from dataclasses import dataclass

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.connection import KafkaConnection
from weir.client.kafka.refusals import check
from weir.wire.kafka import messages as m


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
