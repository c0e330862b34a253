"""A data folder that Weir 06d43632 wrote (`former_folder/fill.py`) and SIGKILL ended is served as it was."""

import json
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pika
import pulsar
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from weir.testing.processes.up import UpProcess

_FOLDER = Path(__file__).parent / "former_folder" / "06d43632.tar.xz"

pytestmark = pytest.mark.process


def get_json(url: str) -> dict[str, object]:
    with urllib.request.urlopen(url) as answer:
        found: dict[str, object] = json.loads(answer.read())
        return found


@pytest.fixture(scope="module")
def weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    folder = tmp_path_factory.mktemp("former")
    with tarfile.open(_FOLDER) as archive:
        archive.extractall(folder, filter="data")
    up = UpProcess(folder)
    up.start()
    yield up
    up.stop()


def test_pulsar_finds_what_was_not_acknowledged_and_the_schema(weir: UpProcess) -> None:
    client = pulsar.Client(weir.pulsar_url)
    consumer = client.subscribe("shared", "billing", pulsar.ConsumerType.Shared)
    found = [consumer.receive(30_000) for _ in range(3)]
    assert [message.data() for message in found] == [b"shared-0", b"shared-2", b"shared-4"]
    assert [message.properties() for message in found] == [{"number": at} for at in ("0", "2", "4")]
    assert [message.partition_key() for message in found] == ["key-0", "key-2", "key-4"]
    reader = client.create_reader("typed", pulsar.MessageId.earliest)
    assert json.loads(reader.read_next(30_000).data()) == {"id": 7}
    client.close()
    schema = get_json(f"{weir.http_url}/admin/v2/schemas/public/default/typed/schema")
    assert schema["type"] == "JSON"


def test_kafka_reads_every_partition_committed_transactions_and_positions(weir: UpProcess) -> None:
    consumer = Consumer({"bootstrap.servers": weir.kafka, "group.id": "readers", "enable.auto.commit": False})
    assert consumer.committed([TopicPartition("parts", 0)], 30)[0].offset == 2
    consumer.assign([TopicPartition("parts", at, OFFSET_BEGINNING) for at in range(3)])
    found = [consumer.poll(30) for _ in range(9)]
    assert sorted(message.value() for message in found) == [f"parts-{at}".encode() for at in range(9)]
    assert found[0].headers() == [("h", b"1")]
    consumer.assign([TopicPartition("transactional", 0, OFFSET_BEGINNING)])
    assert consumer.poll(30).value() == b"committed"
    assert consumer.poll(1) is None
    consumer.close()


def test_rabbitmq_finds_queues_bindings_priorities_and_dead_letters(weir: UpProcess) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(f"amqp://guest:guest@{weir.amqp}/"))
    channel = connection.channel()
    channel.confirm_delivery()
    assert [channel.basic_get("urgent")[2] for _ in range(2)] == [b"priority-5", b"priority-1"]
    assert channel.basic_get("mail")[2] == b"mail"
    _, properties, body = channel.basic_get("dead")
    assert (body, properties.headers["x-death"][0]["reason"]) == (b"dead", "rejected")
    channel.basic_publish("events", "mail.again", b"again", mandatory=True)
    assert channel.basic_get("mail")[2] == b"again"
    connection.close()


def test_weir_lists_delayed_and_prepared_messages_and_policies(weir: UpProcess) -> None:
    def one(kind: str) -> dict[str, object]:
        return get_json(f"{weir.http_url}/admin/weir/v1/{kind}/persistent/public/default/shared")

    [delayed] = one("held")["held"]
    assert delayed["id"]
    [prepared] = one("half")["half"]
    assert prepared["group"] == "shop"
    retention = get_json(f"{weir.http_url}/admin/v2/namespaces/acme/orders/retention")
    assert retention == {"retentionTimeInMinutes": 60, "retentionSizeInMB": 10}
