"""The machine's raw limits: what disk, loopback, memory and checksum do with nothing of Weir in the way."""

import asyncio
import os
import socket
import threading
import time
from pathlib import Path

import uvloop

from bench.case import Measured, Params, case
from bench.stats import latencies_us
from weir.wire.checksum import crc32c

MIB = 1024 * 1024


def drop_page_cache(path: str) -> None:
    """Forget a file's (or every file's under a folder) cached pages, so that the next read goes to the disk."""
    files = [p for p in Path(path).rglob("*") if p.is_file()] if os.path.isdir(path) else [Path(path)]
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def _rate(size: int, started: float) -> Measured:
    seconds = time.perf_counter() - started
    return {"mb_s": size / 1e6 / seconds, "seconds": seconds}


@case("raw.write-fresh")
def write_fresh(params: Params, folder: str) -> Measured:
    """Sequential buffered write of a new file in 1 MiB pieces, one fdatasync at the end."""
    block, count = os.urandom(MIB), params["mib"]
    fd = os.open(f"{folder}/fresh", os.O_WRONLY | os.O_CREAT, 0o600)
    started = time.perf_counter()
    for _ in range(count):
        os.write(fd, block)
    os.fdatasync(fd)
    measured = _rate(count * MIB, started)
    os.close(fd)
    return measured


def _recycled_file(folder: str, mib: int) -> int:
    """A file whose every block was written before, as a recycled journal file's are."""
    fd = os.open(f"{folder}/recycled", os.O_RDWR | os.O_CREAT, 0o600)
    os.posix_fallocate(fd, 0, mib * MIB)
    for i in range(mib):
        os.pwrite(fd, bytes(MIB), i * MIB)
    os.fsync(fd)
    return fd


@case("raw.write-recycled")
def write_recycled(params: Params, folder: str) -> Measured:
    """Overwriting a recycled file, fdatasync after each 1 MiB: what a journal with group commit can reach."""
    block, count = os.urandom(MIB), params["mib"]
    fd = _recycled_file(folder, count)
    started = time.perf_counter()
    for i in range(count):
        os.pwrite(fd, block, i * MIB)
        os.fdatasync(fd)
    measured = _rate(count * MIB, started)
    os.close(fd)
    return measured


@case("raw.sync-write")
def sync_write(params: Params, folder: str) -> Measured:
    """Latency of one write and fdatasync in a preallocated file, one after the other."""
    size, count = params["size"], params["count"]
    block = os.urandom(size)
    fd = os.open(f"{folder}/preallocated", os.O_RDWR | os.O_CREAT, 0o600)
    os.posix_fallocate(fd, 0, 64 * MIB)
    os.fsync(fd)
    taken = []
    for i in range(count):
        if params.get("rate"):
            time.sleep(1 / params["rate"])
        started = time.perf_counter_ns()
        os.pwrite(fd, block, i * size)
        os.fdatasync(fd)
        taken.append(time.perf_counter_ns() - started)
    os.close(fd)
    return latencies_us(taken)


@case("raw.thread-sync-write")
def thread_sync_write(params: Params, folder: str) -> Measured:
    """The same write and fdatasync, but asked for by an event loop and done by a thread: the floor for any
    server that does not block its loop."""
    size, count = params["size"], params["count"]
    block = os.urandom(size)
    fd = os.open(f"{folder}/preallocated", os.O_RDWR | os.O_CREAT, 0o600)
    os.posix_fallocate(fd, 0, 64 * MIB)
    os.fsync(fd)

    def work(offset: int) -> None:
        os.pwrite(fd, block, offset)
        os.fdatasync(fd)

    async def measure() -> list[int]:
        loop = asyncio.get_running_loop()
        taken = []
        for i in range(count):
            started = time.perf_counter_ns()
            await loop.run_in_executor(None, work, i * size)
            taken.append(time.perf_counter_ns() - started)
        return taken

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        taken = runner.run(measure())
    os.close(fd)
    return latencies_us(taken)


@case("raw.write")
def write(params: Params, folder: str) -> Measured:
    """Latency of one buffered write, without a sync."""
    size, count = params["size"], params["count"]
    block = os.urandom(size)
    fd = _recycled_file(folder, 64)
    taken = []
    for i in range(count):
        started = time.perf_counter_ns()
        os.pwrite(fd, block, i * size % (64 * MIB))
        taken.append(time.perf_counter_ns() - started)
    os.close(fd)
    return latencies_us(taken)


@case("raw.read-cold")
def read_cold(params: Params, folder: str) -> Measured:
    """Reading a file that no cache holds: in 1 MiB pieces in order, or `size` bytes at random places."""
    mib, size = params["mib"], params.get("size", MIB)
    path = f"{folder}/cold"
    with open(path, "wb") as file:
        for _ in range(mib):
            file.write(os.urandom(MIB))
    drop_page_cache(path)
    fd = os.open(path, os.O_RDONLY)
    if params["order"] == "sequential":
        offsets = [i * MIB for i in range(mib)]
    else:
        slots = mib * MIB // size
        offsets = [(i * 7919 * 104729) % slots * size for i in range(params["count"])]
    started = time.perf_counter()
    for offset in offsets:
        os.pread(fd, size, offset)
    seconds = time.perf_counter() - started
    os.close(fd)
    return {
        "mb_s": len(offsets) * size / 1e6 / seconds,
        "entries_s": len(offsets) / seconds,
        "us": seconds / len(offsets) * 1e6,
    }


@case("raw.loopback")
def loopback(params: Params, _folder: str) -> Measured:
    """TCP over loopback between two threads: one stream of 256 KiB sends, then ping-pong of 64 bytes."""
    total, pings = params["mib"] * MIB, params["pings"]
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer, left = bytearray(256 * 1024), total
        while left:
            left -= connection.recv_into(buffer, min(len(buffer), left))
        connection.sendall(b"k")
        while ball := connection.recv(64):
            connection.sendall(ball)
        connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    client = socket.create_connection(server.getsockname())
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    block = os.urandom(256 * 1024)
    started = time.perf_counter()
    for _ in range(total // len(block)):
        client.sendall(block)
    client.recv(1)
    measured = _rate(total, started)
    taken = []
    for _ in range(pings):
        before = time.perf_counter_ns()
        client.sendall(bytes(64))
        client.recv(64)
        taken.append(time.perf_counter_ns() - before)
    client.close()
    thread.join()
    server.close()
    return measured | latencies_us(taken)


@case("raw.memory")
def memory(params: Params, _folder: str) -> Measured:
    """Copying and checksumming 64 MiB that lie in DRAM, not in a cache."""
    source = bytearray(os.urandom(64 * MIB))
    target = bytearray(len(source))
    rounds = params["rounds"]
    started = time.perf_counter()
    for _ in range(rounds):
        target[:] = source
    copied = _rate(rounds * len(source), started)["mb_s"]
    started = time.perf_counter()
    for _ in range(rounds):
        crc32c(source)
    return {"memcpy_mb_s": copied, "crc32c_mb_s": _rate(rounds * len(source), started)["mb_s"]}
