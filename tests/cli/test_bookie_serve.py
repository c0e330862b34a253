"""`weir bookie serve` as a real process."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from weir.ledger.remote_bookie import RemoteBookie
from weir.model.errors import ConfigError
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.runtime.real import real_runtime
from weir.server.addresses import parse_address
from weir.server.commands.nodes import parse_id
from weir.server.config.keys import parse_sync
from weir.wire.entry import encode_entry
from weir.wire.metadata import BookieInfo

pytestmark = pytest.mark.process

B1 = BookieId("b1")
LEDGER = LedgerId(7)


def entry(entry_id: int) -> tuple[EntryId, bytes]:
    return EntryId(entry_id), encode_entry(LEDGER, entry_id, entry_id - 1, 0, b"payload")


async def weir(*arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "weir.cli.main", *arguments, stdout=PIPE, stderr=PIPE
    )


async def outcome(process: Process) -> tuple[int, str]:
    """Its exit code, and what it said to standard error."""
    _, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, errors.decode()


class Served:
    """A serving process and where it listens."""

    def __init__(self, process: Process, address: str) -> None:
        self.process = process
        self.address = parse_address(address)

    @asynccontextmanager
    async def remote(self) -> AsyncIterator[RemoteBookie]:
        info = BookieInfo(B1, self.address.host, self.address.port)
        remote = RemoteBookie(real_runtime(), B1, lambda _: info)
        try:
            yield remote
        finally:
            await remote.close()


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    processes: list[Process] = []

    async def start(*extra: str, data: str = "data") -> Served:
        process = await weir(*arguments(tmp_path, data), *extra)
        processes.append(process)
        ready = tmp_path / "ready.json"
        while not ready.exists():
            if process.returncode is not None:
                pytest.fail(str(await outcome(process)))
            await asyncio.sleep(0.01)
        return Served(process, json.loads(ready.read_text())["bookie"])

    yield start
    for process in processes:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def arguments(tmp_path: Path, data: str = "data") -> list[str]:
    return [
        *("bookie", "serve", "--id", "b1", "--data", str(tmp_path / data), "--listen", "127.0.0.1:0"),
        *("--meta", f"file:{tmp_path}/meta", "--ready-file", str(tmp_path / "ready.json")),
    ]


async def test_it_serves_until_a_signal_ends_it_and_keeps_what_it_acknowledged(
    serve: Serve, tmp_path: Path
) -> None:
    first = await serve()
    async with first.remote() as remote:
        await remote.add(LEDGER, [entry(n) for n in range(10)])
    first.process.send_signal(signal.SIGTERM)
    assert await outcome(first.process) == (0, "")
    assert not (tmp_path / "ready.json").exists()
    second = await serve("--sync", "periodic:5")
    async with second.remote() as remote:
        result = await remote.read(LEDGER, EntryId(0), EntryId(9), max_bytes=10**6)
        assert result.entries == [entry(n) for n in range(10)]


async def test_after_a_kill_what_was_acknowledged_is_there(serve: Serve, tmp_path: Path) -> None:
    first = await serve()
    async with first.remote() as remote:
        await remote.add(LEDGER, [entry(n) for n in range(10)])
        first.process.kill()
        await first.process.communicate()
    (tmp_path / "ready.json").unlink()
    second = await serve()
    async with second.remote() as remote:
        result = await remote.read(LEDGER, EntryId(0), EntryId(9), max_bytes=10**6)
        assert result.entries == [entry(n) for n in range(10)]


async def test_a_wiped_disk_is_refused_in_one_line_with_a_hint(serve: Serve, tmp_path: Path) -> None:
    first = await serve()
    first.process.send_signal(signal.SIGINT)
    assert await outcome(first.process) == (0, "")
    code, errors = await outcome(await weir(*arguments(tmp_path, "fresh")))
    assert code == 1
    assert errors.startswith("weir: bookie id b1 was given to another disk, or")
    assert errors.count("\n") == 1


async def test_a_folder_in_use_is_refused_in_one_line(serve: Serve, tmp_path: Path) -> None:
    await serve()
    elsewhere = ["--meta", f"file:{tmp_path}/other-meta"]
    code, errors = await outcome(await weir(*arguments(tmp_path), *elsewhere))
    assert code == 1
    assert errors.startswith("weir: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (["--listen", "nowhere"], "host:port"),
        (["--sync", "sometimes"], "periodic:MILLISECONDS"),
        (["--meta", "zookeeper://x"], "metadata store"),
        (["--id", "a/b"], "bookie id"),
        (["--nonsense"], "--nonsense"),
    ],
)
async def test_what_it_does_not_understand_exits_with_2(extra: list[str], says: str, tmp_path: Path) -> None:
    code, errors = await outcome(await weir(*arguments(tmp_path), *extra))
    assert code == 2
    assert says in errors
    assert "Traceback" not in errors


async def test_help_has_examples() -> None:
    process = await weir("bookie", "serve", "--help")
    output, _ = await process.communicate()
    assert process.returncode == 0
    assert b"Examples:" in output
    assert b"weir bookie serve --id b1" in output


def test_sync_policies() -> None:
    assert parse_sync("always") is None
    assert parse_sync("periodic:5") == 0.005
    for wrong in ("", "never", "periodic", "periodic:", "periodic:0", "periodic:x", "always:5"):
        with pytest.raises(ConfigError):
            parse_sync(wrong)


def test_bookie_ids() -> None:
    assert parse_id("bookie-1.rack-ä") == "bookie-1.rack-ä"
    for wrong in ("", "a/b", "a\nb", "x" * 300):
        with pytest.raises(ConfigError):
            parse_id(wrong)
