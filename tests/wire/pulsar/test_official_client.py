"""The codec against the official client (its C++ core), over a real socket: what it sends, and what it accepts."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest

from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.batch import Compression, compress, encode_batch, iter_batch, open_payload
from weir.wire.pulsar.commands import COMMANDS, Role, Type
from weir.wire.pulsar.ids import MessageId, bits_from_ack_set, decode_id, id_from_wire
from weir.wire.pulsar.message import is_batch, message_key, parse_metadata, seal_message, split_message

TOPIC = "persistent://public/default/t"
TIMEOUT_MS = 20_000
COMPRESSIONS = {
    Compression.NONE: pulsar.CompressionType.NONE,
    Compression.LZ4: pulsar.CompressionType.LZ4,
    Compression.ZLIB: pulsar.CompressionType.ZLib,
    Compression.ZSTD: pulsar.CompressionType.ZSTD,
    Compression.SNAPPY: pulsar.CompressionType.SNAPPY,
}
EVERY_COMPRESSION = pytest.mark.parametrize("kind", COMPRESSIONS)

Run = Callable[[Callable[[pulsar.Client], Any]], Any]


@pytest.fixture
def run(broker: Any, tmp_path: Path) -> Run:
    """Runs a function of a connected client in a thread, since the client blocks."""

    def session(use: Callable[[pulsar.Client], Any]) -> Any:
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(tmp_path / "client.log"))
        client = pulsar.Client(broker.url, operation_timeout_seconds=20, logger=quiet)
        try:
            return use(client)
        finally:
            client.close()

    return lambda use: asyncio.to_thread(session, use)


async def test_the_client_says_who_it_is_and_what_it_speaks(broker: Any, run: Run) -> None:
    await run(lambda client: client.create_producer(TOPIC, producer_name="me", properties={"a": "b"}).close())

    (connect,) = broker.sent(api.CommandConnect)
    assert connect.client_version.startswith("Pulsar")
    assert connect.protocol_version >= 20
    assert connect.feature_flags.supports_auth_refresh
    assert connect.feature_flags.supports_broker_entry_metadata
    (producer,) = broker.sent(api.CommandProducer)
    assert (producer.topic, producer.producer_name, producer.user_provided_producer_name) == (TOPIC, "me", True)
    assert [(pair.key, pair.value) for pair in producer.metadata] == [("a", "b")]
    assert producer.schema.type == api.Schema.Type.Value("None") or not producer.HasField("schema")
    assert broker.sent(api.CommandLookupTopic)[0].topic == TOPIC
    (close,) = broker.sent(api.CommandCloseProducer)
    assert close.producer_id == producer.producer_id


async def test_a_message_sent_alone_has_its_fields_and_gets_its_receipt(broker: Any, run: Run) -> None:
    def send(client: pulsar.Client) -> Any:
        producer = client.create_producer(TOPIC, batching_enabled=False, initial_sequence_id=41)
        return producer.send(
            b"hello", properties={"k": "v"}, partition_key="key", ordering_key="order", event_timestamp=77
        )

    receipt = await run(send)

    assert (receipt.ledger_id(), receipt.entry_id()) == (7, 0)
    assert decode_id(receipt.serialize())[:2] == (7, 0)
    (command,) = broker.sent(api.CommandSend)
    assert (command.sequence_id, command.num_messages) == (42, 1)
    parts = split_message(memoryview(broker.stored[0]))
    metadata = parse_metadata(parts)
    assert parts.checksum is not None
    assert parts.payload == b"hello"
    assert not is_batch(metadata)
    assert metadata.sequence_id == 42
    assert [(pair.key, pair.value) for pair in metadata.properties] == [("k", "v")]
    assert (message_key(metadata), metadata.ordering_key, metadata.event_time) == (b"key", b"order", 77)
    assert metadata.publish_time > 1_600_000_000_000


@EVERY_COMPRESSION
async def test_a_batch_opens_with_every_compression(broker: Any, run: Run, kind: Compression) -> None:
    payloads = [bytes([at]) * 50 * at for at in range(10)]

    def send(client: pulsar.Client) -> None:
        producer = client.create_producer(
            TOPIC,
            batching_enabled=True,
            batching_max_publish_delay_ms=5000,
            batching_max_messages=len(payloads),
            compression_type=COMPRESSIONS[kind],
        )
        for payload in payloads:
            producer.send_async(payload, None, partition_key=f"k{len(payload)}")
        producer.flush()

    await run(send)

    (command,) = broker.sent(api.CommandSend)
    parts = split_message(memoryview(broker.stored[0]))
    metadata = parse_metadata(parts)
    assert is_batch(metadata)
    assert metadata.num_messages_in_batch == command.num_messages == len(payloads)
    assert Compression(metadata.compression) is kind
    if kind is not Compression.NONE:
        assert len(parts.payload) < metadata.uncompressed_size
    found = list(iter_batch(open_payload(metadata, parts.payload), metadata.num_messages_in_batch))
    assert [bytes(single.payload) for single in found] == payloads
    assert [message_key(single.metadata) for single in found] == [f"k{len(p)}".encode() for p in payloads]


@EVERY_COMPRESSION
async def test_what_the_client_sent_it_also_receives(broker: Any, run: Run, kind: Compression) -> None:
    payloads = [b"one", b"two" * 1000, b""]
    if kind is Compression.ZLIB:
        payloads.pop()  # the client (3.13) fails to inflate its own empty payload, and drops the message

    def both(client: pulsar.Client) -> list[bytes]:
        producer = client.create_producer(TOPIC, batching_enabled=False, compression_type=COMPRESSIONS[kind])
        for payload in payloads:
            producer.send(payload)
        consumer = client.subscribe(TOPIC, "s")
        return [consumer.receive(TIMEOUT_MS).data() for _ in payloads]

    assert await run(both) == payloads


@EVERY_COMPRESSION
async def test_a_batch_of_ours_is_one_of_the_clients(broker: Any, run: Run, kind: Compression) -> None:
    payload = encode_batch(
        (api.SingleMessageMetadata(partition_key=f"k{at}", sequence_id=at), b"payload" * at) for at in range(5)
    )
    metadata = api.MessageMetadata(
        producer_name="weir",
        sequence_id=0,
        publish_time=1_700_000_000_000,
        num_messages_in_batch=5,
        compression=kind,
        uncompressed_size=len(payload),
    )
    broker.stored.append(b"".join(seal_message(metadata, compress(kind, payload))))

    def receive(client: pulsar.Client) -> list[tuple[bytes, str, int, int]]:
        consumer = client.subscribe(TOPIC, "s")
        got = [consumer.receive(TIMEOUT_MS) for _ in range(5)]
        return [(m.data(), m.partition_key(), m.message_id().batch_index(), m.publish_timestamp()) for m in got]

    expected = [(b"payload" * at, f"k{at}", at, 1_700_000_000_000) for at in range(5)]
    assert await run(receive) == expected


async def test_a_consumer_subscribes_gives_permits_and_acknowledges(broker: Any, run: Run) -> None:
    def consume(client: pulsar.Client) -> Any:
        producer = client.create_producer(TOPIC, batching_enabled=False)
        ids = [producer.send(b"%d" % at) for at in range(3)]
        consumer = client.subscribe(
            TOPIC,
            "sub",
            consumer_type=pulsar.ConsumerType.KeyShared,
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=10,
            consumer_name="c",
            properties={"p": "q"},
        )
        got = [consumer.receive(TIMEOUT_MS) for _ in ids]
        for message in got:
            consumer.acknowledge(message)
        consumer.seek(pulsar.MessageId.earliest)
        consumer.close()
        return ids

    await run(consume)

    (subscribe,) = broker.sent(api.CommandSubscribe)
    assert (subscribe.topic, subscribe.subscription, subscribe.consumer_name) == (TOPIC, "sub", "c")
    assert subscribe.subType == api.CommandSubscribe.Key_Shared
    assert subscribe.initialPosition == api.CommandSubscribe.Earliest
    assert subscribe.keySharedMeta.keySharedMode == api.AUTO_SPLIT
    assert broker.sent(api.CommandFlow)[0].messagePermits == 10
    acks = broker.sent(api.CommandAck)
    assert all(ack.ack_type == api.CommandAck.Individual for ack in acks)
    acknowledged = [id_from_wire(at)[:2] for ack in acks for at in ack.message_id]
    assert sorted(acknowledged) == [(7, 0), (7, 1), (7, 2)]
    assert id_from_wire(broker.sent(api.CommandSeek)[0].message_id)[:2] == (-1, -1)


async def test_a_cumulative_ack_names_the_last(broker: Any, run: Run) -> None:
    def consume(client: pulsar.Client) -> None:
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for at in range(3):
            producer.send(b"%d" % at)
        consumer = client.subscribe(TOPIC, "sub")
        last = [consumer.receive(TIMEOUT_MS) for _ in range(3)][-1]
        consumer.acknowledge_cumulative(last)
        consumer.close()

    await run(consume)
    (ack,) = broker.sent(api.CommandAck)
    assert ack.ack_type == api.CommandAck.Cumulative
    assert id_from_wire(ack.message_id[0]) == MessageId(7, 2)


async def test_a_part_of_a_batch_is_acknowledged_by_its_ack_set(broker: Any, run: Run) -> None:
    def consume(client: pulsar.Client) -> None:
        producer = client.create_producer(
            TOPIC, batching_enabled=True, batching_max_messages=4, batching_max_publish_delay_ms=5000
        )
        for at in range(4):
            producer.send_async(b"%d" % at, None)
        producer.flush()
        consumer = client.subscribe(
            TOPIC, "sub", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True
        )
        messages = [consumer.receive(TIMEOUT_MS) for _ in range(4)]
        consumer.acknowledge(messages[1])
        consumer.close()

    await run(consume)
    acks = [at for ack in broker.sent(api.CommandAck) for at in ack.message_id]
    assert [bits_from_ack_set(at.ack_set) for at in acks] == [0b1101]


async def test_the_client_takes_redelivery_counts_broker_entries_and_the_rest_of_a_batch(
    broker: Any, run: Run
) -> None:
    payload = encode_batch((api.SingleMessageMetadata(), b"%d" % at) for at in range(4))
    metadata = api.MessageMetadata(
        producer_name="weir",
        sequence_id=0,
        publish_time=1,
        num_messages_in_batch=4,
        uncompressed_size=len(payload),
    )
    broker.stored.append(b"".join(seal_message(metadata, payload)))
    broker.with_broker_entry = True
    broker.redelivery = {"redelivery_count": 3, "unacknowledged": 0b1010}

    def receive(client: pulsar.Client) -> list[tuple[bytes, int]]:
        consumer = client.subscribe(
            TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True
        )
        got = [consumer.receive(TIMEOUT_MS) for _ in range(2)]
        return [(message.data(), message.redelivery_count()) for message in got]

    assert await run(receive) == [(b"1", 3), (b"3", 3)]


@pytest.mark.parametrize(
    ("number", "code", "error"),
    [
        # A refused CONNECT is not here: the client (3.13) connects again until its time-out, whatever the code.
        (Type.PARTITIONED_METADATA, api.ServerError.TopicNotFound, pulsar.TopicNotFound),
        (Type.LOOKUP, api.ServerError.AuthorizationError, pulsar.AuthorizationError),
        (Type.PRODUCER, api.ServerError.ProducerFenced, pulsar.ProducerFenced),
        (Type.SUBSCRIBE, api.ServerError.ConsumerBusy, pulsar.ConsumerBusy),
        (Type.GET_LAST_MESSAGE_ID, api.ServerError.NotAllowedError, pulsar.NotAllowedError),
        (Type.UNSUBSCRIBE, api.ServerError.MetadataError, pulsar.BrokerMetadataError),
    ],
)
async def test_a_refusal_is_understood(broker: Any, run: Run, number: int, code: Any, error: type) -> None:
    broker.refused[number] = code

    def use(client: pulsar.Client) -> None:
        client.create_producer(TOPIC)
        consumer = client.subscribe(TOPIC, "s")
        consumer.get_last_message_id()
        consumer.unsubscribe()

    with pytest.raises(error):
        await run(use)


async def test_readers_regular_expressions_and_chunks_speak_the_same_codec(broker: Any, run: Run) -> None:
    def use(client: pulsar.Client) -> None:
        producer = client.create_producer(TOPIC, batching_enabled=False, chunking_enabled=True)
        producer.send(b"x" * (6 * 1024 * 1024))
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        assert reader.read_next(TIMEOUT_MS).data() == b"x" * (6 * 1024 * 1024)
        assert not reader.has_message_available()
        client.subscribe(re.compile("persistent://public/default/f.*"), "s").close()

    await run(use)
    sends = broker.sent(api.CommandSend)
    assert len(sends) == 2
    assert all(send.is_chunk for send in sends)
    (subscribe,) = [s for s in broker.sent(api.CommandSubscribe) if s.topic == TOPIC]
    assert not subscribe.durable
    assert broker.sent(api.CommandGetTopicsOfNamespace)[0].namespace == "public/default"
    assert broker.sent(api.CommandGetLastMessageId)


async def test_everything_the_client_sends_is_a_clients_to_send(broker: Any, run: Run) -> None:
    def use(client: pulsar.Client) -> None:
        producer = client.create_producer(TOPIC)
        producer.send(b"x")
        consumer = client.subscribe(TOPIC, "s")
        consumer.negative_acknowledge(consumer.receive(TIMEOUT_MS))
        consumer.redeliver_unacknowledged_messages()
        consumer.unsubscribe()

    await run(use)
    seen = {frame.type: None for frame in broker.frames()}
    assert all(Role.CLIENT in COMMANDS[number].sender for number in seen)
    assert Type.REDELIVER_UNACKNOWLEDGED_MESSAGES in seen
    assert Type.UNSUBSCRIBE in seen
