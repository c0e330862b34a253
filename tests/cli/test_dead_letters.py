"""Retry and dead letters by the server, with Pulsar's and RabbitMQ's own clients, and the commands for them."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pulsar
import pytest

from weir.cli import dead_letters
from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process

LONG_MS = 30_000


@pytest.fixture(scope="module")
def client(weir_up: UpProcess) -> Iterator[Any]:
    found = pulsar.Client(weir_up.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield found
    found.close()


def shared(client: Any, topic: str, **properties: str) -> Any:
    return client.subscribe(
        topic,
        "billing",
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=1,
        properties={f"weir.retry.{name.replace('_', '-')}": text for name, text in properties.items()},
    )


@pytest.fixture
def asked(run_here: Callable[..., Any]) -> Callable[..., Any]:
    def ask(*words: str) -> Any:
        done = run_here("subscriptions", *words, "--json")
        assert done.code == 0, done
        return json.loads(done.out)

    return ask


def wait_letters(asked: Any, topic: str, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(found := asked("dead-letters", "list", topic, "billing", "-n", "1000")) != count:
        assert time.monotonic() < deadline, len(found)


def test_a_failed_message_of_a_key_shared_subscription_dies_and_its_key_goes_on(client: Any) -> None:
    consumer = client.subscribe(
        "keyed",
        "billing",
        pulsar.ConsumerType.KeyShared,
        negative_ack_redelivery_delay_ms=1,
        properties={"weir.retry.schedule": "10ms", "weir.retry.max-deliveries": "2"},
    )
    producer = client.create_producer("keyed")
    for text in (b"poison", b"good"):
        producer.send(text, partition_key="k")
    seen: list[tuple[bytes, int]] = []
    while not seen or seen[-1][0] != b"good":
        message = consumer.receive(LONG_MS)
        seen.append((message.data(), message.redelivery_count()))
        if message.data() == b"poison":
            consumer.negative_acknowledge(message)
    assert seen == [(b"poison", 0), (b"poison", 1), (b"good", 0)]
    dead = client.subscribe("keyed-billing-DLQ", "mine", initial_position=pulsar.InitialPosition.Earliest)
    assert dead.receive(LONG_MS).data() == b"poison"


def test_a_failed_message_of_a_shared_subscription_dies_and_is_put_back(client: Any, asked: Any) -> None:
    consumer = shared(client, "orders", schedule="10ms 20ms", max_deliveries="3")
    producer = client.create_producer("orders")
    for number in range(3):
        producer.send(
            b"order %d" % number, properties={"region": "eu" if number else "us"}, partition_key=str(number)
        )
    seen: dict[int, list[int]] = {}
    while sum(map(len, seen.values())) < 9:
        message = consumer.receive(LONG_MS)
        seen.setdefault(int(message.data().split()[1]), []).append(message.redelivery_count())
        consumer.negative_acknowledge(message)
    assert seen == {0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1, 2]}

    dead = client.subscribe("orders-billing-DLQ", "mine", initial_position=pulsar.InitialPosition.Earliest)
    letters = [dead.receive(LONG_MS) for _ in range(3)]
    assert sorted(letter.data() for letter in letters) == [b"order 0", b"order 1", b"order 2"]
    said = letters[0].properties()
    assert {
        "weir-dead-reason": "delivery_limit",
        "weir-dead-deliveries": "3",
        "weir-dead-topic": "persistent://public/default/orders",
        "weir-dead-subscription": "billing",
    }.items() <= said.items()
    assert said["weir-dead-offset"] in "012"
    assert said["region"] in ("eu", "us")
    assert letters[0].partition_key() in "012"
    assert int(said["weir-dead-died-ms"]) >= int(said["weir-dead-stored-ms"]) > 0
    dead.close()

    which = ("dead-letters", "list", "orders", "billing")
    found = asked(*which)
    assert [(one["reason"], one["deliveries"], one["subscription"]) for one in found] == [
        ("delivery_limit", 3, "billing")
    ] * 3
    assert len(asked(*which, "--property", "region=eu")) == 2
    assert len(asked(*which, "--key", "0")) == 1
    assert len(asked(*which, "--filter", "region = 'us' AND weir_dead_deliveries = 3")) == 1
    assert asked(*which, "--until", "-1h") == []
    redrive = ("dead-letters", "redrive", "orders", "billing")
    assert asked(*redrive, "--dry-run")["found"] == 3
    assert asked(*redrive, "--filter", "region = 'eu' AND weir_dead_deliveries > 2")["moved"] == 2
    back = [consumer.receive(LONG_MS) for _ in range(2)]
    assert sorted(message.data() for message in back) == [b"order 1", b"order 2"]
    assert [(m.redelivery_count(), m.properties()) for m in back] == [(0, {"region": "eu"})] * 2
    for message in back:
        consumer.acknowledge(message)
    done = asked(*redrive)
    assert (done["moved"], done["kept"]) == (1, 0)
    assert consumer.receive(LONG_MS).data() == b"order 0"
    assert asked(*which) == []
    consumer.close()


def test_letters_that_pulsar_s_client_wrote_are_put_back(client: Any, asked: Any) -> None:
    consumer = client.subscribe(
        "shipments",
        "desk",
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=1,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1, "shipments-desk-DLQ"),
    )
    producer = client.create_producer("shipments")
    for number in range(3):
        producer.send(b"shipment %d" % number, properties={"region": "eu"}, partition_key=str(number))
    dead = client.subscribe("shipments-desk-DLQ", "mine", initial_position=pulsar.InitialPosition.Earliest)
    for _ in range(6):
        consumer.negative_acknowledge(consumer.receive(LONG_MS))
    for _ in range(3):
        dead.acknowledge(dead.receive(LONG_MS))
    found = asked("dead-letters", "list", "shipments", "desk")
    assert [(one["reason"], one["topic"], one["subscription"]) for one in found] == [
        ("delivery_limit", "persistent://public/default/shipments", "desk")
    ] * 3
    redrive = ("dead-letters", "redrive", "shipments", "desk")
    assert asked(*redrive, "--dry-run")["found"] == 3
    done = asked(*redrive)
    assert (done["moved"], done["kept"]) == (3, 0)
    back = [consumer.receive(LONG_MS) for _ in range(3)]
    assert sorted(message.data() for message in back) == [b"shipment 0", b"shipment 1", b"shipment 2"]
    assert [message.properties() for message in back] == [{"region": "eu"}] * 3
    for message in back:
        consumer.acknowledge(message)
    assert asked(*redrive)["moved"] == 0
    consumer.close()
    dead.close()


def test_letters_that_die_again_during_a_redrive_are_not_put_back_by_it(
    client: Any, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "_PAGE", 1)
    consumer = shared(client, "loops", max_deliveries="1")
    consumer.close()

    def fail(consumer: Any, message: Any) -> None:
        consumer.negative_acknowledge(message)

    consumer = client.subscribe(
        "loops",
        "billing",
        pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=1,
        message_listener=fail,
    )
    producer = client.create_producer("loops", batching_enabled=False)
    for number in range(100):
        producer.send(b"%d" % number)
    wait_letters(asked, "loops", 100)
    done = asked("dead-letters", "redrive", "loops", "billing")
    assert (done["moved"], done["kept"]) == (100, 0)
    wait_letters(asked, "loops", 100)
    consumer.close()


@pytest.mark.parametrize("which", [("nowhere", "billing"), ("parcels", "billing", "--in", "nowhere")])
@pytest.mark.parametrize("command", ["list", "redrive"])
def test_dead_letters_of_a_topic_that_does_not_exist_are_an_error(
    run_here: Any, client: Any, command: str, which: tuple[str, ...]
) -> None:
    shared(client, "parcels").close()
    refused = run_here("subscriptions", "dead-letters", command, *which)
    assert refused.code == 1
    assert "nowhere" in refused.err


def test_a_policy_is_said_and_taken_back_by_command(client: Any, asked: Any, run_here: Any) -> None:
    consumer = shared(client, "parcels")
    assert asked("retry", "parcels", "billing")["active"] is False
    assert asked("dead-letters", "list", "parcels", "billing") == []
    changed = ("--schedule", "0", "--max-deliveries", "2", "--dead-letter-topic", "lost")
    found = asked("retry", "parcels", "billing", *changed)
    assert (found["active"], found["deadLetterTopic"]) == (True, "persistent://public/default/lost")
    client.create_producer("parcels").send(b"parcel")
    for count in range(2):
        message = consumer.receive(LONG_MS)
        assert message.redelivery_count() == count
        consumer.negative_acknowledge(message)
    dead = client.subscribe("lost", "mine", initial_position=pulsar.InitialPosition.Earliest)
    assert dead.receive(LONG_MS).data() == b"parcel"
    refused = run_here("subscriptions", "retry", "parcels", "billing", "--schedule", "sometimes")
    assert refused.code == 1
    assert "sometimes" in refused.err
    assert asked("retry", "parcels", "billing", "--default")["active"] is False
    consumer.close()
    dead.close()


def test_a_queue_s_dead_letters_are_put_back_by_the_same_command(weir_up: UpProcess, asked: Any) -> None:
    host, _, port = weir_up.amqp.rpartition(":")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    channel = connection.channel()
    channel.queue_declare("dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("work", durable=True, arguments=arguments)
    channel.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=2, content_type="text/plain", headers={"n": 7})
    channel.basic_publish("", "work", b"job", properties)
    method, _, _ = next(channel.consume("work", inactivity_timeout=30))
    channel.basic_reject(method.delivery_tag, requeue=False)
    channel.cancel()
    for method, said, body in channel.consume("dead", inactivity_timeout=30):
        assert (body, said.headers["x-death"][0]["reason"], said.headers["n"]) == (b"job", "rejected", 7)
        assert not [name for name in said.headers if name.startswith("weir-")]
        channel.basic_nack(method.delivery_tag, requeue=True)
        break
    channel.cancel()
    [letter] = asked("dead-letters", "list", "work", "queue", "--in", "dead")
    assert (letter["reason"], letter["deliveries"], letter["originOffset"]) == ("rejected", 1, 0)
    assert asked("dead-letters", "redrive", "work", "queue", "--in", "dead")["moved"] == 1
    for method, said, body in channel.consume("work", inactivity_timeout=30):
        assert (body, said.content_type, said.headers["n"], method.exchange) == (b"job", "text/plain", 7, "")
        assert method.routing_key == "work"
        channel.basic_ack(method.delivery_tag)
        break
    connection.close()


def test_policies_of_topics_and_namespaces_are_said_by_command(run_here: Any, asked: Any, client: Any) -> None:
    consumer = shared(client, "letters")
    for words in (
        ("topics", "set-retry", "letters", "--max-deliveries", "7"),
        ("namespaces", "set-retry", "public/default", "--schedule", "5s..1h", "--dead-letter-topic", "all"),
        ("topics", "set-priority", "letters", "--levels", "9", "--passed", "20"),
    ):
        assert run_here(*words).code == 0, words
    found: dict[str, Any] = {}
    while not (found.get("schedule") and found.get("maxDeliveries")):  # policies hold within a moment
        found = asked("retry", "letters", "billing")
    assert (found["schedule"], found["maxDeliveries"], found["deadLetterTopic"]) == (
        "5s..1h",
        7,
        "persistent://public/default/all",
    )
    for words in (
        ("namespaces", "set-retry", "public/default", "--remove"),
        ("topics", "set-retry", "letters", "--remove"),
        ("topics", "set-priority", "letters", "--remove"),
    ):
        assert run_here(*words).code == 0, words
    assert run_here("topics", "set-retry", "letters").code == 2
    consumer.close()
