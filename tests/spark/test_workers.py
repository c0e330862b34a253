"""What Spark's Python workers keep between tasks, without Spark."""

import gc
import os
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pyspark.serializers import SpecialLengths, UTF8Deserializer, read_int, write_with_length

from weir.client.kafka.cluster import Cluster
from weir.client.kafka.settings import Address, KafkaSettings
from weir.spark import workers

utf8 = UTF8Deserializer()


class FakeCluster(Cluster):
    quiet = True
    closed = 0

    def is_quiet(self) -> bool:
        return self.quiet

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaSettings]:
    monkeypatch.setattr(workers, "Cluster", FakeCluster)
    monkeypatch.setattr(workers, "_idle", {})
    return KafkaSettings((Address("somewhere", 9092),))


def test_the_next_task_has_the_connections_of_the_last(settings: KafkaSettings) -> None:
    with workers.borrowed(settings) as first:
        pass
    with workers.borrowed(settings) as second, workers.borrowed(settings) as beside:
        assert second is first
        assert beside is not first, "two tasks at once have one each"


def test_a_task_that_fails_leaves_no_connection(settings: KafkaSettings) -> None:
    with pytest.raises(ValueError), workers.borrowed(settings) as first:
        raise ValueError
    with workers.borrowed(settings) as second:
        assert second is not first
    assert isinstance(first, FakeCluster)
    assert first.closed == 1


def test_a_connection_that_the_broker_closed_meanwhile_is_not_used_again(settings: KafkaSettings) -> None:
    with workers.borrowed(settings) as first:
        pass
    assert isinstance(first, FakeCluster)
    first.quiet = False
    with workers.borrowed(settings) as second:
        assert second is not first


def test_other_settings_are_other_connections_and_few_are_kept(settings: KafkaSettings) -> None:
    for number in range(3 * workers._MOST_KINDS):
        with workers.borrowed(KafkaSettings((Address("somewhere", 1 + number),))):
            pass
    assert len(workers._idle) == workers._MOST_KINDS


def test_a_connection_is_quiet_until_its_other_end_closes_it() -> None:
    from weir.client.kafka.connection import KafkaConnection

    here, there = socket.socketpair()
    connection = KafkaConnection.__new__(KafkaConnection)
    connection._socket, connection._waiting, connection.broken = here, deque(), False
    assert connection.is_quiet()
    there.close()
    assert not connection.is_quiet()
    here.close()
    assert not connection.is_quiet()


def test_only_in_workers_of_spark_is_what_is_loaded_left_alone_by_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    monkeypatch.setattr(workers, "_used", 0)
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    workers.settle()
    assert not frozen
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    for _ in range(10):
        workers.settle()
    assert len(frozen) == workers._USES, "later garbage is still found"


@pytest.fixture
def socket_folder() -> Iterator[str]:
    """A short one: the name of a socket has a hundred bytes at the most."""
    with TemporaryDirectory(prefix="weir-", dir="/tmp") as folder:
        yield folder


def test_a_worker_that_waits_when_spark_ends_says_nothing(tmp_path: Path, socket_folder: str) -> None:
    """Spark's own daemon and worker, which look for data sources; this test is the JVM."""
    variables = {
        **os.environ,
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": socket_folder,
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    command = [sys.executable, "-m", "pyspark.daemon", "pyspark.sql.worker.lookup_data_sources"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=variables, **pipes) as daemon:  # type: ignore[call-overload]
        path = utf8.loads(daemon.stdout)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            with connection.makefile("rb") as answers, connection.makefile("wb") as asks:
                worker = read_int(answers)
                for text in (f"{sys.version_info.major}.{sys.version_info.minor}", str(tmp_path)):
                    write_with_length(text.encode(), asks)
                asks.write(struct.pack("!i?iii", 0, False, 0, 0, SpecialLengths.END_OF_STREAM))
                asks.flush()
                assert read_int(answers) == 1, "there is one data source"
                assert utf8.loads(answers) == "weir"
                answers.read(read_int(answers))
                for _ in range(read_int(answers)):  # what it has counted
                    answers.read(read_int(answers))
                assert read_int(answers) == SpecialLengths.END_OF_STREAM
        with suppress(ProcessLookupError):  # until it is gone
            while True:
                os.kill(worker, 0)
        _, said = daemon.communicate(timeout=60)
    assert said == b""
