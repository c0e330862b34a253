"""Drivers under test, and a real etcd server to test against."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from weir.meta.embedded import open_embedded
from weir.meta.etcd import EtcdMeta
from weir.meta.interfaces import MetaStore
from weir.meta.local import MemoryCore, MemoryMeta
from weir.meta.remote_server import MetaServer, MetaServerSettings
from weir.meta.remote_store import RemoteMeta, RemoteSettings
from weir.runtime.interfaces import Runtime
from weir.runtime.real import real_runtime
from weir.testing.processes.etcd import EtcdServer
from weir.testing.world.meta import FaultyMeta
from weir.wire.node.proof import ClusterSecret


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

    def __init__(self, name: str, client: Callable[[], MetaStore]) -> None:
        self.name = name
        self._make = client
        self._clients: list[MetaStore] = []

    def client(self) -> MetaStore:
        client = self._make()
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


@pytest.fixture(params=["memory", "embedded", "remote", pytest.param("etcd", marks=pytest.mark.process), "faulty"])
async def driver(request: pytest.FixtureRequest, runtime: Runtime, tmp_path: Path) -> AsyncIterator[Driver]:
    # A test that needs clients of different processes names its drivers, all but the embedded one.
    match request.param:
        case "embedded":
            store = await open_embedded(runtime, f"{tmp_path}/meta")
            driver = Driver("embedded", lambda: store)
        case "remote":
            core = MemoryCore(runtime.clock)
            secret = ClusterSecret(b"known to both ends of every link")
            remote = MetaServer(runtime, core, MetaServerSettings(secret=secret))
            await remote.start()
            settings = RemoteSettings("127.0.0.1", remote.port, secret)
            driver = Driver("remote", lambda: RemoteMeta(runtime, settings))
            yield driver
            await driver.close()
            await remote.close()
            return
        case "etcd":
            server: EtcdServer = request.getfixturevalue("etcd_server")
            driver = Driver("etcd", lambda: EtcdMeta(runtime, server.settings))
        case "faulty":
            core = MemoryCore(runtime.clock)
            driver = Driver("faulty", lambda: FaultyMeta(MemoryMeta(core, runtime), runtime))
        case _:
            core = MemoryCore(runtime.clock)
            driver = Driver("memory", lambda: MemoryMeta(core, runtime))
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
