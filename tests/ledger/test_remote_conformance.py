"""One suite over everything that calls itself a bookie: the fake, the real one, and each over the network."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from weir.bookie.bookie import Bookie as RealBookie
from weir.bookie.server import BookieServer, ServerSettings
from weir.bookie.settings import BookieSettings, SpaceSettings
from weir.ledger.interfaces import Bookie
from weir.ledger.remote_bookie import RemoteBookie
from weir.model.errors import EntryCorruptError, LedgerFencedError, NoSuchEntryError, NoSuchLedgerError
from weir.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from weir.runtime.interfaces import Runtime
from weir.testing.storage.fakes import FakeBookie
from weir.testing.world.world import World, simulate
from weir.wire.entry import encode_entry
from weir.wire.metadata import BookieInfo

B1 = BookieId("b1")
LEDGER = LedgerId(7)
Test = Callable[[Bookie, Runtime], Coroutine[Any, Any, None]]


def entry(entry_id: int, payload: bytes = b"payload", ledger_id: int = LEDGER) -> tuple[EntryId, bytes]:
    return EntryId(entry_id), encode_entry(ledger_id, entry_id, entry_id - 1, 0, payload)


async def _fake(runtime: Runtime) -> Bookie:
    return FakeBookie("b1")


async def _real(runtime: Runtime) -> Bookie:
    space = SpaceSettings(low_water_bytes=0, high_water_bytes=0)
    return await RealBookie.open(runtime, BookieSettings(B1, "/data", space=space))


def _remote(
    make: Callable[[Runtime], Coroutine[Any, Any, Bookie]],
) -> Callable[[Runtime], Coroutine[Any, Any, Bookie]]:
    async def remote(runtime: Runtime) -> Bookie:
        server = BookieServer(runtime, await make(runtime), B1, ServerSettings())
        await server.start()
        return RemoteBookie(runtime, B1, lambda _: BookieInfo(B1, "localhost", server.port))

    return remote


DRIVERS = {"fake": _fake, "real": _real, "fake, remote": _remote(_fake), "real, remote": _remote(_real)}


@pytest.fixture(params=DRIVERS.values(), ids=DRIVERS.keys())
def on_a_bookie(request: pytest.FixtureRequest) -> Callable[[Test], None]:
    def run(test: Test) -> None:
        async def scenario(world: World) -> None:
            async def main(runtime: Runtime) -> None:
                await test(await request.param(runtime), runtime)

            await world.node("b1").start(main)

        simulate(1, scenario)

    return run


OnABookie = Callable[[Test], None]


def test_entries_come_back_as_they_were_added(on_a_bookie: OnABookie) -> None:
    async def test(bookie: Bookie, _: Runtime) -> None:
        await bookie.add(LEDGER, [entry(0), entry(1), entry(2, b"")])
        await bookie.add(LedgerId(8), [entry(0, ledger_id=8)])
        result = await bookie.read(LEDGER, EntryId(0), EntryId(100), max_bytes=10**6)
        assert result.entries == [entry(0), entry(1), entry(2, b"")]
        assert result.last_confirmed == 1
        result = await bookie.read(LEDGER, EntryId(1), EntryId(1), max_bytes=10**6)
        assert result.entries == [entry(1)]

    on_a_bookie(test)


def test_entries_need_not_be_dense_or_in_order(on_a_bookie: OnABookie) -> None:
    async def test(bookie: Bookie, _: Runtime) -> None:
        await bookie.add(LEDGER, [entry(6)])
        await bookie.add(LEDGER, [entry(4), entry(2)])
        result = await bookie.read(LEDGER, EntryId(2), EntryId(100), max_bytes=10**6)
        assert [entry_id for entry_id, _ in result.entries] == [2, 4, 6]
        with pytest.raises(NoSuchEntryError):
            await bookie.read(LEDGER, EntryId(3), EntryId(4), max_bytes=10**6)

    on_a_bookie(test)


def test_an_entry_added_again_replaces_the_first(on_a_bookie: OnABookie) -> None:
    async def test(bookie: Bookie, _: Runtime) -> None:
        await bookie.add(LEDGER, [entry(0, b"one")])
        await bookie.add(LEDGER, [entry(0, b"two")])
        result = await bookie.read(LEDGER, EntryId(0), EntryId(0), max_bytes=100)
        assert result.entries == [entry(0, b"two")]

    on_a_bookie(test)


@pytest.mark.parametrize("max_bytes", [0, 1, 1000, 1100, 2200, 10**6])
def test_a_read_stops_after_max_bytes_but_not_before_one_entry(on_a_bookie: OnABookie, max_bytes: int) -> None:
    async def test(bookie: Bookie, _: Runtime) -> None:
        entries = [entry(n, bytes(1000)) for n in range(5)]
        await bookie.add(LEDGER, entries)
        result = await bookie.read(LEDGER, EntryId(0), EntryId(4), max_bytes=max_bytes)
        size = len(entries[0][1])
        assert len(result.entries) == max(1, min(5, max_bytes // size))

    on_a_bookie(test)


def test_what_is_not_here_is_denied(on_a_bookie: OnABookie) -> None:
    async def test(bookie: Bookie, _: Runtime) -> None:
        with pytest.raises(NoSuchLedgerError):
            await bookie.read(LEDGER, EntryId(0), EntryId(0), max_bytes=100)
        with pytest.raises(NoSuchLedgerError):
            await bookie.last_confirmed(LEDGER)
        await bookie.add(LEDGER, [entry(0)])
        with pytest.raises(NoSuchEntryError):
            await bookie.read(LEDGER, EntryId(1), EntryId(1), max_bytes=100)
        with pytest.raises(NoSuchLedgerError):
            await bookie.last_confirmed(LedgerId(8))

    on_a_bookie(test)


def test_a_damaged_entry_is_refused_and_not_stored(on_a_bookie: OnABookie) -> None:
    async def test(bookie: Bookie, _: Runtime) -> None:
        entry_id, data = entry(0)
        with pytest.raises(EntryCorruptError):
            await bookie.add(LEDGER, [(entry_id, data[:-1] + b"!")])
        with pytest.raises(NoSuchLedgerError):
            await bookie.last_confirmed(LEDGER)

    on_a_bookie(test)


def test_a_fenced_ledger_takes_only_a_recovery(on_a_bookie: OnABookie) -> None:
    async def test(bookie: Bookie, _: Runtime) -> None:
        await bookie.add(LEDGER, [entry(0), entry(1)])
        assert await bookie.fence(LEDGER) == 0
        with pytest.raises(LedgerFencedError):
            await bookie.add(LEDGER, [entry(2)])
        await bookie.add(LEDGER, [entry(2)], recovery=True)
        assert await bookie.fence(LEDGER) == 1
        assert await bookie.last_confirmed(LEDGER) == 1

    on_a_bookie(test)


def test_a_ledger_that_is_not_here_is_fenced_all_the_same(on_a_bookie: OnABookie) -> None:
    async def test(bookie: Bookie, _: Runtime) -> None:
        assert await bookie.fence(LEDGER) == NO_ENTRY
        with pytest.raises(LedgerFencedError):
            await bookie.add(LEDGER, [entry(0)])
        assert await bookie.last_confirmed(LEDGER) == NO_ENTRY

    on_a_bookie(test)


def test_the_last_confirmed_never_goes_back(on_a_bookie: OnABookie) -> None:
    async def test(bookie: Bookie, runtime: Runtime) -> None:
        await bookie.add(LEDGER, [entry(5)])
        await bookie.add(LEDGER, [entry(3)])
        assert await bookie.last_confirmed(LEDGER) == 4
        bookie.confirm(LEDGER, EntryId(5))
        bookie.confirm(LEDGER, EntryId(2))
        await runtime.clock.sleep(1)
        assert await bookie.last_confirmed(LEDGER) == 5

    on_a_bookie(test)


def test_a_poll_is_answered_at_once_if_there_is_something_new(on_a_bookie: OnABookie) -> None:
    async def test(bookie: Bookie, runtime: Runtime) -> None:
        await bookie.add(LEDGER, [entry(0), entry(1), entry(2)])
        began = runtime.clock.monotonic()
        assert await bookie.poll(LEDGER, EntryId(0), timeout_s=60) == ([entry(1)], 1)
        assert runtime.clock.monotonic() - began < 1

    on_a_bookie(test)


def test_a_poll_waits_for_a_ledger_and_for_its_last_confirmed(on_a_bookie: OnABookie) -> None:
    async def test(bookie: Bookie, runtime: Runtime) -> None:
        polling = asyncio.ensure_future(bookie.poll(LEDGER, NO_ENTRY, timeout_s=60))
        await runtime.clock.sleep(1)
        await bookie.add(LEDGER, [entry(0)])
        await runtime.clock.sleep(1)
        assert not polling.done()  # it is there, but not confirmed
        bookie.confirm(LEDGER, EntryId(0))
        assert await polling == ([entry(0)], 0)

    on_a_bookie(test)


def test_a_poll_ends_after_its_time(on_a_bookie: OnABookie) -> None:
    async def test(bookie: Bookie, runtime: Runtime) -> None:
        await bookie.add(LEDGER, [entry(1)])
        began = runtime.clock.monotonic()
        assert await bookie.poll(LEDGER, EntryId(0), timeout_s=5) == ([], 0)
        assert 5 <= runtime.clock.monotonic() - began < 6

    on_a_bookie(test)


@pytest.mark.parametrize("verb", ["fence", "delete"])
def test_a_poll_is_answered_when_the_ledger_is_fenced_or_deleted(on_a_bookie: OnABookie, verb: str) -> None:
    async def test(bookie: Bookie, runtime: Runtime) -> None:
        await bookie.add(LEDGER, [entry(0)])
        polling = asyncio.ensure_future(bookie.poll(LEDGER, EntryId(5), timeout_s=60))
        await runtime.clock.sleep(1)
        began = runtime.clock.monotonic()
        await (bookie.fence(LEDGER) if verb == "fence" else bookie.delete(LEDGER))
        result = await polling
        assert result.entries == []
        assert runtime.clock.monotonic() - began < 1

    on_a_bookie(test)


def test_a_deleted_ledger_is_gone_and_deleting_nothing_is_fine(on_a_bookie: OnABookie) -> None:
    async def test(bookie: Bookie, _: Runtime) -> None:
        await bookie.delete(LEDGER)
        await bookie.add(LedgerId(8), [entry(0, ledger_id=8)])
        await bookie.delete(LedgerId(8))
        with pytest.raises(NoSuchLedgerError):
            await bookie.read(LedgerId(8), EntryId(0), EntryId(0), max_bytes=100)

    on_a_bookie(test)


def test_an_add_never_blocks_and_a_refusal_is_known_soon(on_a_bookie: OnABookie) -> None:
    async def test(bookie: Bookie, _: Runtime) -> None:
        adds = [bookie.add(LEDGER, [entry(n)]) for n in range(100)]
        await asyncio.gather(*adds)
        result = await bookie.read(LEDGER, EntryId(0), EntryId(99), max_bytes=10**6)
        assert [entry_id for entry_id, _ in result.entries] == list(range(100))

    on_a_bookie(test)
