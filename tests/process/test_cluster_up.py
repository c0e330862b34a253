"""`weir cluster up` as official clients of both protocols see it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar  # type: ignore[import-untyped]
import pytest

from weir.testing.processes.both_clients import PATIENCE_MS, PATIENCE_S, Kafka
from weir.testing.processes.cluster import ClusterProcess, is_running
from weir.testing.processes.up import environment

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    cluster = ClusterProcess(tmp_path, "--brokers", "3", "--bookies", "3")
    yield cluster.start()
    cluster.close()


def test_a_cluster_serves_official_clients_goes_on_without_a_broker_and_stops_in_order(
    cluster: ClusterProcess,
) -> None:
    ready = cluster.ready
    assert list(ready) == ["kafka", "pulsar", "amqp", "rocketmq", "http", "nodes"]
    assert all(len(ready[name].split(",")) == 3 for name in ("kafka", "pulsar", "http"))
    assert [(node["name"], node["role"]) for node in ready["nodes"]] == [
        ("etcd-1", "etcd"),
        *((f"bookie-{n}", "bookie") for n in (1, 2, 3)),
        *((f"broker-{n}", "broker") for n in (1, 2, 3)),
    ]
    assert all(is_running(node["pid"]) for node in ready["nodes"])

    kafka = Kafka(cluster.kafka)
    kafka.create("k", 6)
    for n in range(6):
        kafka.send("k", [{"value": b"before", "partition": n}])
    client = pulsar.Client(cluster.pulsar_url, operation_timeout_seconds=PATIENCE_S)
    producers = [client.create_producer(f"p{n}", send_timeout_millis=2 * PATIENCE_MS) for n in range(4)]
    for producer in producers:
        producer.send(b"before")

    cluster.kill("broker-2")
    for n in range(6):
        kafka.send("k", [{"value": b"after", "partition": n}], **{"message.timeout.ms": 2 * PATIENCE_MS})
    for producer in producers:
        producer.send(b"after")
    for n in range(6):
        assert [m.value() for m in kafka.read("k", 2, partition=n)] == [b"before", b"after"]
    for n in range(4):
        reader = client.subscribe(f"p{n}", "s", initial_position=pulsar.InitialPosition.Earliest)
        assert [reader.receive(PATIENCE_MS).data() for _ in range(2)] == [b"before", b"after"]
    kafka.close()
    client.close()

    assert cluster.stop() == 0
    assert not [node["name"] for node in ready["nodes"] if is_running(node["pid"])]
    assert not cluster.ready_file.exists()
    assert all(address in " ".join(cluster.log.split()) for address in ready["kafka"].split(","))


def _weir(cluster: ClusterProcess, *arguments: str, broker: int = 0) -> Any:
    """What `weir cluster ...` says as JSON."""
    command = [
        sys.executable,
        "-m",
        "weir.cli.main",
        "cluster",
        *arguments,
        "--json",
        "--url",
        cluster.http_url(broker),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_cluster_is_looked_after_through_any_broker(cluster: ClusterProcess) -> None:
    kafka = Kafka(cluster.kafka)
    kafka.create("k", 4)
    for n in range(4):
        kafka.send("k", [{"value": b"before", "partition": n}])
    found = _weir(cluster, "status")
    assert [broker["name"] for broker in found["brokers"]] == ["broker-1", "broker-2", "broker-3"]
    assert len({broker["nodeId"] for broker in found["brokers"]}) == 3
    assert [(bookie["name"], bookie["state"]) for bookie in found["bookies"]] == [
        (f"bookie-{n}", "writable") for n in (1, 2, 3)
    ]
    assert found["underReplicatedLedgers"] == 0
    assert "bundles/1" in found["features"]
    owned = {bundle["name"]: bundle["owner"] for bundle in found["bundles"] if bundle["owner"]}
    assert owned

    bundle, owner = next(iter(owned.items()))
    to = next(broker["name"] for broker in found["brokers"] if broker["name"] != owner)
    assert _weir(cluster, "move", bundle, to, broker=1)["broker"] == to
    _wait(lambda: dict(_owners(cluster))[bundle] == to, f"{to} has {bundle}")

    _weir(cluster, "drain", "broker-3", broker=1)
    _wait(lambda: "broker-3" not in dict(_owners(cluster)).values(), "broker-3 has nothing")
    for n in range(4):
        kafka.send("k", [{"value": b"after", "partition": n}], **{"message.timeout.ms": 2 * PATIENCE_MS})

    assert _weir(cluster, "decommission", "bookie-3", broker=1)["bookie"] == "bookie-3"
    after = {bookie["name"]: bookie for bookie in _weir(cluster, "status")["bookies"]}
    assert (after["bookie-3"]["state"], after["bookie-3"]["ledgers"]) == ("empty", 0)
    for n in range(4):
        assert [m.value() for m in kafka.read("k", 2, partition=n)] == [b"before", b"after"]
    kafka.close()
    refused = subprocess.run(
        [
            sys.executable,
            "-m",
            "weir.cli.main",
            "cluster",
            "decommission",
            "bookie-2",
            "--url",
            cluster.http_url(),
        ],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert refused.returncode == 1
    assert "start another bookie" in refused.stderr


def _owners(cluster: ClusterProcess) -> list[tuple[str, str]]:
    return [(each["name"], each["owner"]) for each in _weir(cluster, "status", broker=1)["bundles"]]


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what


def test_nobody_outlives_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    cluster = ClusterProcess(tmp_path, "--brokers", "1", "--bookies", "1").start()
    assert cluster._process is not None
    os.kill(cluster._process.pid, signal.SIGKILL)
    cluster._process.wait()
    cluster._process = None
    deadline = time.monotonic() + 60
    while left := [node["name"] for node in cluster.ready["nodes"] if is_running(node["pid"])]:
        assert time.monotonic() < deadline, f"{left} still run"
        time.sleep(0.05)
