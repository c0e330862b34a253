"""The leader's rounds over brokers that answer, are silent, or refuse, in simulated time."""

import asyncio
from collections.abc import Awaitable, Callable, Set
from dataclasses import replace

from weir.broker.balance.balance_round import History, NoIsolation
from weir.broker.balance.balancer import Balancer, BalanceSettings
from weir.model.cluster import BrokerLoad, BundleLoad
from weir.model.errors import NotOwnerError, PeerUnavailableError
from weir.runtime.interfaces import Runtime
from weir.testing.world.world import World, simulate


def load(name: str, *shares: float, topics: int = 1) -> BrokerLoad:
    bundles = tuple(
        BundleLoad(f"t/{name}/{n}", messages_in=share * 1000, topics=topics) for n, share in enumerate(shares)
    )
    return BrokerLoad(name, bundles, cpu=sum(shares), messages_in=sum(shares) * 1000)


class FakeBrokers:
    """Fills `BrokerControl`: brokers that do what they are asked, unless they are silent or refuse."""

    def __init__(self, runtime: Runtime, *loads: BrokerLoad) -> None:
        self._clock = runtime.clock
        self.loads = {found.broker_id: found for found in loads}
        self.silent: set[str] = set()
        self.refusing: set[str] = set()
        self.asked: list[tuple[str, ...]] = []
        self.under_way = self.most_under_way = 0

    def brokers(self) -> list[str]:
        return sorted(self.loads)

    async def load(self, broker_id: str) -> BrokerLoad:
        await self._answer(broker_id)
        return self.loads[broker_id]

    async def hand_over(self, owner: str, bundle: str, to: str) -> None:
        self.asked.append((owner, bundle, to))
        await self._answer(owner)
        moved = next(b for b in self.loads[owner].bundles if b.bundle == bundle)
        for name, bundles in (
            (owner, tuple(b for b in self.loads[owner].bundles if b is not moved)),
            (to, (*self.loads[to].bundles, moved)),
        ):
            work = sum(b.messages_in for b in bundles)
            self.loads[name] = replace(self.loads[name], bundles=bundles, cpu=work / 1000, messages_in=work)

    async def split(self, owner: str, bundle: str) -> None:
        self.asked.append((owner, bundle))
        await self._answer(owner)

    async def _answer(self, broker_id: str) -> None:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self._clock.sleep(0.1)
        finally:
            self.under_way -= 1
        if broker_id in self.silent:
            raise PeerUnavailableError(f"{broker_id} is silent", sent=True)
        if broker_id in self.refusing and self.asked:
            raise NotOwnerError("not mine")


def run(scenario: Callable[[Runtime], Awaitable[None]]) -> None:
    async def main(world: World) -> None:
        async def on_node(runtime: Runtime) -> None:
            await scenario(runtime)

        await world.node("leader").start(on_node)

    simulate(1, main)


def test_the_leader_evens_out_round_after_round_and_comes_to_rest() -> None:
    async def scenario(runtime: Runtime) -> None:
        brokers = FakeBrokers(runtime, load("a", *[0.05] * 16), load("b"), load("c"))
        balancer = Balancer(runtime.clock, brokers, NoIsolation(), BalanceSettings(interval_s=30))
        leading = asyncio.get_running_loop().create_task(balancer.lead())
        await runtime.clock.sleep(29)
        assert brokers.asked == []
        await runtime.clock.sleep(1800)
        asked = len(brokers.asked)
        await runtime.clock.sleep(1800)
        leading.cancel()
        assert len(brokers.asked) == asked
        assert max(found.cpu for found in brokers.loads.values()) < 0.37
        assert balancer.metrics.done == {"hot": asked} or sum(balancer.metrics.done.values()) == asked
        assert balancer.metrics.busiest < 0.37
        assert 0.26 < balancer.metrics.mean < 0.27
        assert balancer.metrics.uneven == 0

    run(scenario)


