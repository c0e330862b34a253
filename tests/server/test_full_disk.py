"""A Weir on a nearly full disk, as clients of each protocol and an operator see it."""

import asyncio
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pika
import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from weir.bookie.space import size_text
from weir.client.pulsar.client import PulsarClient
from weir.client.pulsar.consumer import Subscribing
from weir.client.pulsar.messages import Outgoing
from weir.model.errors import DiskFullError, StorageFullError, WeirError
from weir.runtime.real import real_runtime
from weir.server.broker_node import BrokerNode
from weir.server.config.load import load
from weir.server.local_storage import Space
from weir.testing.fillable_disk import FillableDisk
from weir.testing.processes.up import UpProcess
from weir.testing.rocketmq.client import GrpcLink
from weir.wire.rocketmq import rocketmq_pb2 as api

FULL = ("storage.low_water_bytes=100TiB", "storage.high_water_bytes=101TiB")


def _weir(folder: Path, *settings: str) -> BrokerNode:
    listeners = [f"listeners.{name}=127.0.0.1:0" for name in ("pulsar", "http")]
    listeners += ["listeners.kafka=", "listeners.amqp=", "listeners.rocketmq="]
    return BrokerNode(real_runtime(), load(assignments=[*listeners, f"data={folder}", *settings]).config)


@pytest.fixture
async def full(tmp_path: Path) -> AsyncIterator[BrokerNode]:
    node = _weir(tmp_path / "data", *FULL)
    await node.start()
    yield node
    await node.close()


async def _get(node: BrokerNode, path: str) -> tuple[int, str]:
    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{node.addresses['http']}{path}") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    return await asyncio.to_thread(get)


async def test_a_producer_is_told_how_much_is_left_and_which_setting_decides(full: BrokerNode) -> None:
    async with PulsarClient(real_runtime(), f"pulsar://{full.addresses['pulsar']}") as client:
        with pytest.raises(WeirError) as refused:
            await (await client.producer("t")).send(Outgoing(b"x"))
        with pytest.raises(WeirError) as unstored:
            await client.consumer("t", Subscribing("s", earliest=True))
    for told in (str(refused.value), str(unstored.value)):
        assert "is full" in told
        assert "limit 100 TiB (storage.low_water_bytes)" in told


async def test_ready_metrics_and_the_start_say_it(full: BrokerNode) -> None:
    status, told = await _get(full, "/ready")
    assert status == 507
    assert "storage.low_water_bytes" in json.loads(told)["reason"]
    _, metrics = await _get(full, "/metrics")
    assert "weir_storage_read_only{} 1" in metrics
    assert "weir_disk_free_bytes{} " in metrics
    assert full.storage_warning().startswith("no messages are taken: the storage is read-only: the disk of ")


async def test_with_room_nothing_is_said_and_nothing_refused(tmp_path: Path) -> None:
    node = _weir(tmp_path / "data", "storage.low_water_bytes=0", "storage.high_water_bytes=0")
    await node.start()
    try:
        assert node.storage_warning() == ""
        assert (await _get(node, "/ready"))[0] == 200
        assert "weir_storage_read_only{} 0" in (await _get(node, "/metrics"))[1]
    finally:
        await node.close()


def test_little_room_is_told_before_it_is_too_little() -> None:
    warning = Space("/d", 700 << 20, 256 << 20, 512 << 20).warning()
    assert "700 MiB left; below 256 MiB (storage.low_water_bytes)" in warning
    assert Space("/d", 2 << 30, 256 << 20, 512 << 20).warning() == ""


def test_sizes_are_told_as_people_write_them() -> None:
    assert [size_text(n) for n in (0, 1024, 1536, 5 << 30)] == ["0 bytes", "1 KiB", "1.5 KiB", "5 GiB"]
    assert issubclass(StorageFullError, WeirError)


# --- a disk that is full for a while --------------------------------------------------------------

_PROTOCOLS = ("pulsar", "kafka", "amqp", "rocketmq", "http")
#: The journal needs another file soon.
_SMALL = (
    "storage.journal_file_bytes=1MiB",
    "storage.low_water_bytes=0",
    "storage.high_water_bytes=0",
)
_PATIENCE_S = 60.0


@pytest.fixture
async def filling(tmp_path: Path) -> AsyncIterator[tuple[BrokerNode, FillableDisk]]:
    runtime = real_runtime()
    disk = FillableDisk(runtime.disk)
    listeners = [f"listeners.{name}=127.0.0.1:0" for name in _PROTOCOLS]
    config = load(assignments=[*listeners, f"data={tmp_path / 'data'}", *_SMALL]).config
    node = BrokerNode(replace(runtime, disk=disk), config)
    await node.start()
    yield node, disk
    disk.full = False
    await node.close()


