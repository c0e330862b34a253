"""Real processes to test with: an etcd, and bookies that can be killed and started again."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from weir.testing.processes.etcd import EtcdServer


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
    server = EtcdServer(tmp_path / "etcd")
    server.start()
    yield server.url
    server.kill()


@pytest.fixture
async def bookies(tmp_path: Path, etcd_url: str) -> AsyncIterator[list[BookieProcess]]:
    """Four bookies that serve."""
    processes = [BookieProcess(f"b{i}", tmp_path, etcd_url) for i in range(4)]
    await asyncio.gather(*(process.start() for process in processes))
    yield processes
    for process in processes:
        await process.end(signal.SIGKILL)
