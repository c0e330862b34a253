"""Brokers that claim topics from one another, in simulated time."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from weir.broker.ownership import Ownership, OwnershipSettings, choose
from weir.meta import keys
from weir.meta.memory import MemoryCore, MemoryMeta
from weir.model.errors import NotOwnerError
from weir.model.registry import BrokerInfo
from weir.model.topics import TopicName
from weir.runtime import Runtime
from weir.testing.world.meta import FaultyMeta, MetaFaults
from weir.testing.world.world import World, simulate

T = TopicName.parse("orders")
TTL_S = 5.0


@dataclass
class Cluster:
    runtime: Runtime
    core: MemoryCore

    async def broker(self, name: str, instance: str = "1") -> tuple[Ownership, FaultyMeta]:
        meta = FaultyMeta(MemoryMeta(self.core, self.runtime), self.runtime)
        info = BrokerInfo(name, instance, {"pulsar": f"pulsar://{name}:6650", "http": f"http://{name}:8080"})
        ownership = Ownership(meta, self.runtime, info, OwnershipSettings(ttl_s=TTL_S))
        await ownership.start()
        return ownership, meta

    async def settle(self) -> None:
        await self.runtime.clock.sleep(1)


def run(scenario: Callable[[Cluster], Awaitable[None]], seed: int = 1) -> None:
    async def main(world: World) -> None:
        async def on_node(runtime: Runtime) -> None:
            await scenario(Cluster(runtime, MemoryCore(runtime.clock)))

        await world.node("cluster").start(on_node)

    simulate(seed, main)


def test_a_topic_has_one_owner_and_the_others_hear_its_address() -> None:
    async def scenario(cluster: Cluster) -> None:
        (one, _), (other, _) = await cluster.broker("a"), await cluster.broker("b")
        await cluster.settle()
        claim = await one.own(T)
        assert claim.held
        assert await one.own(T) is claim
        with pytest.raises(NotOwnerError) as refused:
            await other.own(T)
        assert refused.value.listeners == {"pulsar": "pulsar://a:6650", "http": "http://a:8080"}
        await cluster.settle()
        assert (await other.owner(T)).url("pulsar") == "pulsar://a:6650"
        assert not (await other.owner(T)).here
        assert (await one.owner(T)).here

    run(scenario)


def test_partitions_are_owned_one_by_one() -> None:
    async def scenario(cluster: Cluster) -> None:
        (one, _), (other, _) = await cluster.broker("a"), await cluster.broker("b")
        await one.own(T.at(0))
        await other.own(T.at(1))
        with pytest.raises(NotOwnerError):
            await one.own(T.at(1))

    run(scenario)


def test_a_released_topic_can_be_had_at_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        (one, _), (other, _) = await cluster.broker("a"), await cluster.broker("b")
        claim = await one.own(T)
        await one.release(T)
        assert not claim.held
        await claim.lost()
        await one.release(T)
        assert (await other.own(T)).held
        assert one.claims == []

    run(scenario)


def test_a_broker_that_closes_lets_go_of_everything() -> None:
    async def scenario(cluster: Cluster) -> None:
        (one, _), (other, _) = await cluster.broker("a"), await cluster.broker("b")
        claims = [await one.own(T.at(n)) for n in range(3)]
        await one.close()
        for claim in claims:
            await claim.lost()
            assert (await other.own(claim.topic)).held
        await cluster.settle()
        assert [broker.broker_id for broker in other.brokers()] == ["b"]

    run(scenario)


def test_a_broker_that_lost_its_lease_has_lost_everything_and_registers_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        (one, meta), (other, _) = await cluster.broker("a"), await cluster.broker("b")
        claim = await one.own(T)
        meta.faults = MetaFaults(starve_leases=True)
        await claim.lost()
        assert not claim.held
        meta.faults = MetaFaults()
        await cluster.runtime.clock.sleep(TTL_S)
        assert (await other.own(T)).held
        with pytest.raises(NotOwnerError):
            await one.own(T)
        assert (await one.own(T.at(1))).held
        await cluster.settle()
        assert [broker.broker_id for broker in other.brokers()] == ["a", "b"]

    run(scenario)


def test_without_a_lease_nothing_can_be_owned() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, meta = await cluster.broker("a")
        claim = await one.own(T)
        meta.faults = MetaFaults(outage=True)
        await claim.lost()
        with pytest.raises(NotOwnerError):
            await one.own(T)

    run(scenario)


def test_a_broker_that_comes_back_takes_over_from_its_former_self_at_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        former, _ = await cluster.broker("a", "1")
        await former.own(T)
        again, _ = await cluster.broker("a", "2")
        claim = await again.own(T)
        # The former self's lease runs out, or is given up; the key is no longer its.
        await former.close()
        await cluster.runtime.clock.sleep(2 * TTL_S)
        meta = MemoryMeta(cluster.core, cluster.runtime)
        assert claim.held
        assert await meta.get(keys.owner(T)) is not None

    run(scenario)


def test_asking_twice_at_once_gives_one_claim_that_lasts() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, meta = await cluster.broker("a")
        meta.faults = MetaFaults(delay_s=0.05)
        claims = await asyncio.gather(*(one.own(T) for _ in range(4)))
        assert all(claim is claims[0] for claim in claims)
        await cluster.runtime.clock.sleep(3 * TTL_S)
        assert claims[0].held
        await one.release(T)
        assert await MemoryMeta(cluster.core, cluster.runtime).get(keys.owner(T)) is None

    run(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_a_lost_reply_is_not_taken_for_somebody_elses_claim(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, meta = await cluster.broker("a")
        meta.faults = MetaFaults(delay_s=0.02, lose_reply=0.3, lose_request=0.1)
        held, refusals = 0, list[str]()
        for n in range(10):
            try:
                held += (await one.own(T.at(n))).held
            except NotOwnerError as refused:
                refusals.append(refused.what)
        assert held >= 5
        assert not [what for what in refusals if "did not let" not in what]

    run(scenario, seed)


def test_two_brokers_never_both_hold_a_topic_while_their_leases_live() -> None:
    async def scenario(cluster: Cluster) -> None:
        brokers = [(await cluster.broker(name))[0] for name in "abc"]
        for n in range(30):
            outcomes = await asyncio.gather(*(b.own(T.at(n)) for b in brokers), return_exceptions=True)
            assert sum(not isinstance(outcome, NotOwnerError) for outcome in outcomes) == 1

    run(scenario)


# --- the choice for a topic that nobody has -------------------------------------------------------------------


def test_every_broker_chooses_the_same_owner() -> None:
    async def scenario(cluster: Cluster) -> None:
        brokers = [(await cluster.broker(name))[0] for name in "abc"]
        await cluster.settle()
        for n in range(20):
            chosen = [(await broker.owner(T.at(n))).url("pulsar") for broker in brokers]
            assert len(dict.fromkeys(chosen)) == 1
            assert [(await broker.owner(T.at(n))).here for broker in brokers].count(True) == 1

    run(scenario)


def test_topics_spread_and_only_those_of_a_broker_that_goes_move() -> None:
    topics = [T.at(n) for n in range(3000)]
    three = {topic: choose(topic, ["a", "b", "c"]) for topic in topics}
    two = {topic: choose(topic, ["c", "a"]) for topic in topics}
    assert all(850 < share < 1150 for share in Counter(three.values()).values())
    assert all(two[topic] == owner for topic, owner in three.items() if owner != "b")
    assert choose(T, []) is None
