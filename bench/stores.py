"""The stores under test: a bookie in this process, or bookies as processes of their own behind loopback."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from weir.bookie.bookie import Bookie
from weir.bookie.settings import BookieSettings, CacheSettings, FlushSettings, JournalSettings
from weir.ledger.client import LedgerClient
from weir.ledger.remote_bookie import RemoteBookiePool
from weir.meta import keys
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.ids import BookieId
from weir.model.ledger import Quorum
from weir.runtime.interfaces import Runtime
from weir.runtime.real import run
from weir.wire.metadata import BookieInfo, encode_bookie_info

T = TypeVar("T")

#: "periodic": acknowledged once written, synced this often.
PERIODIC_S = 0.1
_TICKS_S = os.sysconf("SC_CLK_TCK")


def bookie_settings(folder: str, bookie_id: str, *, sync: str, keep_in_journal: bool = False) -> BookieSettings:
    """A bookie as shipped but for its sync policy; one that keeps everything in its journal, for start times."""
    journal = JournalSettings(sync_interval_s=None if sync == "always" else PERIODIC_S)
    if keep_in_journal:
        cache = CacheSettings(write_bytes=2 * 1024**3)
        flush = FlushSettings(interval_s=86_400)
        return BookieSettings(BookieId(bookie_id), folder, journal=journal, cache=cache, flush=flush)
    return BookieSettings(BookieId(bookie_id), folder, journal=journal)


@dataclass
class Store:
    """Ledgers on something, and how much CPU it has used so far."""

    runtime: Runtime
    client: LedgerClient
    quorum: Quorum
    local: Bookie | None = None
    node_pids: list[int] = field(default_factory=list)

    def cpu_s(self) -> float:
        """CPU seconds of this process and of the bookies' processes."""
        return sum(os.times()[:2]) + sum(_cpu_of(pid) for pid in self.node_pids)


def _cpu_of(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_S


def rss_mb() -> float:
    """Memory of this process that lies in RAM."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def on_store(params: dict[str, Any], folder: str, work: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
    """Run `work` on the store that the parameters name."""

    async def main(runtime: Runtime) -> T:
        async with open_store(runtime, params, folder) as store:
            return await work(store)

    return run(main)


@asynccontextmanager
async def open_store(runtime: Runtime, params: dict[str, Any], folder: str) -> AsyncIterator[Store]:
    """`store`: process (E=Qw=Qa=1, called directly), network (the same behind loopback), replicated (3, 3, 2)."""
    kind, sync = params.get("store", "process"), params.get("sync", "always")
    async with AsyncExitStack() as stack:
        meta = MemoryMeta(MemoryCore(runtime.clock), runtime)
        stack.push_async_callback(meta.close)
        infos: dict[BookieId, BookieInfo] = {}
        pool = RemoteBookiePool(runtime, infos.get)
        stack.push_async_callback(pool.close)
        store = Store(runtime, LedgerClient(runtime, meta, pool), Quorum(1, 1, 1))
        if kind == "process":
            store.local = await Bookie.open(runtime, bookie_settings(f"{folder}/b0", "b0", sync=sync))
            stack.push_async_callback(store.local.close)
            pool.add_local(BookieId("b0"), store.local)
            infos[BookieId("b0")] = BookieInfo(BookieId("b0"), "127.0.0.1", 0)
        else:
            count = 1 if kind == "network" else 3
            store.quorum = Quorum(3, 3, 2) if count == 3 else store.quorum
            for number in range(count):
                node = await stack.enter_async_context(_node(f"{folder}/b{number}", f"b{number}", sync))
                store.node_pids.append(node.pid)
                infos[node.info.bookie_id] = node.info
        for info in infos.values():
            await meta.put(keys.bookie_writable(info.bookie_id), encode_bookie_info(info))
        await store.client.start()
        stack.push_async_callback(store.client.close)
        yield store


@dataclass(frozen=True)
class Node:
    """A bookie in a process of its own."""

    pid: int
    info: BookieInfo


@asynccontextmanager
async def _node(folder: str, bookie_id: str, sync: str) -> AsyncIterator[Node]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.node",
        folder,
        bookie_id,
        sync,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        yield Node(process.pid, BookieInfo(BookieId(bookie_id), "127.0.0.1", port))
    finally:
        process.terminate()
        await process.wait()
