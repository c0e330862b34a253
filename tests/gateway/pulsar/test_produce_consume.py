"""Producing and consuming with the official client: batching, compression, acknowledgements, listeners."""

import threading
from typing import Any

import pulsar
import pytest

from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.frames import encode_with_message
from weir.wire.pulsar.message import seal_message

TIMEOUT_MS = 60_000
COMPRESSIONS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]


@pytest.mark.parametrize("batching", [True, False], ids=["batched", "one by one"])
@pytest.mark.parametrize("compression", COMPRESSIONS, ids=str)
def test_what_is_sent_is_received_in_order(
    client: pulsar.Client, talk: Any, topic: str, batching: bool, compression: Any
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=batching, compression_type=compression)
    payloads = talk.numbered(500, 100)
    talk.send(producer, payloads)
    assert talk.receive(consumer, 500) == payloads
    talk.nothing_more(consumer, producer)


def test_message_ids_grow_and_name_their_batch(client: pulsar.Client, talk: Any, topic: str) -> None:
    producer = client.create_producer(topic, **talk.batches(10))
    ids = talk.send(producer, talk.numbered(100))
    keys = [(at.ledger_id(), at.entry_id(), at.batch_index()) for at in ids]
    assert keys == sorted(keys)
    assert len(dict.fromkeys(keys)) == 100
    assert {at.batch_index() for at in ids} == set(range(10))


def test_receipts_of_what_came_together_name_where_each_message_is(weir_broker: Any, topic: str) -> None:
    async def say() -> None:
        peer = await weir_broker.peer()
        await peer.greet()
        await peer.produce(topic)
        await peer.subscribe(topic)
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=1000))
        sizes = [1, 3, 1, 1, 10, 1]
        heads = [{"num_messages_in_batch": size} if size > 1 else {} for size in sizes]
        frames: list[Any] = []
        for sequence, head in enumerate(heads):  # all in one write, and so in one receive buffer
            metadata = api.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1, **head)
            command = api.CommandSend(producer_id=1, sequence_id=sequence, num_messages=sizes[sequence])
            frames += encode_with_message(command, seal_message(metadata, b"x"))
        peer.connection.write([b"".join(frames)])
        receipts: list[tuple[int, int, int]] = []
        messages: list[tuple[int, int]] = []
        while len(receipts) < len(sizes) or len(messages) < len(sizes):
            told = (await peer.frame()).command
            at = told.message_id
            if isinstance(told, api.CommandSendReceipt):
                receipts.append((told.sequence_id, at.ledgerId, at.entryId))
            else:
                messages.append((at.ledgerId, at.entryId))
        assert [sequence for sequence, _, _ in receipts] == list(range(len(sizes)))
        assert [place for _, *place in receipts] == [list(place) for place in messages]
        first = receipts[0][2]
        assert [entry - first for _, _, entry in receipts] == [0, 1, 4, 5, 6, 16]

    weir_broker.call(say)


def test_properties_keys_and_times_survive(client: pulsar.Client, talk: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name="me")
    producer.send(b"x", properties={"a": "b"}, partition_key="k", ordering_key="o", event_timestamp=77)
    message = consumer.receive(TIMEOUT_MS)
    assert message.properties() == {"a": "b"}
    assert (message.partition_key(), message.ordering_key(), message.event_timestamp()) == ("k", "o", 77)
    assert message.producer_name() == "me"
    assert message.topic_name() == topic
    assert message.publish_timestamp() > 1_600_000_000_000


def test_a_subscription_starts_where_it_is_told(client: pulsar.Client, talk: Any, topic: str) -> None:
    producer = client.create_producer(topic)
    talk.send(producer, talk.numbered(5))
    early = client.subscribe(topic, "early", initial_position=pulsar.InitialPosition.Earliest)
    late = client.subscribe(topic, "late", initial_position=pulsar.InitialPosition.Latest)
    producer.send(b"after")
    assert talk.receive(early, 6) == [*talk.numbered(5), b"after"]
    assert talk.receive(late, 1) == [b"after"]


