"""No request holds the loop: one that names thousands of partitions is served in turns."""

import asyncio
from typing import Any

import pytest

from weir.gateway.kafka.metadata import Catalog
from weir.testing.kafka.stage import Stage, batch_of, play
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey

MANY = 3000
#: Names that one step of the loop may look up.
MOST = 600


def _commit() -> m.Message:
    request = m.OffsetCommitRequest
    parts = [request.OffsetCommitRequestPartition(partition_index=at, committed_offset=1) for at in range(MANY)]
    topics = [request.OffsetCommitRequestTopic(name="orders", partitions=parts)]
    return request(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics)


def _transactional_commit() -> m.Message:
    request = m.TxnOffsetCommitRequest
    parts = [request.TxnOffsetCommitRequestPartition(partition_index=at, committed_offset=1) for at in range(MANY)]
    topics = [request.TxnOffsetCommitRequestTopic(name="orders", partitions=parts)]
    return request(transactional_id="t", group_id="g", producer_id=1, producer_epoch=0, topics=topics)


def _positions() -> m.Message:
    topics = [m.OffsetFetchRequest.OffsetFetchRequestTopic(name="orders", partition_indexes=list(range(MANY)))]
    return m.OffsetFetchRequest(group_id="g", topics=topics)


def _fetch() -> m.Message:
    request = m.FetchRequest
    parts = [request.FetchPartition(partition=at, partition_max_bytes=1000) for at in range(MANY)]
    return request(max_wait_ms=0, min_bytes=0, topics=[request.FetchTopic(topic="orders", partitions=parts)])


def _produce() -> m.Message:
    request = m.ProduceRequest
    parts = [request.PartitionProduceData(index=at, records=batch_of(b"x")) for at in range(MANY)]
    topics = [request.TopicProduceData(name="orders", partition_data=parts)]
    return request(acks=-1, timeout_ms=1000, topic_data=topics)


def _to_transaction() -> m.Message:
    request = m.AddPartitionsToTxnRequest
    topics = [request.AddPartitionsToTxnTopic(name="orders", partitions=list(range(MANY)))]
    return request(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=topics,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "version", "request_of"),
    [
        (ApiKey.OFFSET_COMMIT, 5, _commit),
        (ApiKey.TXN_OFFSET_COMMIT, 2, _transactional_commit),
        (ApiKey.OFFSET_FETCH, 5, _positions),
        (ApiKey.FETCH, 4, _fetch),
        (ApiKey.PRODUCE, 5, _produce),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 1, _to_transaction),
    ],
)
def test_a_request_of_thousands_of_partitions_is_served_in_turns(
    key: ApiKey, version: int, request_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, int] = {}
    plain = Catalog.base

    def counted(catalog: Catalog, name: str) -> Any:
        at = asyncio.get_running_loop().steps  # type: ignore[attr-defined]
        seen[at] = seen.get(at, 0) + 1
        return plain(catalog, name)

    monkeypatch.setattr(Catalog, "base", counted)

    async def conversation(stage: Stage) -> None:
        await stage.topic()
        peer = await stage.peer()
        await peer.call(key, version, request_of())

    play(conversation)
    assert sum(seen.values()) >= MANY
    assert max(seen.values()) <= MOST
