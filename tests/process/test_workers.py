"""`weir up --workers N` as official clients of both protocols see it, with a worker killed under them."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar  # type: ignore[import-untyped]
import pytest
from confluent_kafka import Producer

from weir.testing.processes.both_clients import PATIENCE_MS, PATIENCE_S, Kafka
from weir.testing.processes.cluster import is_running
from weir.testing.processes.up import UpProcess

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
COUNT = 60


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpProcess]:
    weir = UpProcess(tmp_path)
    weir.options = ("--workers", "2")
    yield weir.start()
    weir.close()


def _workers(up: UpProcess) -> dict[str, int]:
    """Processes of the workers, by name."""
    found = {}
    for line in Path(f"/proc/{up.pid}/task/{up.pid}/children").read_text().split():
        command = Path(f"/proc/{line}/cmdline").read_bytes().split(b"\0")
        named = [part for part in command if part.startswith(b"cluster.name=")]
        if named:
            found[named[0].decode().partition("=")[2]] = int(line)
    return found


def _wait(condition: object, what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_clients_of_both_protocols_lose_nothing_when_a_worker_is_killed(up: UpProcess) -> None:
    assert set(up.addresses) == {"pulsar", "kafka", "amqp", "rocketmq", "http"}
    workers = _workers(up)
    assert sorted(workers) == ["worker-0", "worker-1"]
    kafka = Kafka(up.kafka)
    kafka.create("k", 4)
    producer = Producer({"bootstrap.servers": up.kafka, "enable.idempotence": True})
    told: list[bytes] = []
    client = pulsar.Client(up.pulsar_url, operation_timeout_seconds=PATIENCE_S)
    sending = client.create_producer("p", send_timeout_millis=2 * PATIENCE_MS)
    stored: list[bytes] = []
    for n in range(COUNT):
        if n == COUNT // 2:
            os.kill(workers["worker-1"], signal.SIGKILL)
        text = b"%d" % n
        producer.produce(
            "k", text, partition=n % 4, on_delivery=lambda bad, m: told.append(m.value()) if bad is None else None
        )
        producer.poll(0)
        sending.send(text)
        stored.append(text)
    assert producer.flush(2 * PATIENCE_S) == 0
    assert sorted(told) == sorted(b"%d" % n for n in range(COUNT)), "an idempotent producer goes on"
    _wait(lambda: len(_workers(up)) == 2 and _workers(up) != workers, "the killed worker was not started again")

    read = [m.value() for n in range(4) for m in kafka.read("k", COUNT // 4, partition=n)]
    assert sorted(read) == sorted(told)
    reader = client.subscribe("p", "s", initial_position=pulsar.InitialPosition.Earliest)
    got = [reader.receive(PATIENCE_MS).data() for _ in range(COUNT)]
    assert got == stored
    kafka.close()
    client.close()

    processes = [up.pid, *_workers(up).values()]
    assert up.stop() == 0
    assert not [pid for pid in processes if is_running(pid)]
    assert not up.ready_file.exists()


def test_the_same_folder_is_served_by_one_process_and_by_workers(tmp_path: Path) -> None:
    weir = UpProcess(tmp_path).start()
    Kafka(weir.kafka).send("t", [{"value": b"of one process", "partition": 0}])
    assert weir.stop() == 0
    weir.options = ("--workers", "1")
    weir.start()
    kafka = Kafka(weir.kafka)
    assert [m.value() for m in kafka.read("t", 1)] == [b"of one process"]
    kafka.send("t", [{"value": b"of a worker", "partition": 0}])
    kafka.close()
    listeners = json.loads((weir.data / "run" / "worker-0.json").read_text())
    assert listeners["kafka"] != weir.kafka, "each worker has an address of its own"
    assert weir.stop() == 0
    weir.options = ()
    weir.start()
    kafka = Kafka(weir.kafka)
    assert [m.value() for m in kafka.read("t", 2)] == [b"of one process", b"of a worker"]
    kafka.close()
    weir.close()
