"""A whole Weir in the test's own loop, for the client to talk to."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from weir.runtime.interfaces import Runtime
from weir.runtime.real import real_runtime
from weir.server.broker_node import BrokerNode
from weir.server.config.load import load

StartWeir = Callable[..., Awaitable[BrokerNode]]


@pytest.fixture
def runtime() -> Runtime:
    return real_runtime()


@pytest.fixture
async def start_weir(runtime: Runtime, tmp_path: Path) -> AsyncIterator[StartWeir]:
    """Starts one with settings; closed at the end."""
    nodes: list[BrokerNode] = []

    async def start(*settings: str) -> BrokerNode:
        common = [
            "listeners.pulsar=127.0.0.1:0",
            "listeners.kafka=",
            "listeners.amqp=",
            "listeners.rocketmq=",
            "listeners.http=127.0.0.1:0",
        ]
        common += [
            "storage.low_water_bytes=0",
            "storage.journal_file_bytes=4MiB",
            "storage.high_water_bytes=0",
            f"data={tmp_path}/data",
        ]
        node = BrokerNode(runtime, load(assignments=[*common, *settings]).config)
        await node.start()
        nodes.append(node)
        return node

    yield start
    for node in nodes:
        await node.close()


@pytest.fixture
async def weir(start_weir: StartWeir) -> BrokerNode:
    return await start_weir()
