"""A ledger client among fake bookies and a metadata store that can be held, in simulated time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from weir.ledger.client import LedgerClient
from weir.ledger.settings import LedgerSettings
from weir.meta import keys
from weir.meta.interfaces import Change, Creation, Lease, Listing, Versioned
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.errors import BookieUnavailableError, MetaUnavailableError
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.runtime.interfaces import Runtime
from weir.testing.storage.fakes import FakeBookie, FakeBookiePool
from weir.testing.world.world import World, simulate
from weir.wire.entry import decode_entry, encode_entry
from weir.wire.metadata import BookieInfo, encode_bookie_info


class GatedMeta:
    """A metadata store whose puts can be held back, or lose their answers."""

    def __init__(self, meta: MemoryMeta) -> None:
        self._meta = meta
        self.open = asyncio.Event()
        self.open.set()
        #: So many next puts are made, but answered with MetaUnavailableError.
        self.lose_answers = 0
        #: So many next puts are not made, and answered with MetaUnavailableError.
        self.lose_puts = 0

    async def get(self, key: str) -> Versioned | None:
        return await self._meta.get(key)

    async def put(self, key: str, value: bytes, *, expect: int | None = None, lease: Lease | None = None) -> int:
        await self.open.wait()
        if self.lose_puts:
            self.lose_puts -= 1
            raise MetaUnavailableError("lost on the way")
        version = await self._meta.put(key, value, expect=expect, lease=lease)
        if self.lose_answers:
            self.lose_answers -= 1
            raise MetaUnavailableError("the answer was lost")
        return version

    async def delete(self, key: str, *, expect: int | None = None) -> None:
        await self._meta.delete(key, expect=expect)

    async def create_many(self, creations: Sequence[Creation]) -> Sequence[int]:
        return await self._meta.create_many(creations)

    async def page(self, prefix: str, *, after: str = "", limit: int) -> Listing:
        return await self._meta.page(prefix, after=after, limit=limit)

    async def count(self, prefix: str) -> int:
        return await self._meta.count(prefix)

    def changes(self, prefix: str, *, since: int) -> AsyncIterator[Change]:
        return self._meta.changes(prefix, since=since)

    async def list(self, prefix: str) -> Listing:
        return await self._meta.list(prefix)

    def watch(self, prefix: str, *, since: int) -> AsyncIterator[Change]:
        return self._meta.watch(prefix, since=since)

    async def lease(self, ttl_s: float) -> Lease:
        return await self._meta.lease(ttl_s)

    async def close(self) -> None:
        await self._meta.close()


class Cluster:
    """What a test sees: the client under test, its bookies `b0`, `b1`, ..., and time."""

    def __init__(self, runtime: Runtime, settings: LedgerSettings) -> None:
        self.runtime = runtime
        self.settings = settings
        self.core = MemoryCore(runtime.clock)
        self.meta = GatedMeta(MemoryMeta(self.core, runtime))
        self.pool = FakeBookiePool()
        self.client = LedgerClient(runtime, self.meta, self.pool, settings)

    def bookie(self, name: str) -> FakeBookie:
        return self.pool.get(BookieId(name))

    def another_client(self) -> LedgerClient:
        return LedgerClient(self.runtime, self.meta, self.pool, self.settings)

    async def register(self, name: str, rack: str = "") -> None:
        info = BookieInfo(BookieId(name), name, 1, rack)
        await self.meta.put(keys.bookie_writable(BookieId(name)), encode_bookie_info(info))
        await self.turn()

    async def unregister(self, name: str) -> None:
        await self.meta.delete(keys.bookie_writable(BookieId(name)))
        await self.turn()

    def down(self, *names: str) -> None:
        for name in names:
            self.bookie(name).failure = BookieUnavailableError(f"{name} is down")

    def up(self, *names: str) -> None:
        for name in names:
            self.bookie(name).failure = None

    def refuse_adds(self, name: str) -> None:
        """The bookie serves reads and fences, but takes no entry, not even of a recovery."""
        bookie: Any = self.bookie(name)

        def refused(*_args: Any, **_options: Any) -> "asyncio.Future[None]":
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.set_exception(BookieUnavailableError(f"{name} takes nothing"))
            return future

        bookie.add = refused

    async def turn(self, seconds: float = 0.001) -> None:
        """Let everything that is due happen."""
        await self.runtime.clock.sleep(seconds)

    def holders(self, ledger_id: int, entry_id: int) -> list[str]:
        """Which bookies hold the entry."""
        return [
            str(bookie.bookie_id)
            for bookie in self.pool.bookies.values()
            if EntryId(entry_id) in bookie.ledgers.get(LedgerId(ledger_id), _EMPTY).entries
        ]


@dataclass(frozen=True)
class _Empty:
    entries: dict[EntryId, bytes]


_EMPTY: Any = _Empty({})

Scenario = Callable[[Cluster], Awaitable[Any]]


def _in_simulation(
    scenario: Scenario,
    *,
    bookies: int = 3,
    racks: Sequence[str] = (),
    settings: LedgerSettings | None = None,
    seed: int = 1,
) -> Any:
    async def program(runtime: Runtime) -> Any:
        cluster = Cluster(runtime, settings or LedgerSettings())
        for i in range(bookies):
            await cluster.register(f"b{i}", racks[i] if racks else "")
        await cluster.client.start()
        result = await scenario(cluster)
        await cluster.client.close()
        return result

    async def world_scenario(world: World) -> Any:
        return await world.node("client").start(program)

    return simulate(seed, world_scenario)


@pytest.fixture
def simulated() -> Callable[..., Any]:
    """Run `scenario(cluster)` in simulated time; returns what it returned."""
    return _in_simulation


@pytest.fixture
def payloads_of() -> Callable[[Any], list[bytes]]:
    """The payloads of decoded entries."""
    return lambda entries: [bytes(entry.payload) for entry in entries]


@pytest.fixture
def entry() -> Callable[..., bytes]:
    """An encoded entry with payload `e<id>`, as a writer would have made it after entries of the same kind."""

    def make(ledger_id: int, entry_id: int, last_confirmed: int = -1) -> bytes:
        payload = f"e{entry_id}".encode()
        length = sum(len(f"e{i}") for i in range(entry_id + 1))
        data = encode_entry(ledger_id, entry_id, last_confirmed, length, payload)
        decode_entry(data)
        return data

    return make
