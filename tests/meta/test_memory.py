"""The in-memory store over several simulated nodes: leases of the dead, clocks that differ, old watches."""

import asyncio
from typing import Any

import pytest

from weir.meta.interfaces import Change, Lease
from weir.meta.key_space import KeySpace
from weir.meta.local import Feed, MemoryCore, MemoryMeta
from weir.model.errors import MetaUnavailableError
from weir.runtime.interfaces import Runtime
from weir.testing.world.meta import FaultyMeta, MetaFaults
from weir.testing.world.world import World, simulate


def test_a_crashed_nodes_lease_expires_while_the_others_stay() -> None:
    async def scenario(world: World) -> None:
        core = MemoryCore(world.node("meta").runtime.clock)
        observer = MemoryMeta(core, world.node("observer").runtime)

        async def hold(runtime: Runtime, name: str) -> None:
            store = MemoryMeta(core, runtime)
            await store.put(f"/{name}", b"", lease=await store.lease(5))

        for name in ("a", "b"):
            await world.node(name).start(lambda runtime, name=name: hold(runtime, name))
        await world.sleep(60)
        assert [item.key for item in (await observer.list("/")).items] == ["/a", "/b"]
        watch = observer.watch("/", since=core.state.revision)
        world.node("a").crash()
        crashed_at = world.now
        assert (await anext(watch))[:2] == ("/a", None)
        assert 5 * 2 / 3 - 0.1 <= world.now - crashed_at <= 5.1
        await world.sleep(60)
        assert [item.key for item in (await observer.list("/")).items] == ["/b"]

    simulate(1, scenario)


@pytest.mark.parametrize("rate", [0.92, 1.0, 1.08])
@pytest.mark.parametrize("seed", range(5))
def test_a_holder_stops_trusting_its_lease_before_the_store_drops_it_though_clocks_differ(
    rate: float, seed: int
) -> None:
    async def scenario(world: World) -> None:
        world.node("holder").clock.rate = rate
        core = MemoryCore(world.node("meta").runtime.clock)
        held: dict[str, Any] = {}

        async def hold(runtime: Runtime) -> None:
            store = FaultyMeta(MemoryMeta(core, runtime), runtime)
            held["lease"] = lease = await store.lease(5)
            held["store"] = store
            await store.put("/k", b"", lease=lease)

        await world.node("holder").start(hold)
        await world.sleep(world.rng("when").uniform(0, 20))
        held["store"].faults = MetaFaults(starve_leases=True)
        lease: Lease = held["lease"]
        while lease.alive:
            core.expire()
            assert core.state.get("/k") is not None, "the store dropped it first"
            await world.sleep(0.01)
        await asyncio.wait_for(lease.lost(), 1)
        await world.sleep(2)
        assert core.state.get("/k") is None

    simulate(seed, scenario)


def test_a_paused_holder_finds_its_lease_lost_when_it_goes_on() -> None:
    async def scenario(world: World) -> None:
        core = MemoryCore(world.node("meta").runtime.clock)
        leases: list[Lease] = []

        async def hold(runtime: Runtime) -> None:
            store = MemoryMeta(core, runtime)
            leases.append(await store.lease(2))
            await store.put("/k", b"", lease=leases[0])

        await world.node("holder").start(hold)
        world.node("holder").pause()
        await world.sleep(3)
        assert core.state.get("/k") is None
        assert not leases[0].alive, "judged by time, not by a task that could not run"
        world.node("holder").resume()
        await world.sleep(10)
        assert not leases[0].alive, "and it stays lost"

    simulate(1, scenario)


def test_a_short_outage_does_not_cost_a_lease_and_a_long_one_does() -> None:
    async def scenario(world: World) -> None:
        core = MemoryCore(world.node("meta").runtime.clock)
        runtime = world.node("holder").runtime
        store = FaultyMeta(MemoryMeta(core, runtime), runtime)
        lease = await store.lease(6)
        await store.put("/k", b"", lease=lease)
        store.outage_for(3)
        with pytest.raises(MetaUnavailableError):
            await store.get("/k")
        await world.sleep(30)
        assert lease.alive
        assert await store.get("/k") is not None
        store.outage_for(10)
        await lease.lost()
        await world.sleep(10)
        assert await store.get("/k") is None

    simulate(3, scenario)


@pytest.mark.parametrize("seed", range(20))
def test_a_watch_that_fell_behind_the_history_still_ends_with_the_latest_state(seed: int) -> None:
    async def scenario(world: World) -> None:
        rng = world.rng("changes")
        core = MemoryCore(world.node("meta").runtime.clock, KeySpace(history=8))
        runtime = world.node("n").runtime
        store = MemoryMeta(core, runtime)
        for n in range(10):
            await store.put(f"/k/{n}", b"0")
        listing = await store.list("/k/")
        seen = {item.key: item.value for item in listing.items}
        watch = store.watch("/k/", since=listing.revision)
        for _ in range(30):
            for _ in range(rng.randrange(40)):
                key = f"/k/{rng.randrange(12)}"
                if rng.random() < 0.4:
                    await store.delete(key)
                else:
                    await store.put(key, rng.randbytes(2))
            latest = {item.key: item.value for item in core.state.under("/k/")}
            while seen != latest:  # a simulation in which nothing more can happen ends with an error
                apply(seen, await anext(watch))

    simulate(seed, scenario)


def test_a_watch_that_begins_after_the_history_was_lost_learns_of_deletions_since_the_listing() -> None:
    async def scenario(world: World) -> None:
        core = MemoryCore(world.node("meta").runtime.clock, KeySpace(history=4))
        store = MemoryMeta(core, world.node("n").runtime)
        await store.put("/k/gone", b"")
        await store.put("/k/kept", b"")
        listing = await store.list("/k/")
        await store.delete("/k/gone")
        for n in range(50):
            await store.put("/elsewhere", b"%d" % n)
        version = await store.put("/k/new", b"1")
        watch = store.watch("/k/", since=listing.revision)
        seen = [await anext(watch), await anext(watch)]
        assert seen == [Change("/k/new", b"1", version), Change("/k/gone", None, version)]

    simulate(1, scenario)


def test_a_watch_is_not_run_for_what_others_watch_and_misses_nothing_by_it() -> None:
    async def scenario(world: World) -> None:
        core = MemoryCore(world.node("meta").runtime.clock, KeySpace(history=8))
        feed = Feed(core, "/k/", core.state.revision, None)  # of nobody who could make up for lost history
        changes = feed.changes()
        first = asyncio.ensure_future(anext(changes))
        await world.sleep(1)
        store = MemoryMeta(core, world.node("n").runtime)
        steps = world.loop.steps
        for n in range(50):
            await store.put("/elsewhere", b"%d" % n)
        await world.sleep(1)
        assert world.loop.steps - steps < 50
        version = await store.put("/k/new", b"1")
        assert await first == Change("/k/new", b"1", version)
        await changes.aclose()

    simulate(1, scenario)


def apply(state: dict[str, bytes], change: Change) -> None:
    if change.value is None:
        state.pop(change.key, None)
    else:
        state[change.key] = change.value
