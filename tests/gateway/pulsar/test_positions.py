"""Readers, table views, seek and last message ids with the official client."""

from typing import Any

import pulsar
import pytest

TIMEOUT_MS = 60_000
BATCHED = pytest.mark.parametrize("batching", [True, False], ids=["batched", "one by one"])


def producer_of(client: pulsar.Client, topic: str, batching: bool) -> pulsar.Producer:
    return client.create_producer(
        topic, batching_enabled=batching, batching_max_messages=10, batching_max_publish_delay_ms=TIMEOUT_MS
    )


@BATCHED
def test_a_reader_reads_from_the_start(client: pulsar.Client, talk: Any, topic: str, batching: bool) -> None:
    talk.send(producer_of(client, topic, batching), talk.numbered(50))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert talk.read(reader, 50) == talk.numbered(50)
    assert not reader.has_message_available()


@BATCHED
@pytest.mark.parametrize("inclusive", [True, False])
def test_a_reader_starts_at_a_message(
    client: pulsar.Client, talk: Any, topic: str, batching: bool, inclusive: bool
) -> None:
    ids = talk.send(producer_of(client, topic, batching), talk.numbered(50))
    reader = client.create_reader(topic, ids[24], start_message_id_inclusive=inclusive)
    first = 24 if inclusive else 25
    assert talk.read(reader, 50 - first) == talk.numbered(50)[first:]


def test_a_reader_from_the_end_sees_only_what_comes(client: pulsar.Client, talk: Any, topic: str) -> None:
    producer = producer_of(client, topic, False)
    talk.send(producer, talk.numbered(5))
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    assert not reader.has_message_available()
    producer.send(b"new")
    assert reader.has_message_available()
    assert talk.read(reader, 1) == [b"new"]


def test_a_reader_of_the_last_message(client: pulsar.Client, talk: Any, topic: str) -> None:
    talk.send(producer_of(client, topic, True), talk.numbered(15))
    reader = client.create_reader(topic, pulsar.MessageId.latest, start_message_id_inclusive=True)
    assert reader.has_message_available()
    assert talk.read(reader, 1) == talk.numbered(15)[-1:]


def test_has_message_available_follows_the_end(client: pulsar.Client, talk: Any, topic: str) -> None:
    producer = producer_of(client, topic, True)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert not reader.has_message_available()
    talk.send(producer, talk.numbered(25))
    for _ in range(25):
        assert reader.has_message_available()
        reader.read_next(TIMEOUT_MS)
    assert not reader.has_message_available()


def test_a_reader_seeks_by_id_and_time(client: pulsar.Client, talk: Any, topic: str) -> None:
    producer = producer_of(client, topic, False)
    ids = talk.send(producer, talk.numbered(10))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    messages = [reader.read_next(TIMEOUT_MS) for _ in range(10)]
    reader.seek(pulsar.MessageId.earliest)
    assert talk.read(reader, 10) == talk.numbered(10)
    reader.seek(ids[6])
    assert talk.read(reader, 3) == talk.numbered(10)[7:]
    reader.seek(messages[0].publish_timestamp() - 1000)
    assert talk.read(reader, 10) == talk.numbered(10)


@BATCHED
def test_a_consumer_seeks_back_and_forth(client: pulsar.Client, talk: Any, topic: str, batching: bool) -> None:
    consumer = client.subscribe(topic, "s", start_message_id_inclusive=True)
    ids = talk.send(producer_of(client, topic, batching), talk.numbered(50))
    assert talk.receive(consumer, 50) == talk.numbered(50)
    consumer.seek(pulsar.MessageId.earliest)
    assert talk.receive(consumer, 50) == talk.numbered(50)
    consumer.seek(ids[33])
    assert talk.receive(consumer, 17) == talk.numbered(50)[33:]
    consumer.seek(pulsar.MessageId.latest)
    talk.nothing_more(consumer, producer_of(client, topic, False))


def test_a_consumer_seeks_by_time(client: pulsar.Client, talk: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = producer_of(client, topic, False)
    talk.send(producer, talk.numbered(5))
    published = [consumer.receive(TIMEOUT_MS).publish_timestamp() for _ in range(5)]
    consumer.seek(published[0] - 1000)
    assert talk.receive(consumer, 5) == talk.numbered(5)
    consumer.seek(published[-1] + 3_600_000)
    talk.nothing_more(consumer, producer)


def test_a_seek_closes_the_other_consumers_too(client: pulsar.Client, talk: Any, topic: str) -> None:
    one, two = (client.subscribe(topic, "s", pulsar.ConsumerType.Shared) for _ in range(2))
    talk.send(producer_of(client, topic, False), talk.numbered(20))
    for _ in range(2):
        got = [message.data() for mine in talk.share([one, two], 20) for message in mine]
        assert sorted(got) == talk.numbered(20)
        one.seek(pulsar.MessageId.earliest)


@BATCHED
def test_the_last_message_id(client: pulsar.Client, talk: Any, topic: str, batching: bool) -> None:
    consumer = client.subscribe(topic, "s")
    ids = talk.send(producer_of(client, topic, batching), talk.numbered(27))
    last = consumer.get_last_message_id()
    assert (last.ledger_id(), last.entry_id()) == (ids[-1].ledger_id(), ids[-1].entry_id())
    assert last.batch_index() == ids[-1].batch_index()


def test_a_table_view_keeps_the_latest_of_each_key(client: pulsar.Client, topic: str) -> None:
    producer = producer_of(client, topic, True)
    for at in range(40):
        producer.send_async(b"%d" % at, None, partition_key=f"k{at % 4}")
    producer.flush()
    view = client.create_table_view(topic)
    assert {key: view.get(key) for key in ("k0", "k1", "k2", "k3")} == {
        "k0": b"36",
        "k1": b"37",
        "k2": b"38",
        "k3": b"39",
    }
    assert len(view) == 4
    view.close()