def test_what_is_acknowledged_does_not_come_again(client: pulsar.Client, talk: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    talk.send(producer, talk.numbered(10))
    for _ in range(10):
        message = consumer.receive(TIMEOUT_MS)
        if int(message.data()) % 2:
            consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    assert sorted(talk.receive(again, 5)) == talk.numbered(10)[::2]
    talk.nothing_more(again, producer)


@pytest.mark.parametrize("batching", [True, False], ids=["batched", "one by one"])
def test_a_cumulative_acknowledgement_covers_what_came_before(
    client: pulsar.Client, talk: Any, topic: str, batching: bool
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, **(talk.batches(10) | {"batching_enabled": batching}))
    talk.send(producer, talk.numbered(40))
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(40)]
    consumer.acknowledge_cumulative(messages[24])
    consumer.close()
    again = client.subscribe(topic, "s")
    # Half of a batch is not acknowledged without batch indexes: the client names the entry before.
    first = 20 if batching else 25
    assert talk.receive(again, 40 - first) == talk.numbered(40)[first:]


def test_a_part_of_a_batch_is_acknowledged_by_index(client: pulsar.Client, talk: Any, topic: str) -> None:
    def subscribe() -> pulsar.Consumer:
        return client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True)

    consumer = subscribe()
    producer = client.create_producer(topic, **talk.batches(100))
    talk.send(producer, talk.numbered(100))
    for _ in range(100):
        message = consumer.receive(TIMEOUT_MS)
        if int(message.data()) % 3:
            consumer.acknowledge(message)
    consumer.close()
    again = subscribe()
    assert talk.receive(again, 34) == talk.numbered(100)[::3]
    talk.nothing_more(again, client.create_producer(topic))


def test_listeners_get_every_message(client: pulsar.Client, talk: Any, topic: str) -> None:
    got: list[bytes] = []
    done = threading.Event()

    def listen(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        got.append(message.data())
        consumer.acknowledge(message)
        if len(got) == 200:
            done.set()

    client.subscribe(topic, "s", message_listener=listen)
    talk.send(client.create_producer(topic), talk.numbered(200))
    assert done.wait(60)
    assert got == talk.numbered(200)


def test_batch_receive(client: pulsar.Client, talk: Any, topic: str) -> None:
    policy = pulsar.ConsumerBatchReceivePolicy(max_num_message=25, max_num_bytes=-1, timeout_ms=2000)
    consumer = client.subscribe(topic, "s", batch_receive_policy=policy)
    talk.send(client.create_producer(topic), talk.numbered(100))
    got: list[bytes] = []

    def take() -> bool:
        messages = list(consumer.batch_receive())
        assert len(messages) <= 25
        got.extend(message.data() for message in messages)
        for message in messages:
            consumer.acknowledge(message)
        return len(got) >= 100

    talk.until(take)
    assert got == talk.numbered(100)


def test_a_small_receiver_queue_is_enough(client: pulsar.Client, talk: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", receiver_queue_size=1)
    producer = client.create_producer(topic, **talk.batches(7))
    talk.send(producer, talk.numbered(50))
    assert talk.receive(consumer, 50) == talk.numbered(50)


def test_large_messages_up_to_the_limit(client: pulsar.Client, talk: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    large = bytes(range(256)) * (16 * 4096 - 4)
    producer.send(large)
    assert consumer.receive(TIMEOUT_MS).data() == large
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(b"x" * (17 * 1024 * 1024))


def test_chunked_messages_arrive_whole(client: pulsar.Client, talk: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, chunking_enabled=True)
    large = bytes(range(256)) * 150_000
    producer.send(large)
    producer.send(b"small")
    message = consumer.receive(TIMEOUT_MS)
    assert message.data() == large
    consumer.acknowledge(message)
    assert consumer.receive(TIMEOUT_MS).data() == b"small"


def test_two_subscriptions_each_get_everything(client: pulsar.Client, talk: Any, topic: str) -> None:
    consumers = [client.subscribe(topic, name) for name in ("a", "b")]
    talk.send(client.create_producer(topic), talk.numbered(20))
    assert [talk.receive(consumer, 20) for consumer in consumers] == [talk.numbered(20)] * 2
