"""Partitioned topics, regular expressions, lookups, access modes and deduplication with the official client."""

import re
import threading
from contextlib import suppress
from typing import Any

import pulsar
import pytest

from weir.broker.api.broker import Owner
from weir.model.policies import Policies
from weir.model.topics import TopicName
from weir.wire.pulsar import pulsar_api_pb2 as api

TIMEOUT_MS = 60_000


def test_partitions_are_used_and_read(weir_broker: Any, client: pulsar.Client, talk: Any, topic: str) -> None:
    weir_broker.partition(topic, 3)
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{at}" for at in range(3)]
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    ids = [producer.send(payload) for payload in talk.numbered(30)]
    assert {at.partition() for at in ids} == {0, 1, 2}
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(30)]
    assert sorted(message.data() for message in messages) == talk.numbered(30)
    assert {message.message_id().partition() for message in messages} == {0, 1, 2}
    for message in messages:
        consumer.acknowledge(message)


def test_a_key_goes_to_one_partition(weir_broker: Any, client: pulsar.Client, topic: str) -> None:
    weir_broker.partition(topic, 4)
    producer = client.create_producer(topic)
    partitions: dict[str, set[int]] = {}
    for at in range(40):
        key = f"k{at % 8}"
        partitions.setdefault(key, set()).add(producer.send(b"x", partition_key=key).partition())
    assert all(len(used) == 1 for used in partitions.values())


def test_a_partitioned_reader_and_table_view(
    weir_broker: Any, client: pulsar.Client, talk: Any, topic: str
) -> None:
    weir_broker.partition(topic, 2)
    producer = client.create_producer(topic)
    for at in range(10):
        producer.send(b"%06d" % at, partition_key=f"k{at}")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert sorted(talk.read(reader, 10)) == talk.numbered(10)
    assert len(client.create_table_view(topic)) == 10


def test_a_partition_alone(weir_broker: Any, client: pulsar.Client, talk: Any, topic: str) -> None:
    weir_broker.partition(topic, 2)
    consumer = client.subscribe(f"{topic}-partition-1", "s")
    client.create_producer(f"{topic}-partition-1").send(b"x")
    message = consumer.receive(TIMEOUT_MS)
    assert message.message_id().partition() == 1
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(f"{topic}-partition-9")


@pytest.mark.slow
def test_failover_spreads_partitions(weir_broker: Any, client: pulsar.Client, talk: Any, topic: str) -> None:
    weir_broker.partition(topic, 4)
    consumers = [
        client.subscribe(topic, "s", pulsar.ConsumerType.Failover, consumer_name=f"c{at}") for at in range(2)
    ]
    producer = client.create_producer(topic)
    for payload in talk.numbered(40):
        producer.send(payload)
    got = talk.share(consumers, 40)
    assert all(got)
    assert sorted({m.data() for mine in got for m in mine}) == talk.numbered(40)


def test_a_regular_expression_finds_its_topics(client: pulsar.Client, talk: Any, topic: str) -> None:
    producers = [client.create_producer(f"{topic}-{name}") for name in ("a", "b", "other")]
    consumer = client.subscribe(re.compile(f"{topic}-[ab]"), "s")
    for producer in producers:
        producer.send(producer.topic().encode())
    got = sorted(consumer.receive(TIMEOUT_MS).data().decode() for _ in range(2))
    assert got == [f"{topic}-a", f"{topic}-b"]
    talk.nothing_more(consumer, producers[0])


def test_several_topics_at_once(client: pulsar.Client, topic: str) -> None:
    names = [f"{topic}-{at}" for at in range(3)]
    consumer = client.subscribe(names, "s")
    for name in names:
        client.create_producer(name).send(name.encode())
    assert sorted(consumer.receive(TIMEOUT_MS).data().decode() for _ in names) == names


@pytest.mark.parametrize("bad", ["persistent://a/b", "strange://public/default/x", "persistent://public/default/"])
def test_bad_names_are_refused(client: pulsar.Client, bad: str) -> None:
    with pytest.raises((pulsar.PulsarException, ValueError)):
        client.create_producer(bad)


def test_a_namespace_must_exist(client: pulsar.Client) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("persistent://nobody/nothing/x")


@pytest.mark.slow
def test_a_topic_of_another_broker_is_a_redirect(start_broker: Any, connect: Any, topic: str, talk: Any) -> None:
    asked, other = start_broker(), start_broker()
    asked.send_elsewhere(topic, Owner(False, {"pulsar": other.url}))
    client = connect(asked)
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"there")
    assert talk.receive(consumer, 1) == [b"there"]
    assert [loaded.name for loaded in other.broker.loaded] == [TopicName.parse(topic)]
    assert asked.broker.loaded == []


# --- access modes ---------------------------------------------------------------------------------------


def test_an_exclusive_producer_keeps_others_out(client: pulsar.Client, topic: str) -> None:
    mode = pulsar.ProducerAccessMode
    first = client.create_producer(topic, access_mode=mode.Exclusive)
    for other in (mode.Exclusive, mode.Shared):
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(topic, access_mode=other)
    first.send(b"x")
    first.close()
    client.create_producer(topic, access_mode=mode.Exclusive).send(b"y")


