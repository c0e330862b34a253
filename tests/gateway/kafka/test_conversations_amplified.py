"""Transcripts of small requests that could have large answers: each is answered once, and within its limits."""

from typing import Any

from weir.broker.api.producers import Outgoing
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.settings import KafkaSettings
from weir.model.batch import BatchFormat
from weir.testing.kafka.stage import Stage, play, store, values_of
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.batch import Compression, compress
from weir.wire.pulsar.message import seal_message

MIB = 1024 * 1024


def packed(size: int) -> bytes:
    """A Pulsar message of a few kilobytes, and of so many bytes when it is opened."""
    metadata = api.MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        compression=int(Compression.ZSTD),  # type: ignore[arg-type]
        uncompressed_size=size,
    )
    return b"".join(seal_message(metadata, compress(Compression.ZSTD, bytes(size))))


def test_what_is_much_when_it_is_opened_counts_as_much() -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        for _ in range(10):
            topic.append(Outgoing(packed(3 * MIB), 1, BatchFormat.PULSAR))
        peer = await stage.peer()
        sizes = []
        while sum(map(len, sizes)) < 10:
            peer.fetch(("orders", 0, sum(map(len, sizes))), max_bytes=100 * MIB, partition_max_bytes=100 * MIB)
            sizes.append([len(value) for _, value in values_of(await peer.fetched())])
        assert sizes == [[3 * MIB] * 2] * 5  # as many as fit into the 8 MiB of one fetch

    play(conversation)


def test_fetches_wait_while_others_do_not_read_what_was_read_for_them() -> None:
    async def conversation(stage: Stage) -> None:
        store(await stage.topic(), b"x")
        peer = await stage.peer()
        budget = stage.server.unread_budget
        others = budget.share()
        others.acquire(100)
        peer.fetch(("orders", 0, 0), max_wait_ms=300)
        assert values_of(await peer.fetched()) == []
        assert (budget.used_bytes, budget.waiting) == (100, 0)
        peer.fetch(("orders", 0, 0), max_wait_ms=60_000)
        await stage.later(1)
        assert budget.waiting == 1
        others.release(100)
        assert values_of(await peer.fetched()) == [(0, b"x")]
        await stage.later(2)
        assert (budget.used_bytes, len(budget.on_pressure)) == (0, 0)

    play(conversation, settings=KafkaSettings(max_unread_bytes=100))


def test_a_topic_that_is_named_again_and_again_is_described_once() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic(partitions=100)
        await stage.topic("other")
        peer = await stage.peer()
        answer = await peer.metadata(*["orders", "other", "none"] * 5_000, version=4)
        told = [(topic.name, len(topic.partitions)) for topic in answer.topics]
        assert told[:2] == [("orders", 100), ("other", 1)]
        assert len(told) == 3

    play(conversation)


def test_producers_of_a_partition_that_is_named_again_and_again_are_described_once() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        peer = await stage.peer()
        named = m.DescribeProducersRequest.TopicRequest(name="orders", partition_indexes=[0, 0, 7, 0])
        request = m.DescribeProducersRequest(topics=[named] * 1_000)
        answer = await peer.call(ApiKey.DESCRIBE_PRODUCERS, 0, request)
        told: list[Any] = [(part.partition_index, part.error_code) for part in answer.topics[0].partitions]
        assert len(answer.topics) == 1
        assert told == [(0, Code.NONE), (7, Code.UNKNOWN_TOPIC_OR_PARTITION)]

    play(conversation)