class Clients:
    """Official clients of each protocol but one, and what the server acknowledged to them. They block."""

    def __init__(self, kafka: str, amqp: str) -> None:
        self.kafka, self.amqp = kafka, amqp
        self.acked: list[bytes] = []
        self.failed: list[KafkaError] = []
        #: Tells of each failure; the other one retries, as producers do by default.
        self.hasty = Producer({"bootstrap.servers": kafka, "retries": 0, "linger.ms": 0, "log_level": 0})
        self.patient = Producer({"bootstrap.servers": kafka, "log_level": 0})

    def _told(self, failure: KafkaError | None, message: Any) -> None:
        if failure is None:
            self.acked.append(message.value())
        else:
            self.failed.append(failure)

    def send(self, producer: Producer, value: bytes) -> None:
        producer.produce("kafka-topic", value, on_delivery=self._told)
        producer.poll(0)

    def fill(self) -> None:
        """Send until a failure is reported."""
        number = 0
        while not self.failed:
            self.send(self.hasty, b"%d " % number + os.urandom(100_000))
            assert self.hasty.flush(_PATIENCE_S) == 0
            number += 1

    def publish(self, body: bytes) -> bool:
        """Over a new connection, to a durable queue; whether it is confirmed."""
        connection = pika.BlockingConnection(pika.URLParameters(f"amqp://guest:guest@{self.amqp}/%2F"))
        try:
            channel = connection.channel()
            channel.confirm_delivery()
            properties = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("", "queue", body, properties, mandatory=True)
        except pika.exceptions.NackError:
            return False
        else:
            return True
        finally:
            connection.close()

    def declare(self) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(f"amqp://guest:guest@{self.amqp}/%2F"))
        connection.channel().queue_declare("queue", durable=True)
        connection.close()

    def consumed(self, count: int) -> list[bytes]:
        settings = {"bootstrap.servers": self.kafka, "group.id": "all", "auto.offset.reset": "earliest"}
        consumer = Consumer(settings)
        consumer.subscribe(["kafka-topic"])
        found: list[bytes] = []
        while len(found) < count:
            message = consumer.poll(_PATIENCE_S)
            assert message is not None
            assert message.error() is None
            found.append(message.value())
        consumer.close()
        return found


async def _rocketmq(node: BrokerNode) -> int:
    """The code of one message sent."""
    where = node.addresses["rocketmq"]
    link = await GrpcLink.open(real_runtime(), where.host, "client", where.port)
    try:
        message = api.Message(
            topic=api.Resource(name="rocketmq-topic"),
            body=b"x",
            system_properties=api.SystemProperties(message_id="1", message_type=api.MessageType.Value("NORMAL")),
        )
        (answer,) = await link.call("SendMessage", api.SendMessageRequest(messages=[message]), _PATIENCE_S)
        return int(answer.entries[0].status.code if answer.entries else answer.status.code)
    finally:
        link.close()


async def _pulsar(node: BrokerNode) -> None:
    async with PulsarClient(real_runtime(), f"pulsar://{node.addresses['pulsar']}") as client:
        await (await client.producer("pulsar-topic")).send(Outgoing(b"x"))


async def _until_ready(get: Callable[[], Any]) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while (await get())[0] != 200:
            await asyncio.sleep(0.05)


