"""Synced writes of whole blocks: with the kernel's queue or without, in order, and never less than synced."""

import asyncio
import os
from pathlib import Path

import pytest

from weir.runtime import real_disk
from weir.runtime import real_disk as real_direct
from weir.runtime.real_disk import BLOCK_BYTES, MAX_BYTES, DirectFile, DirectWrites, Lane, RealDisk, RealFile

BLOCKS = 64


def block(number: int) -> list[bytes]:
    """A block's content in unequal pieces."""
    content = bytes([number]) * BLOCK_BYTES
    return [content[:100], content[100:1124], content[1124:]]


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """How each attempt at a direct write ended."""
    outcomes: list[bool] = []
    original = Lane._tried

    def note(lane: Lane, did: bool) -> None:
        outcomes.append(did)
        original(lane, did)

    monkeypatch.setattr(Lane, "_tried", note)
    return outcomes


async def opened(path: Path) -> RealFile:
    file = await RealDisk().open(str(path / "file"), create=True)
    await file.preallocate(BLOCKS * BLOCK_BYTES)
    await file.sync()
    return file


async def test_synced_blocks_read_back_as_written_whichever_way_they_went(tmp_path: Path) -> None:
    file = await opened(tmp_path)
    for number in range(BLOCKS):
        await file.write_at(number * BLOCK_BYTES, block(number), sync=True)
    for number in range(BLOCKS):
        assert await file.read_at(number * BLOCK_BYTES, BLOCK_BYTES) == b"".join(block(number))
    await file.close()


async def test_where_the_kernel_can_blocks_go_to_the_disk_without_a_thread(
    tmp_path: Path, tried: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_direct, "_SLOW_S", float("inf"))
    try:
        DirectWrites(asyncio.get_running_loop())
        os.close(os.open(tmp_path / "probe", os.O_RDWR | os.O_CREAT | os.O_DIRECT))
    except (OSError, AttributeError):
        pytest.skip("no direct asynchronous writes here")
    file = await opened(tmp_path)
    for number in range(BLOCKS):
        await file.write_at(number * BLOCK_BYTES, block(number), sync=True)
    await file.close()
    if not any(tried):
        pytest.skip("this file system always wants to wait")
    assert tried.count(True) > BLOCKS // 2


async def test_what_the_kernel_refuses_is_written_by_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tried: list[bool]
) -> None:
    def refuse_later(self, offset, buffers, size, done) -> bool:
        asyncio.get_running_loop().call_soon(done, False)
        return True

    monkeypatch.setattr(DirectFile, "write", refuse_later)
    file = await opened(tmp_path)
    await file.write_at(0, block(7), sync=True)
    assert tried == [False]
    assert await file.read_at(0, BLOCK_BYTES) == b"".join(block(7))
    await file.close()


async def test_operations_called_behind_a_refused_direct_write_still_come_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_later(self, offset, buffers, size, done) -> bool:
        asyncio.get_running_loop().call_later(0.01, done, False)
        return True

    monkeypatch.setattr(DirectFile, "write", refuse_later)
    file = await opened(tmp_path)
    first = asyncio.ensure_future(file.write_at(0, block(1), sync=True))
    second = asyncio.ensure_future(file.write_at(0, block(2)))
    await asyncio.gather(first, second)
    assert await file.read_at(0, BLOCK_BYTES) == b"".join(block(2))
    await file.close()


async def test_a_cancelled_write_keeps_its_place_until_the_kernel_is_done(tmp_path: Path) -> None:
    file = await opened(tmp_path)
    await file.write_at(0, block(1), sync=True)  # opens the direct way
    writing = asyncio.ensure_future(file.write_at(0, block(2), sync=True))
    await asyncio.sleep(0)
    writing.cancel()
    await file.write_at(0, block(3), sync=True)
    assert await file.read_at(0, BLOCK_BYTES) == b"".join(block(3))
    await file.close()


async def test_a_synced_write_also_syncs_what_was_written_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    original = os.fdatasync
    monkeypatch.setattr(real_disk.os, "fdatasync", lambda fd: (synced.append(fd), original(fd)))
    file = await opened(tmp_path)
    synced.clear()
    await file.write_at(0, block(1))
    await file.write_at(BLOCK_BYTES, block(2), sync=True)
    assert len(synced) == 1  # a write that syncs only itself would leave the first one behind
    await file.write_at(2 * BLOCK_BYTES, block(3), sync=True)
    assert len(synced) == 1
    await file.close()


async def test_a_synced_write_of_more_buffers_than_one_call_takes_syncs_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    original = os.fdatasync
    monkeypatch.setattr(real_disk.os, "fdatasync", lambda fd: (synced.append(fd), original(fd)))
    file = await opened(tmp_path)
    synced.clear()
    await file.write_at(0, [b"x"] * 3000, sync=True)
    assert len(synced) == 1
    assert await file.read_at(0, 3001) == b"x" * 3000 + b"\0"
    await file.close()


@pytest.mark.parametrize(
    ("offset", "size", "suits"),
    [
        (0, BLOCK_BYTES, True),
        (0, MAX_BYTES, True),
        (0, MAX_BYTES + BLOCK_BYTES, False),
        (1, BLOCK_BYTES, False),
        (0, 5, False),
    ],
)
def test_only_small_writes_of_whole_blocks_suit(offset: int, size: int, suits: bool) -> None:
    assert DirectFile(0, None).suits(offset, size) is suits


async def test_after_a_slow_direct_write_threads_write_for_a_while(
    tmp_path: Path, tried: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_direct, "_SLOW_S", -1.0)
    file = await opened(tmp_path)
    for number in range(BLOCKS):
        await file.write_at(number * BLOCK_BYTES, block(number), sync=True)
    await file.close()
    assert len(tried) <= 1