def test_a_silent_broker_neither_gives_nor_gets() -> None:
    async def scenario(runtime: Runtime) -> None:
        brokers = FakeBrokers(runtime, load("a", *[0.1] * 8), load("b"), load("c", 0.2))
        brokers.silent = {"b"}
        balancer = Balancer(runtime.clock, brokers, NoIsolation())
        await balancer.round(History())
        assert {to for *_, to in brokers.asked} == {"c"}
        assert balancer.metrics.silent == 1

    run(scenario)


def test_a_leader_that_hears_less_than_half_moves_nothing() -> None:
    async def scenario(runtime: Runtime) -> None:
        brokers = FakeBrokers(runtime, load("a", *[0.1] * 8), load("b"), load("c"), load("d"), load("e"))
        brokers.silent = {"c", "d", "e"}
        balancer = Balancer(runtime.clock, brokers, NoIsolation())
        assert await balancer.round(History()) == []
        brokers.silent = {"c", "d"}
        assert await balancer.round(History())

    run(scenario)


def test_a_broker_that_refuses_stops_nothing_and_is_not_asked_again_at_once() -> None:
    async def scenario(runtime: Runtime) -> None:
        brokers = FakeBrokers(runtime, load("a", 0.4, 0.1, topics=5), load("b", *[0.05] * 10), load("c"))
        brokers.refusing = {"a"}
        balancer = Balancer(runtime.clock, brokers, NoIsolation())
        history = History()
        await balancer.round(history)
        assert ("a", "t/a/0") in brokers.asked
        assert balancer.metrics.failed["split"] == 1
        assert sum(balancer.metrics.done.values()) >= 1
        asked = len(brokers.asked)
        await balancer.round(history)
        assert len(brokers.asked) == asked

    run(scenario)


def test_a_leader_that_decides_about_much_gives_others_their_turns() -> None:
    async def scenario(runtime: Runtime) -> None:
        brokers = FakeBrokers(runtime, *(load(f"b{n:03}", *[0.001] * 400) for n in range(40)))
        turns, deciding, begun = 0, True, asyncio.Event()
        seen: list[int] = []

        class Isolation(NoIsolation):
            """Asked for each broker's namespace in the course of the decision."""

            def allowed(self, namespace: str, live: frozenset[str]) -> Set[str]:
                begun.set()
                seen.append(turns)
                return live

        async def others() -> None:
            nonlocal turns
            await begun.wait()
            while deciding:
                turns += 1
                await runtime.clock.sleep(0)

        other = asyncio.get_running_loop().create_task(others())
        assert await Balancer(runtime.clock, brokers, Isolation()).round(History()) == []
        deciding = False
        await other
        assert len(seen) == 40
        assert len(set(seen)) >= 3  # 16,000 bundles, some 4,096 in a turn

    run(scenario)


def test_no_more_are_asked_at_the_same_time_than_may_be() -> None:
    async def scenario(runtime: Runtime) -> None:
        brokers = FakeBrokers(runtime, *(load(f"b{n}") for n in range(20)))
        balancer = Balancer(runtime.clock, brokers, NoIsolation(), BalanceSettings(asked_at_once=3))
        assert len(await balancer.loads()) == 20
        assert brokers.most_under_way == 3

    run(scenario)


def test_a_leader_that_is_stopped_in_a_round_asks_for_nothing_more() -> None:
    async def scenario(runtime: Runtime) -> None:
        brokers = FakeBrokers(runtime, load("a", *[0.05] * 16), load("b"), load("c"))
        balancer = Balancer(runtime.clock, brokers, NoIsolation(), BalanceSettings(moved_at_once=1))
        leading = asyncio.get_running_loop().create_task(balancer.round(History()))
        while not brokers.asked:
            await runtime.clock.sleep(0.01)
        leading.cancel()
        await asyncio.wait([leading])
        assert len(brokers.asked) == 1
        await runtime.clock.sleep(60)
        assert len(brokers.asked) == 1
        assert brokers.under_way == 0

    run(scenario)
