"""`weir up` as a process: ready, refused, drained, killed."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process

TIMEOUT_MS = 60_000


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpProcess]:
    process = UpProcess(tmp_path)
    yield process
    process.close()


def connect(up: UpProcess, tmp_path: Path) -> pulsar.Client:
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(tmp_path / "client.log"))
    return pulsar.Client(up.pulsar_url, operation_timeout_seconds=60, logger=quiet)


def refused(*command: str) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stderr


def test_it_says_where_it_listens_and_ends_cleanly_when_told(up: UpProcess) -> None:
    up.start()
    assert set(up.addresses) == {"pulsar", "kafka", "amqp", "rocketmq", "http"}
    for address in up.addresses.values():
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=60).close()
    assert up.stop() == 0
    assert not up.ready_file.exists()
    (line,) = up.log.splitlines()  # quiet by default: one line, with addresses and what to try
    assert all(address in line for address in up.addresses.values())
    assert "weir produce" in line


def test_open_to_the_world_it_says_so_in_the_log_and_where_one_looks(tmp_path: Path) -> None:
    up = UpProcess(tmp_path, "listeners.http=0.0.0.0:0")
    assert up.start().stop() == 0
    logged, line, told = up.log.splitlines()
    for text in (logged, told):
        assert f"everybody who reaches http {up.addresses['http']} may read, write and delete everything" in text
    assert "auth.authenticate" in told
    assert "weir produce" in line


def test_idle_it_needs_little_memory(up: UpProcess) -> None:
    up.start()
    (line,) = [row for row in Path(f"/proc/{up.pid}/status").read_text().splitlines() if row.startswith("VmRSS")]
    assert int(line.split()[1]) < 120 * 1024


def test_a_second_one_on_the_same_folder_is_refused_in_one_clear_line(up: UpProcess, tmp_path: Path) -> None:
    up.start()
    second = UpProcess(tmp_path)
    code, errors = refused(*second.command())
    assert code == 1
    assert errors.count("\n") == 1
    assert errors.startswith("weir: another `weir up` runs on ")
    assert "--data" in errors
    assert up.ready_file.exists()


def test_a_taken_port_is_refused_before_anything_else_is_touched(up: UpProcess, tmp_path: Path) -> None:
    up.start()
    folder = tmp_path / "second"
    address = up.addresses["pulsar"]
    command = [
        sys.executable,
        "-m",
        "weir.cli.main",
        "up",
        "--data",
        str(folder),
        "--set",
        f"listeners.pulsar={address}",
    ]
    code, errors = refused(*command)
    assert (code, errors.count("\n")) == (1, 1)
    assert f"{address} is in use" in errors
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "listners.pulsar=x"], "did you mean listeners.pulsar?"),
        (["--set", "listeners.pulsar=x"], "write host:port"),
        (["--config", "/nowhere.toml"], "cannot read /nowhere.toml"),
        (["--ready-file", "/no/such/folder/ready.json"], "--ready-file"),
        (["--set", "listeners.pulsar_tls=127.0.0.1:0"], "tls.certificate"),
        (["--set", "auth.token_secret=file:/no/such/key"], "/no/such/key"),
    ],
)
def test_what_it_does_not_understand_exits_with_2(arguments: list[str], says: str, tmp_path: Path) -> None:
    base = [sys.executable, "-m", "weir.cli.main", "up", "--data", str(tmp_path / "data")]
    code, errors = refused(*base, *arguments)
    assert code == 2, errors
    assert says in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "data").exists()


def test_what_was_acknowledged_is_there_after_a_stop_and_after_a_kill(up: UpProcess, tmp_path: Path) -> None:
    up.start()
    for how in (up.stop, up.kill):
        client = connect(up, tmp_path)
        producer = client.create_producer("kept", batching_enabled=False)
        for at in range(20):
            producer.send(f"{how.__name__} {at}".encode())
        how()
        up.start()
        client.close()
    client = connect(up, tmp_path)
    consumer = client.subscribe("kept", "s", initial_position=pulsar.InitialPosition.Earliest)
    received = [consumer.receive(TIMEOUT_MS).data().decode() for _ in range(40)]
    assert received == [f"{how} {at}" for how in ("stop", "kill") for at in range(20)]
    client.close()


def test_the_ready_file_of_a_killed_one_does_not_mislead(up: UpProcess) -> None:
    up.start()
    up.kill()
    assert up.ready_file.exists()
    # With its bookie's disk gone it fails once the folder is its own, and must not leave the file behind.
    (up.data / "bookie").rename(up.data / "gone")
    code, _ = refused(*up.command())
    assert code == 1
    assert not up.ready_file.exists()


def test_acknowledgements_survive_a_stop(up: UpProcess, tmp_path: Path) -> None:
    up.start()
    client = connect(up, tmp_path)
    consumer = client.subscribe("acked", "s")
    producer = client.create_producer("acked", batching_enabled=False)
    for at in range(10):
        producer.send(str(at).encode())
    for _ in range(7):
        consumer.acknowledge(consumer.receive(TIMEOUT_MS))
    consumer.close()  # the client sends acknowledgements in groups
    assert up.stop() == 0
    client.close()
    up.start()
    client = connect(up, tmp_path)
    consumer = client.subscribe("acked", "s")
    assert [consumer.receive(TIMEOUT_MS).data() for _ in range(3)] == [b"7", b"8", b"9"]
    client.close()


def test_logs_are_json_when_asked_for_and_name_topic_and_connection(tmp_path: Path) -> None:
    up = UpProcess(tmp_path, "log.format=json", "log.level=info")
    try:
        up.start()
        client = connect(up, tmp_path)
        client.create_producer("talked-about").close()
        client.close()
        assert up.stop() == 0
    finally:
        up.close()
    lines = [json.loads(line) for line in up.log.splitlines() if not line.startswith("weir is up")]
    (closed,) = [line for line in lines if "talked-about" in line["msg"]]
    assert closed["connection"].startswith("127.0.0.1:")
    assert {"at", "level", "part"} <= set(closed)
