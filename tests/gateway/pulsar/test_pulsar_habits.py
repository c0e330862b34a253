"""Habits of Apache Pulsar's broker that its clients count on."""

import re
from datetime import timedelta
from typing import Any

import pulsar
import pytest

from weir.broker.api.schemas import SchemaData
from weir.gateway.pulsar.errors import schema_to_wire
from weir.model.topics import NamespaceName, TopicName
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.ids import ack_set_from_bits, bits_from_ack_set


def test_a_pattern_in_a_namespace_that_is_not_there_yet_waits_for_it(
    weir_broker: Any, client: pulsar.Client, topic: str
) -> None:
    later = NamespaceName("public", topic.rsplit("/", 1)[1])
    client.subscribe(re.compile(f"persistent://{later}/.*"), "s").close()

    async def watch() -> None:
        peer = await weir_broker.peer()
        await peer.greet()
        pattern = f"persistent://{later}/.*"
        peer.say(
            api.CommandWatchTopicList(request_id=1, watcher_id=1, namespace=str(later), topics_pattern=pattern)
        )
        assert list((await peer.hear(api.CommandWatchTopicListSuccess)).topic) == []
        await weir_broker.registry.namespaces.create(later)
        await weir_broker.registry.topics.create(TopicName.parse(f"persistent://{later}/t"))
        assert list((await peer.hear(api.CommandWatchTopicUpdate)).new_topics) == [f"persistent://{later}/t"]

    weir_broker.call(watch)


@pytest.mark.parametrize("namespace", ["public/missing", "missing/missing"])
def test_the_topics_of_a_missing_namespace_are_an_empty_list(weir_broker: Any, namespace: str) -> None:
    async def ask() -> None:
        peer = await weir_broker.peer()
        await peer.greet()
        mode = api.CommandGetTopicsOfNamespace.ALL
        peer.say(api.CommandGetTopicsOfNamespace(request_id=1, namespace=namespace, mode=mode))
        assert list((await peer.hear(api.CommandGetTopicsOfNamespaceResponse)).topics) == []

    weir_broker.call(ask)


def test_a_listener_that_is_not_there_is_refused(weir_broker: Any, connect: Any, topic: str) -> None:
    client = connect(weir_broker, listener_name="inside")
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    assert not [one for one in weir_broker.broker.loaded if str(one.name) == topic]


def test_bytes_have_no_schema_to_register(weir_broker: Any, client: pulsar.Client, topic: str) -> None:
    """A Java producer of several schemas asks for a version of `Schema.BYTES` too; its wire type is None."""
    client.create_producer(topic, schema=pulsar.schema.StringSchema())

    async def ask() -> None:
        peer = await weir_broker.peer()
        await peer.greet()
        schema = api.Schema(name="BYTES", schema_data=b"", type=api.Schema.Type.Value("None"))
        peer.say(api.CommandGetOrCreateSchema(request_id=1, topic=topic, schema=schema))
        answer = await peer.hear(api.CommandGetOrCreateSchemaResponse)
        assert (answer.schema_version, answer.error_message) == (b"", "")

    weir_broker.call(ask)
    posted = schema_to_wire(SchemaData("BYTES", b""))  # by an administrator: the protocol has no other word for it
    assert posted.type == api.Schema.Type.Value("None")


def test_a_delayed_message_has_an_id_of_its_own_once_it_is_seen(
    client: pulsar.Client, talk: Any, topic: str
) -> None:
    """Its receipt names its place among the held ones, which its place in the topic cannot be:
    docs/reference/delayed-messages.md."""
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    held = producer.send(b"later", deliver_after=timedelta(milliseconds=50))
    seen = consumer.receive(60_000)
    consumer.acknowledge(seen)
    assert str(seen.message_id()) != str(held)
    talk.nothing_more(consumer, producer)  # it is acknowledged by the id that it came with


# --- batches and redelivery ---------------------------------------------------------------------------------


def test_of_a_batch_only_what_is_not_acknowledged_comes_again(
    client: pulsar.Client, talk: Any, topic: str
) -> None:
    """With acknowledgements by index, one bad message costs its neighbours no redelivery."""
    consumer = client.subscribe(
        topic,
        "s",
        pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=20,
        batch_index_ack_enabled=True,
    )
    producer = client.create_producer(topic, **talk.batches(50))
    talk.send(producer, talk.numbered(50))
    bad, counts = b"%06d" % 7, []
    others: dict[bytes, int] = {}
    while len(counts) < 4:
        message = consumer.receive(60_000)
        if message.data() != bad:
            others[message.data()] = others.get(message.data(), 0) + 1
            consumer.acknowledge(message)
        else:
            counts.append(message.redelivery_count())
            consumer.negative_acknowledge(message)
    assert counts == [0, 1, 2, 3]
    assert others == {data: 1 for data in talk.numbered(50) if data != bad}


def test_a_batch_that_comes_again_says_which_of_it_is_not_acknowledged(weir_broker: Any, topic: str) -> None:
    """What a client needs to dead-letter one message rather than its batch; the one in C++ does not look."""

    async def talk() -> None:
        peer = await weir_broker.peer()
        await peer.greet()
        await peer.subscribe(topic, subType=api.CommandSubscribe.Shared)
        await peer.produce(topic)
        peer.send(1, 0, num_messages_in_batch=5)
        await peer.hear(api.CommandSendReceipt)
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=100))
        first, _ = await peer.message()
        at, left = first.message_id, 0b01000
        place = api.MessageIdData(ledgerId=at.ledgerId, entryId=at.entryId)
        part = api.MessageIdData(ledgerId=at.ledgerId, entryId=at.entryId, ack_set=ack_set_from_bits(left))
        for count in (1, 2, 3):
            peer.say(api.CommandAck(consumer_id=1, ack_type=api.CommandAck.Individual, message_id=[part]))
            peer.say(api.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=[place]))
            again, _ = await peer.message()
            assert (bits_from_ack_set(again.ack_set), again.redelivery_count) == (left, count)

    weir_broker.call(talk)
