"""What producers of another protocol wrote, as a Pulsar client gets it and acknowledges it."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from weir.model.batch import BatchFormat
from weir.testing.codecs.record_samples import compressed
from weir.wire.formats.table import UNREADABLE
from weir.wire.kafka.record_batch import Compression
from weir.wire.kafka.records import Record, build_batch
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.batch import iter_batch
from weir.wire.pulsar.ids import ack_set_from_bits
from weir.wire.pulsar.message import is_batch, parse_metadata, split_message

Play = Callable[[Callable[[Any], Awaitable[None]]], None]

TOPIC = "persistent://public/default/t"
RECORDS = [Record(n, 1_700_000_000_000, b"k%d" % n, b"v%d" % n) for n in range(5)]


async def fill(stage: Any, payload: bytes, count: int) -> None:
    """A topic with a message of Pulsar and a batch of Kafka behind it."""
    peer = await stage.peer()
    await peer.produce(TOPIC)
    for sequence, batched in enumerate(({}, {"num_messages_in_batch": count})):
        peer.send(1, sequence, b"first", **batched)
        await peer.hear(api.CommandSendReceipt)
    stage.broker.at(TOPIC).replace_last(format=BatchFormat.KAFKA, payload=payload)


async def consumer_of(stage: Any) -> tuple[Any, Any]:
    peer = await stage.peer()
    await peer.subscribe(TOPIC, subType=api.CommandSubscribe.Shared)
    peer.say(api.CommandFlow(consumer_id=1, messagePermits=10))
    await peer.message()
    return peer, stage.broker.at(TOPIC).consumers[0]


async def ack(peer: Any, **at: Any) -> None:
    place = api.MessageIdData(ledgerId=7, **at)
    peer.say(api.CommandAck(consumer_id=1, ack_type=api.CommandAck.Individual, message_id=[place], request_id=1))
    await peer.hear(api.CommandAckResponse)


def test_a_kafka_batch_is_a_pulsar_batch_and_its_messages_are_acknowledged_one_by_one(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        await fill(stage, build_batch(RECORDS), 5)
        peer, consumer = await consumer_of(stage)
        command, message = await peer.message()
        parts = split_message(message)
        assert command.message_id.entryId == 1
        assert parse_metadata(parts).num_messages_in_batch == 5
        singles = list(iter_batch(parts.payload, 5))
        assert [bytes(single.payload) for single in singles] == [b"v0", b"v1", b"v2", b"v3", b"v4"]
        await ack(peer, entryId=1, ack_set=ack_set_from_bits(0b10111))
        assert consumer.acked == [(4, 5)]
        await ack(peer, entryId=1)
        assert consumer.acked == [(4, 5), (1, 4), (5, 6)]

    play(conversation)


def test_credit_is_what_the_client_counts(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        await fill(stage, build_batch(RECORDS), 5)
        peer, _ = await consumer_of(stage)
        await peer.message()
        peer.say(api.CommandConsumerStats(consumer_id=1, request_id=4))
        assert (await peer.hear(api.CommandConsumerStatsResponse)).availablePermits == 4

    play(conversation)


def test_a_kafka_batch_that_cannot_be_opened_is_one_message_and_one_acknowledgement(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        payload = build_batch(RECORDS, attributes=Compression.ZSTD)  # which it is not
        await fill(stage, payload, 5)
        peer, consumer = await consumer_of(stage)
        _, message = await peer.message()
        parts = split_message(message)
        metadata = parse_metadata(parts)
        assert not is_batch(metadata)
        assert [pair.key for pair in metadata.properties] == [UNREADABLE]
        assert parts.payload == payload
        await ack(peer, entryId=1)
        assert consumer.acked == [(1, 6)]
        peer.say(api.CommandConsumerStats(consumer_id=1, request_id=4))
        assert (await peer.hear(api.CommandConsumerStatsResponse)).availablePermits == 8

    play(conversation)


def test_many_messages_are_translated_in_turns(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        records = [Record(n, 1_700_000_000_000, None, b"%d" % n) for n in range(600)]
        await fill(stage, build_batch(records), 600)
        topic = stage.broker.at(TOPIC)
        batch = topic.batches[-1]
        for turn in range(1, 5):
            topic.batches.append(replace(batch, base_offset=batch.base_offset + 600 * turn))
        peer = await stage.peer()
        await peer.subscribe(TOPIC)
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=10_000))
        entries = [(await peer.message())[0].message_id.entryId for _ in range(6)]
        assert entries == [0, 1, 601, 1201, 1801, 2401]

    play(conversation)


def test_what_is_much_when_it_is_opened_is_opened_no_faster_than_its_client_reads(play: Play) -> None:
    """Each batch has a few kilobytes, and 3 MiB when opened."""

    async def conversation(stage: Any) -> None:
        large = build_batch([Record(0, 1_700_000_000_000, None, bytes(3 * 2**20))])
        packed = compressed(large, Compression.ZSTD)
        assert len(packed) < 10_000
        await fill(stage, packed, 1)
        topic = stage.broker.at(TOPIC)
        batch = topic.batches[-1]
        for turn in range(1, 10):
            topic.batches.append(replace(batch, base_offset=batch.base_offset + turn))
        peer = await stage.peer()
        await peer.subscribe(TOPIC)
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=1000))
        await stage.later(1)
        (link,) = stage.server.sessions[-1].consumers
        assert 0 < link.messages_out < 5
        messages = [await peer.message() for _ in range(11)]
        assert [command.message_id.entryId for command, _ in messages] == list(range(11))
        assert all(len(message) > 3 * 2**20 for _, message in messages[1:])

    play(conversation)
