"""RocketMQ's own client on `weir cluster up` with three brokers and three bookies, of which a broker is killed."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any
from urllib.request import Request, urlopen

import pytest
from bench.rocketmq_clients import PROGRAMS

from weir.testing.rocketmq.python_client import load_quietly

load_quietly()
from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer  # noqa: E402

from weir.testing.processes.java_program import JavaProgram  # noqa: E402
from weir.testing.soak.cluster_process import ClusterProcess  # noqa: E402

_JAVA_MESSAGES = 300
_PATIENCE_S = 250.0
pytestmark = [pytest.mark.process, pytest.mark.soak]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    process = ClusterProcess(tmp_path, "--brokers", "3", "--bookies", "3")
    yield process
    process.close()
    rmtree(tmp_path / "data", ignore_errors=True)


@pytest.mark.timeout(560)
def test_nothing_that_the_java_client_has_confirmed_is_lost_when_brokers_are_killed(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    """Normal messages, messages in order by group, and transactions, while they are sent and received."""
    if reason := PROGRAMS.java_client.missing(patience_s=60):
        pytest.skip(reason)
    cluster.start()
    topics = "java-normal", "java-ordered", "java-decided"
    for topic in topics:
        asked(cluster, f"v2/persistent/public/default/{topic}/partitions", 6)
    asked(cluster, "weir/v1/group-settings/public/default/billing", {"fifo": True})
    program = JavaProgram(
        PROGRAMS.java_client.classpath,
        Path(__file__).parent / "java" / "RocketmqOnCluster.java",
        str(json.loads(cluster.ready_file.read_text())["rocketmq"]).replace(",", ";"),
        *topics,
        "billing",
        options=(f"-Duser.home={tmp_path}",),  # where it writes its log
    )
    try:
        for round_number, node in enumerate(cluster.nodes("broker")[:2], 1):
            program.tell(f"send {_JAVA_MESSAGES}")
            assert program.said(_PATIENCE_S) == "on the way"
            cluster.kill(node)
            assert program.said(_PATIENCE_S) == f"sent {round_number * _JAVA_MESSAGES}"
            cluster.wait_replaced(node)
        program.tell("read")
        assert program.said(_PATIENCE_S) == f"read {2 * _JAVA_MESSAGES}, missing [], out of order []"
    finally:
        program.close()
    assert cluster.stop() == 0


def asked(cluster: ClusterProcess, path: str, body: object) -> None:
    """Of any broker."""
    url = f"http://{cluster.http.split(',')[0]}/admin/{path}"
    request = Request(url, json.dumps(body).encode(), {"content-type": "application/json"}, method="PUT")
    urlopen(request, timeout=60).close()


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
