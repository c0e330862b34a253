"""Messages that are there and cannot be read now, since no storage gives them: what clients hear."""

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pika
import pika.exceptions
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from weir.client.pulsar.client import PulsarClient
from weir.client.pulsar.messages import Outgoing
from weir.model.errors import EntryUnreadableError
from weir.runtime.real import real_runtime
from weir.server.broker_node import BrokerNode
from weir.server.config.load import load
from weir.stream import log as read_failures
from weir.testing.processes.up import environment

CAUSE = "bookie-1: it does not answer"
TOLD = f"public/default/q cannot be read from offset 0 on (it ends at 3): {CAUSE}"


def _weir(folder: Path) -> BrokerNode:
    settings = [f"listeners.{name}=127.0.0.1:0" for name in ("pulsar", "kafka", "amqp", "rocketmq", "http")]
    settings += [f"data={folder}", "storage.low_water_bytes=0", "storage.high_water_bytes=0"]
    return BrokerNode(real_runtime(), load(assignments=settings).config)


@pytest.fixture
async def stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BrokerNode]:
    """A Weir with three messages that nobody can be given, as if their only bookie did not answer."""
    filling = _weir(tmp_path)
    await filling.start()
    async with PulsarClient(real_runtime(), f"pulsar://{filling.addresses['pulsar']}") as client:
        producer = await client.producer("q")
        for number in range(3):
            await producer.send(Outgoing(b"%d" % number))
    await filling.close()

    async def fails(*_: object) -> None:
        raise EntryUnreadableError(CAUSE)

    node = _weir(tmp_path)
    await node.start()
    monkeypatch.setattr(node._storage.ledgers.context.reads, "read", fails)
    monkeypatch.setattr(read_failures, "PATIENCE_S", 0.0)
    yield node
    await node.close()


@pytest.mark.process
async def test_whoever_waits_for_them_is_told_the_topic_the_offset_and_the_cause(
    stuck: BrokerNode,
) -> None:
    async with asyncio.timeout(60):
        told = await asyncio.gather(
            asyncio.to_thread(_by_kafka, stuck),
            asyncio.to_thread(_by_pulsar, stuck),
            asyncio.to_thread(_by_amqp, stuck),
            asyncio.to_thread(_by_rest, stuck),
            asyncio.to_thread(_by_command, stuck),
        )
        # An answer of Kafka's to a fetch has no room for a cause: it is where one looks next.
        seen = await asyncio.gather(
            asyncio.to_thread(_said, stuck, "topics", "stats", "q"),
            asyncio.to_thread(_said, stuck, "groups", "describe", "s"),
        )
    kafka, *others = told
    assert kafka == ("q", 0, 0), "librdkafka names topic, partition and offset"
    for text in (*others, *seen):
        assert TOLD in text


def _by_kafka(node: BrokerNode) -> tuple[str, int, int]:
    consumer = Consumer({"bootstrap.servers": str(node.addresses["kafka"]), "group.id": "g"})
    try:
        consumer.assign([TopicPartition("q", 0, OFFSET_BEGINNING)])
        while (message := consumer.poll(1)) is None or not message.error():
            pass
        assert "Fetch from broker" in message.error().str()
        return message.topic(), message.partition(), message.offset()
    finally:
        consumer.close()


_PULSAR = """
import sys, pulsar
client = pulsar.Client(sys.argv[1])
consumer = client.subscribe("q", "s", initial_position=pulsar.InitialPosition.Earliest)
consumer.receive()
"""


def _by_pulsar(node: BrokerNode) -> str:
    """In a process of its own: a process has one log of Pulsar's client for all, as its first user set it."""
    url = f"pulsar://{node.addresses['pulsar']}"
    said = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _PULSAR, url], stdout=said, stderr=subprocess.STDOUT) as client:
        assert client.stdout is not None
        try:
            return next(line.decode() for line in client.stdout if b"cannot be read" in line)
        finally:
            client.kill()


def _by_amqp(node: BrokerNode) -> str:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.addresses["amqp"].port))
    try:
        channel = connection.channel()
        channel.basic_consume("q", lambda *_: None)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            channel.start_consuming()
        assert closed.value.reply_code == 404
        return closed.value.reply_text
    finally:
        connection.close()


def _by_rest(node: BrokerNode) -> str:
    path = "/admin/v2/persistent/public/default/q/examinemessage?initialPosition=earliest&messagePosition=1"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://{node.addresses['http']}{path}")
    assert refused.value.code == 503
    return str(json.loads(refused.value.read())["reason"])


def _said(node: BrokerNode, *command: str) -> str:
    url = f"http://{node.addresses['http']}"
    arguments = [sys.executable, "-m", "weir.cli.main", *command, "--url", url]
    variables = environment() | {"COLUMNS": "300"}
    return subprocess.run(arguments, capture_output=True, env=variables, timeout=60, check=True).stdout.decode()


def _by_command(node: BrokerNode) -> str:
    command = [sys.executable, "-m", "weir.cli.main", "consume", "q", "--url", f"http://{node.addresses['http']}"]
    done = subprocess.run(command, capture_output=True, env=environment(), timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout == b""
    return done.stderr.decode()
