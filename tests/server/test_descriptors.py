"""At the limit of file descriptors `weir up` says so once, its health is answered, and it recovers."""

import http.client
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process

PATIENCE_S = 120.0


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpProcess]:
    process = UpProcess(tmp_path)
    yield process
    process.close()


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def health(up: UpProcess) -> int:
    """Over a connection of its own, which the server need not keep."""
    host, _, port = up.addresses["http"].rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    connection.request("GET", "/admin/v2/brokers/health")
    status = connection.getresponse().status
    connection.close()
    return status


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def descriptors(up: UpProcess) -> int:
    return len(list(Path(f"/proc/{up.pid}/fd").iterdir()))


def test_without_descriptors_it_says_so_once_answers_its_health_and_recovers(up: UpProcess) -> None:
    up.start()
    assert health(up) == 200
    before = descriptors(up)
    limit = before + 20
    resource.prlimit(up.pid, resource.RLIMIT_NOFILE, (limit, limit))
    with ExitStack() as stack:
        for _ in range(60):  # the kernel takes them all; there are descriptors for some
            stack.enter_context(connect(up.addresses["pulsar"]))
        until(lambda: "no file descriptor is left" in up.log)
        for _ in range(5):
            assert health(up) == 200
    until(lambda: descriptors(up) <= before + 10)
    assert health(up) == 200
    connect(up.kafka).close()
    assert up.log.count("no file descriptor is left") == 1
    assert "out of system resource" not in up.log
    assert up.stop() == 0