async def test_every_protocol_is_told_that_it_may_try_again_and_is_served_once_there_is_space(
    filling: tuple[BrokerNode, FillableDisk],
) -> None:
    node, disk = filling
    clients = Clients(str(node.addresses["kafka"]), str(node.addresses["amqp"]))
    await asyncio.to_thread(clients.send, clients.hasty, b"first")
    await asyncio.to_thread(clients.hasty.flush, _PATIENCE_S)
    await asyncio.to_thread(clients.declare)
    assert await asyncio.to_thread(clients.publish, b"first")
    await _pulsar(node)
    ok = api.Code.Value("OK")
    assert await _rocketmq(node) == ok

    disk.full = True
    await asyncio.to_thread(clients.fill)
    assert clients.failed[0].code() == KafkaError.KAFKA_STORAGE_ERROR
    await asyncio.to_thread(clients.send, clients.patient, b"patient")
    assert not await asyncio.to_thread(clients.publish, b"nacked")
    with pytest.raises(WeirError):
        await _pulsar(node)
    assert await _rocketmq(node) == api.Code.Value("INTERNAL_SERVER_ERROR")
    status, told = await _get(node, "/ready")
    assert status == 507
    assert "storage is read-only" in told or "the metadata folder" in told
    assert disk.refusals
    failures = len(clients.failed)

    disk.full = False
    await _until_ready(lambda: _get(node, "/ready"))
    assert await asyncio.to_thread(clients.publish, b"the first one after it")
    assert await _rocketmq(node) == ok
    await _pulsar(node)
    await asyncio.to_thread(clients.send, clients.hasty, b"last")
    assert await asyncio.to_thread(clients.hasty.flush, _PATIENCE_S) == 0
    assert await asyncio.to_thread(clients.patient.flush, _PATIENCE_S) == 0
    assert len(clients.failed) - failures <= 1, "a storage error is left behind at the most"
    assert b"patient" in clients.acked
    acked = list(clients.acked)
    assert set(acked) <= set(await asyncio.to_thread(clients.consumed, len(acked)))


async def test_metadata_that_finds_no_space_is_refused_as_storage_and_stored_once_there_is_some(
    filling: tuple[BrokerNode, FillableDisk],
) -> None:
    node, disk = filling

    def create(topic: str) -> int:
        url = f"http://{node.addresses['http']}/admin/v2/persistent/public/default/{topic}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="PUT")) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            return refused.code

    assert await asyncio.to_thread(create, "before") == 204
    disk.full = True
    assert await asyncio.to_thread(create, "while-full") == 507
    status, told = await _get(node, "/ready")
    assert status == 507
    assert "no space left on the disk of the metadata folder" in told
    disk.full = False
    await _until_ready(lambda: _get(node, "/ready"))
    assert await asyncio.to_thread(create, "after") == 204


async def test_a_start_without_space_ends_with_what_is_missing(tmp_path: Path) -> None:
    runtime = real_runtime()
    disk = FillableDisk(runtime.disk)
    disk.full = True
    settings = [*(f"listeners.{name}=127.0.0.1:0" for name in _PROTOCOLS), f"data={tmp_path / 'data'}", *_SMALL]
    node = BrokerNode(replace(runtime, disk=disk), load(assignments=settings).config)
    with pytest.raises(
        DiskFullError, match=r"No space left on device: the disk of .* has 0 bytes left"
    ) as refused:
        await node.start()
    assert refused.value.hint == "free some space on that disk, then start again"


# --- the same, of a process on a small file system -------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(folder)]
    if (
        os.geteuid() != 0
        or not shutil.which("mount")
        or subprocess.run(mount, check=False, capture_output=True).returncode
    ):
        pytest.skip("only root may mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def _ballast(folder: Path) -> Path:
    """Take all the space that is left, as another program might."""
    path = folder / "ballast"
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    for size in (1 << 20, 1 << 12):
        try:
            while os.write(file, bytes(size)):
                pass
        except OSError:
            continue
    os.close(file)
    return path


@pytest.mark.process
async def test_weir_up_outlives_another_program_that_fills_its_disk_for_a_while(
    small_disk: Path, tmp_path: Path
) -> None:
    up = UpProcess(tmp_path, "storage.journal_file_bytes=1MiB")
    up.data = small_disk / "data"

    def ready() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"{up.http_url}/ready") as answer:
                return answer.status, ""
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    try:
        up.start()
        clients = Clients(up.kafka, up.amqp)
        await asyncio.to_thread(clients.send, clients.hasty, b"first")
        await asyncio.to_thread(clients.declare)
        ballast = _ballast(small_disk)
        await asyncio.to_thread(clients.fill)
        assert clients.failed[0].code() == KafkaError.KAFKA_STORAGE_ERROR
        assert not await asyncio.to_thread(clients.publish, b"nacked")
        assert ready()[0] == 507
        ballast.unlink()
        await _until_ready(lambda: asyncio.to_thread(ready))
        assert await asyncio.to_thread(clients.publish, b"the first one after it")
        await asyncio.to_thread(clients.send, clients.patient, b"last")
        assert await asyncio.to_thread(clients.patient.flush, _PATIENCE_S) == 0
        acked = list(clients.acked)
        assert set(acked) <= set(await asyncio.to_thread(clients.consumed, len(acked)))
        assert up.stop() == 0
        _ballast(small_disk)
        assert "No space left on device" in up.refused()
    finally:
        up.close()