def test_a_waiting_producer_gets_its_turn(
    weir_broker: Any, client: pulsar.Client, connect: Any, talk: Any, topic: str
) -> None:
    mode = pulsar.ProducerAccessMode
    first = client.create_producer(topic, access_mode=mode.Exclusive)
    made: list[pulsar.Producer] = []
    other = connect(weir_broker)

    def wait() -> None:
        made.append(other.create_producer(topic, access_mode=mode.WaitForExclusive))

    thread = threading.Thread(target=wait)
    thread.start()
    name = TopicName.parse(topic)

    async def waits() -> bool:
        served = await weir_broker.broker.topic(name, role="")
        return len(served.producers) > 1

    talk.until(lambda: weir_broker.call(waits))
    assert not made
    first.close()
    thread.join(60)
    made[0].send(b"mine")


def test_fencing_pushes_the_other_out(client: pulsar.Client, topic: str) -> None:
    mode = pulsar.ProducerAccessMode
    first = client.create_producer(topic, access_mode=mode.Exclusive)
    first.send(b"x")
    second = client.create_producer(topic, access_mode=mode.ExclusiveWithFencing)
    second.send(b"y")
    with pytest.raises(pulsar.PulsarException):
        first.send(b"z")


def test_a_taken_producer_name_is_refused(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, producer_name="me")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="me")


def test_deduplication_drops_what_is_sent_again(
    weir_broker: Any, client: pulsar.Client, talk: Any, topic: str
) -> None:
    weir_broker.set_policies(topic, Policies(deduplication=True))
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name="me", initial_sequence_id=-1)
    talk.send(producer, talk.numbered(10))
    assert producer.last_sequence_id() == 9
    producer.close()
    again = client.create_producer(topic, producer_name="me")
    assert again.last_sequence_id() == 9
    for at in range(5, 15):
        again.send(b"%06d" % at, sequence_id=at)
    assert talk.receive(consumer, 15) == talk.numbered(15)
    talk.nothing_more(consumer, client.create_producer(topic))


def test_topics_that_store_nothing(client: pulsar.Client, talk: Any, topic: str) -> None:
    """Who listens gets what comes, in order; what nobody waits for is gone."""
    topic = topic.replace("persistent://", "non-persistent://")
    producer = client.create_producer(topic)
    producer.send(b"nobody listens")
    consumers = [client.subscribe(topic, name, pulsar.ConsumerType.Shared) for name in ("a", "b")]
    got: list[list[bytes]] = [[], []]
    sent: list[bytes] = []

    def pass_on() -> bool:
        sent.append(b"%06d" % len(sent))
        producer.send(sent[-1])
        for consumer, mine in zip(consumers, got, strict=True):
            with suppress(pulsar.Timeout):
                mine.append(consumer.receive(20).data())
        return min(map(len, got)) >= 5

    talk.until(pass_on)
    assert all([payload for payload in sent if payload in mine] == mine for mine in got)


def test_a_watched_list_tells_what_comes_and_goes(weir_broker: Any, topic: str) -> None:
    async def watch() -> None:
        peer = await weir_broker.peer()
        await peer.greet()
        create = weir_broker.registry.topics.create
        await create(TopicName.parse(f"{topic}-a"))
        await create(TopicName.parse(f"{topic}-other"))
        pattern = f"{topic}-[ab]"
        peer.say(
            api.CommandWatchTopicList(
                request_id=1, watcher_id=5, namespace="public/default", topics_pattern=pattern
            )
        )
        first = await peer.hear(api.CommandWatchTopicListSuccess)
        assert (first.watcher_id, list(first.topic)) == (5, [f"{topic}-a"])
        await create(TopicName.parse(f"{topic}-b"))
        change = await peer.hear(api.CommandWatchTopicUpdate)
        assert (list(change.new_topics), list(change.deleted_topics)) == ([f"{topic}-b"], [])
        assert change.topics_hash != first.topics_hash
        await weir_broker.broker.delete(TopicName.parse(f"{topic}-a"))
        change = await peer.hear(api.CommandWatchTopicUpdate)
        assert (list(change.new_topics), list(change.deleted_topics)) == ([], [f"{topic}-a"])
        peer.say(
            api.CommandWatchTopicList(
                request_id=2,
                watcher_id=6,
                namespace="public/default",
                topics_pattern=pattern,
                topics_hash=change.topics_hash,
            )
        )
        assert list((await peer.hear(api.CommandWatchTopicListSuccess)).topic) == []
        for watcher in (5, 6):
            peer.say(api.CommandWatchTopicListClose(request_id=3, watcher_id=watcher))
            await peer.hear(api.CommandSuccess)
        await create(TopicName.parse(f"{topic}-a"))
        peer.say(api.CommandPing())
        await peer.hear(api.CommandPong)
        peer.say(
            api.CommandWatchTopicList(request_id=4, watcher_id=7, namespace="public/default", topics_pattern="(")
        )
        assert (await peer.hear(api.CommandError)).error == api.ServerError.NotAllowedError

    weir_broker.call(watch)


def test_topics_of_a_namespace(weir_broker: Any, topic: str) -> None:
    async def ask() -> None:
        peer = await weir_broker.peer()
        await peer.greet()
        await weir_broker.registry.topics.create(TopicName.parse(topic), partitions=2)
        await weir_broker.registry.topics.create(TopicName.parse(topic.replace("per", "non-per")))
        get = api.CommandGetTopicsOfNamespace
        for mode, expected in (
            (get.PERSISTENT, [f"{topic}-partition-0", f"{topic}-partition-1"]),
            (get.NON_PERSISTENT, [topic.replace("per", "non-per")]),
        ):
            pattern = f"{topic}.*"
            peer.say(get(request_id=1, namespace="public/default", mode=mode, topics_pattern=pattern))
            found = await peer.hear(api.CommandGetTopicsOfNamespaceResponse)
            assert (list(found.topics), found.filtered) == (expected, True)

    weir_broker.call(ask)
