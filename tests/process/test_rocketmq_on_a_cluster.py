"""RocketMQ's own client on `weir cluster up` with three brokers and three bookies, of which a broker is killed."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from weir.testing.rocketmq.python_client import load_quietly

load_quietly()
from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer  # noqa: E402

from weir.testing.soak.cluster_process import ClusterProcess  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.soak]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    process = ClusterProcess(tmp_path, "--brokers", "3", "--bookies", "3")
    yield process
    process.close()
    rmtree(tmp_path / "data", ignore_errors=True)


@pytest.mark.timeout(390)
def test_nothing_confirmed_is_lost_when_a_broker_is_killed(cluster: ClusterProcess) -> None:
    cluster.start()
    endpoints = str(json.loads(cluster.ready_file.read_text())["rocketmq"]).replace(",", ";")
    assert endpoints.count(";") == 2
    configuration = ClientConfiguration(endpoints, Credentials(), request_timeout=10)
    producer = Producer(configuration, ("orders",))
    producer.startup()
    consumer = SimpleConsumer(configuration, "billing", {"orders": FilterExpression()}, 1)
    consumer.startup()
    stored: set[bytes] = set()
    found: set[bytes] = set()

    def work(count: int) -> None:
        until = len(stored) + count
        while len(stored) < until:
            with suppress(Exception):  # while its route names the lost broker
                body = b"%d" % len(stored)
                producer.send(message(body))
                stored.add(body)

    def read() -> None:
        while not stored <= found:
            with suppress(Exception):
                for one in consumer.receive(16, 60):
                    found.add(one.body)
                    consumer.ack(one)

    work(50)
    read()
    for node in cluster.nodes("broker")[:2]:
        os.kill(node.pid, signal.SIGKILL)
        cluster.wait_replaced(node)
        work(50)
    read()
    producer.shutdown()
    consumer.shutdown()
    assert cluster.stop() == 0


def message(body: bytes) -> Any:
    made = Message()
    made.topic, made.body = "orders", body
    return made
