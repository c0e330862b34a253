"""A replay for one subscription, whatever its consumers speak: they get it, and consumers of others nothing.

The selections are written by hand: Spark is not needed for any of this.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pulsar
import pytest
from confluent_kafka import Consumer

from weir.model.errors import ConfigError
from weir.model.topics import TopicName
from weir.spark.replay.delivery import Delivery, go_on
from weir.spark.replay.requests import Request, begin, resolve

from .conftest import Topics
from .replay_kit import new_name, place_of, selecting
from .sql_session import patiently

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]

Take = Callable[[], bytes]


@pytest.fixture
def rocketmq(topics: Topics, tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Take]]:
    """Of a topic, for a group: what takes the next message."""
    monkeypatch.setitem(os.environ, "HOME", str(tmp_path))  # where the client has its log, from its import on
    from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer

    made: list[SimpleConsumer] = []

    def consumer(topic: str, group: str) -> Take:
        where = ClientConfiguration(topics.up.rocketmq, Credentials(), "", request_timeout=30)
        made.append(found := SimpleConsumer(where, group, {topic: FilterExpression()}, 20))
        found.startup()

        def take() -> bytes:
            while not (some := found.receive(1, 60)):
                continue
            found.ack(some[0])
            return bytes(some[0].body)

        return take

    yield consumer
    for one in made:
        one.shutdown()


@pytest.fixture
def by_pulsar(topics: Topics) -> Iterator[Callable[..., Take]]:
    client = pulsar.Client(topics.up.pulsar_url)

    def consumer(topic: str, subscription: str, kind: Any = pulsar.ConsumerType.Exclusive) -> Take:
        earliest = pulsar.InitialPosition.Earliest
        found = client.subscribe(topic, subscription, kind, initial_position=earliest)

        def take() -> bytes:
            message = found.receive(timeout_millis=60_000)
            found.acknowledge(message)
            return bytes(message.data())

        return take

    yield consumer
    client.close()


@pytest.fixture
def by_amqp(topics: Topics) -> Iterator[Callable[[str], Take]]:
    host, _, port = topics.up.amqp.rpartition(":")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    channel = connection.channel()

    def consumer(queue: str) -> Take:
        channel.queue_declare(queue, durable=True)

        def take() -> bytes:
            got: list[bytes] = []

            def look() -> bool:
                method, _, body = channel.basic_get(queue, auto_ack=True)
                if method is not None:
                    got.append(body)
                return bool(got)

            patiently(look)
            return got[0]

        return take

    yield consumer
    connection.close()


@pytest.fixture
def by_kafka(topics: Topics) -> Iterator[Callable[[str, str], Take]]:
    made: list[Consumer] = []

    def consumer(topic: str, group: str) -> Take:
        settings = {"bootstrap.servers": topics.servers, "group.id": group, "auto.offset.reset": "earliest"}
        made.append(found := Consumer({**settings, "log_level": 0}))
        found.subscribe([topic])

        def take() -> bytes:
            message = found.poll(60)
            assert message is not None
            assert message.error() is None
            return bytes(message.value())

        return take

    yield consumer
    for one in made:
        one.close()


def test_consumers_of_every_protocol_get_what_is_for_their_subscription_and_of_others_nothing(
    topics: Topics, by_pulsar: Any, by_amqp: Any, by_kafka: Any, rocketmq: Any
) -> None:
    place, topic = place_of(topics), new_name("everybodys")
    shared, keys = pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared
    takes: dict[str, Take] = {"queue": by_amqp(topic)}
    takes["exclusive"] = by_pulsar(topic, "exclusive")
    takes["shared"] = by_pulsar(topic, "shared", shared)
    takes["keys"] = by_pulsar(topic, "keys", keys)
    takes["rocketmq-group"] = rocketmq(topic, "rocketmq-group")
    replayed_to = list(takes)
    takes["other-rocketmq-group"] = rocketmq(topic, "other-rocketmq-group")
    takes["other"] = by_pulsar(topic, "other", shared)
    takes["kafka-group"] = by_kafka(topic, "kafka-group")
    topics.fill(topic, ["first"])
    for name, take in takes.items():
        assert take() == b"first", name
    for name in replayed_to:
        replay = begin(place, resolve(place, Request(TopicName.parse(topic), f"subscription:{name}")))
        done = go_on(place, replay, selecting(topics, place, {0: [f"1 {name}", f"2 {name}"]}), Delivery(place))
        assert done.delivered == (2,)
    topics.fill(topic, ["last"])
    for name, take in takes.items():
        wanted = [f"1 {name}", f"2 {name}", "last"] if name in replayed_to else ["last"]
        assert sorted(take().decode() for _ in wanted) == wanted, name


def test_a_consumer_group_of_kafkas_is_told_to_read_a_topic_into_which_it_is_replayed(
    topics: Topics, by_kafka: Any
) -> None:
    place = place_of(topics)
    source, target = topics.create(name=new_name("from")), topics.create(name=new_name("to"))
    group = new_name("group")
    topics.fill(source, ["first"])
    topics.fill(target, ["there"])
    assert by_kafka(source, group)() == b"first"
    take = by_kafka(target, new_name("group"))
    assert take() == b"there"
    with pytest.raises(ConfigError):
        resolve(place, Request(TopicName.parse(source), group))
    replay = begin(place, resolve(place, Request(TopicName.parse(source), target)))
    go_on(place, replay, selecting(topics, place, {0: ["a", "b"]}), Delivery(place))
    assert [take(), take()] == [b"a", b"b"]
