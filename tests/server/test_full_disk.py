"""A Weir on a nearly full disk, as clients of each protocol and an operator see it."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from weir.bookie.space import size_text
from weir.client.consumer import Subscribing
from weir.client.messages import Outgoing
from weir.client.pulsar import PulsarClient
from weir.model.errors import StorageFullError, WeirError
from weir.runtime.real import real_runtime
from weir.server.broker_node import BrokerNode
from weir.server.config.load import load
from weir.server.storage import Space

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
