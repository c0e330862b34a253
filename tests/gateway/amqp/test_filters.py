"""Filters, keys that are found and traces of messages, by Pulsar's and RabbitMQ's own clients."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import Request, urlopen

import pika
import pulsar
import pytest
from click.testing import CliRunner

from weir.cli.main import cli
from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process
TIMEOUT_MS = 60_000
COLORS = ["red", "green", "blue", "red", "blue", "red"]


@pytest.fixture(scope="module")
def client(weir: UpProcess) -> Iterator[pulsar.Client]:
    found = pulsar.Client(weir.pulsar_url)
    yield found
    found.close()


@pytest.fixture
def channel(weir: UpProcess) -> Iterator[Any]:
    host, _, port = weir.amqp.rpartition(":")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    yield connection.channel()
    if connection.is_open:
        connection.close()


def stats(weir: UpProcess, topic: str) -> Any:
    with urlopen(f"{weir.http_url}/admin/v2/persistent/public/default/{topic}/stats") as answer:
        return json.load(answer)["subscriptions"]


def publish(channel: Any, queue: str, *colors: str) -> None:
    for number, color in enumerate(colors):
        properties = pika.BasicProperties(headers={"color": color, "n": number}, delivery_mode=2)
        channel.basic_publish("", queue, f"{color}{number}".encode(), properties)


def received(channel: Any, queue: str, count: int, **arguments: Any) -> list[str]:
    found = []
    for method, _, body in channel.consume(queue, arguments=arguments):
        found.append(body.decode())
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    channel.cancel()
    return found


@pytest.mark.parametrize("compression", [pulsar.CompressionType.NONE, pulsar.CompressionType.ZSTD])
@pytest.mark.parametrize("batching", [False, True])
def test_a_pulsar_consumer_gets_only_what_its_filter_takes(
    weir: UpProcess, client: pulsar.Client, name: str, batching: bool, compression: Any
) -> None:
    wanted = {"weir.filter": "color = 'red' AND n >= 2", "weir.filter.tags": "a || b"}
    consumer = client.subscribe(name, "s", pulsar.ConsumerType.Shared, properties=wanted)
    producer = client.create_producer(
        name, batching_enabled=batching, batching_max_publish_delay_ms=10_000, compression_type=compression
    )
    for number, color in enumerate(COLORS):
        properties = {"color": color, "n": str(number), "TAGS": "abc"[number % 3]}
        producer.send_async(color.encode(), None, properties=properties, partition_key=f"k{number}")
    producer.flush()
    message = consumer.receive(TIMEOUT_MS)
    assert (message.partition_key(), message.data()) == ("k3", b"red")
    consumer.acknowledge(message)
    found = stats(weir, name)["s"]
    assert (found["filterRejectedMsgCount"], found["subscriptionProperties"]) == (5, wanted)


def test_a_wrong_filter_is_refused_at_subscription(weir: UpProcess, client: pulsar.Client, name: str) -> None:
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(name, "s", properties={"weir.filter": "color ="})
    path = f"{weir.http_url}/admin/v2/persistent/public/default/{name}/subscription"
    client.subscribe(name, "t").close()
    asked = Request(f"{path}/t/properties", b'{"weir.filter": "color ="}', {"content-type": "application/json"})
    asked.method = "PUT"
    with pytest.raises(OSError, match="400") as refused:
        urlopen(asked)
    assert "position 8" in json.load(refused.value)["reason"]  # type: ignore[arg-type]


def test_a_consumer_of_a_queue_takes_what_its_filter_says_and_leaves_the_rest(channel: Any, name: str) -> None:
    channel.queue_declare(name, durable=True)
    publish(channel, name, *COLORS)
    assert received(channel, name, 2, **{"x-weir-filter": "color = 'blue'"}) == ["blue2", "blue4"]
    assert received(channel, name, 2, **{"x-weir-filter": "n BETWEEN 1 AND 3"}) == ["green1", "red3"]
    assert received(channel, name, 2) == ["red0", "red5"]


def test_a_consumer_of_a_stream_gets_what_its_filter_takes(channel: Any, name: str) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    publish(channel, name, *COLORS)
    channel.basic_qos(prefetch_count=10)
    arguments = {"x-stream-offset": "first", "x-weir-filter": "color LIKE 'b%'"}
    assert received(channel, name, 2, **arguments) == ["blue2", "blue4"]


@pytest.mark.parametrize("wrong", ["color LIKE", 5])
def test_a_wrong_filter_of_a_queues_consumer_closes_its_channel(channel: Any, name: str, wrong: Any) -> None:
    channel.queue_declare(name, durable=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="406"):
        channel.basic_consume(name, lambda *_: None, arguments={"x-weir-filter": wrong})


def test_a_command_sets_and_shows_a_filter(weir: UpProcess, client: pulsar.Client, name: str) -> None:
    consumer = client.subscribe(name, "s")
    for words in (["--set", "color = 'red'"], []):
        done = CliRunner().invoke(cli, ["subscriptions", "filter", name, "s", *words, "--url", weir.http_url])
        assert "color = 'red'" in done.output
    producer = client.create_producer(name)
    for color in ("blue", "red"):
        producer.send(color.encode(), {"color": color})
    assert consumer.receive(TIMEOUT_MS).data() == b"red"


def test_a_command_finds_messages_of_every_protocol_by_their_key(
    weir: UpProcess, client: pulsar.Client, channel: Any, name: str
) -> None:
    def command(*words: str) -> Any:
        return CliRunner().invoke(cli, ["messages", *words, "--url", weir.http_url])

    producer = client.create_producer(name)
    producer.send(b"by pulsar", partition_key="o-17")
    refused = command("find", name, "--key", "o-17")
    assert f"weir messages index {name} --on" in str(refused.exception)
    assert ": on" in command("index", name, "--on").output
    producer.send(b"another", partition_key="o-18", properties={"KEYS": "o-17 o-19"})
    channel.confirm_delivery()
    channel.basic_publish("", name, b"by amqp", pika.BasicProperties(headers={"key": "o-17"}, delivery_mode=2))
    found = [json.loads(line) for line in command("find", name, "--key", "o-17", "-o", "json").output.splitlines()]
    assert [one["payload"] for one in found] == ["by amqp", "another", "by pulsar"]
    assert "another" in command("find", name, "--key", "o-19").output


def test_a_command_tells_what_became_of_a_message(
    weir: UpProcess, client: pulsar.Client, name: str, until: Callable[..., Any]
) -> None:
    trace_id = f"{int(name[2:], 16):032x}"

    def command(*words: str) -> Any:
        return CliRunner().invoke(cli, ["trace", *words, "--url", weir.http_url]).output

    CliRunner().invoke(cli, ["topics", "create", name, "--url", weir.http_url])
    assert "100 % of the messages" in command("rate", name, "100%")
    consumer = client.subscribe(name, "s", pulsar.ConsumerType.Shared, consumer_name="carl")
    producer = client.create_producer(name, producer_name="paula")
    properties = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
    producer.send(b"x", partition_key="k", properties=properties)
    message = consumer.receive(TIMEOUT_MS)
    assert message.properties() == properties
    consumer.acknowledge(message)
    consumer.close()
    at = message.message_id()
    until(lambda: "acknowledged" in command("show", name, "--key", "k"))
    shown = command("show", name, "--key", "k")
    assert [line for line in shown.splitlines() if "paula" in line and "produced" in line]
    assert [line for line in shown.splitlines() if "carl" in line and "delivered" in line]
    events = ["produced", "stored", "delivered", "acknowledged"]
    for words in (
        ("show", name, "--offset", "0"),
        ("show", name, "--id", f"{at.ledger_id()}:{at.entry_id()}"),
        ("find", trace_id),
    ):
        (found,) = [json.loads(line) for line in command(*words, "-o", "json").splitlines()]
        assert [one["event"] for one in found["events"]] == events
        assert (found["key"], found["traceId"], found["offset"]) == ("k", trace_id, 0)


def test_a_trace_says_in_plain_words_that_a_message_of_a_queue_has_expired(
    weir: UpProcess, channel: Any, name: str, until: Callable[..., Any]
) -> None:
    def command(*words: str) -> str:
        return str(CliRunner().invoke(cli, ["trace", *words, "--url", weir.http_url]).output)

    channel.queue_declare(name, durable=True)
    assert "100 % of the messages" in command("rate", name, "100%")
    channel.confirm_delivery()

    def expired() -> bool:
        """Tracing begins a moment after it was turned on: until then, messages expire unseen."""
        properties = pika.BasicProperties(expiration="1", delivery_mode=2, headers={"key": "k"})
        channel.basic_publish("", name, b"late", properties)
        return "dropped" in command("show", name, "--key", "k")

    until(expired)
    gone = [line for line in command("show", name, "--key", "k").splitlines() if "dropped" in line]
    assert all("[expired: its time to live was over]" in line for line in gone), gone
