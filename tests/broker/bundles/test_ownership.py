"""Brokers that claim bundles from one another, in simulated time."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from tests.broker.bundles.conftest import BUNDLES, SPACE, TTL_S, Cluster, topic_in

from weir.broker.cluster.bundle_placement import choose
from weir.broker.cluster.ownership import CLAIM
from weir.meta import keys
from weir.meta.local import MemoryMeta
from weir.meta.update import read
from weir.model.cluster import Boundaries, BundleClaim, BundleName
from weir.model.errors import NotOwnerError
from weir.model.policies import Isolation
from weir.model.topics import TopicName
from weir.testing.world.meta import MetaFaults

T = topic_in(BUNDLES[0])


async def claim_of(cluster: Cluster, bundle: BundleName) -> BundleClaim | None:
    found = await read(MemoryMeta(cluster.core, cluster.runtime), keys.claim(bundle), CLAIM)
    return None if found is None else found.value


def test_a_bundle_has_one_owner_and_the_others_hear_its_address(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.brokers("ab")
        one = cluster.chosen(BUNDLES[0])
        other = cluster.other(one)
        assert (await one.ownership.own(T)).held
        for topic in (T, topic_in(BUNDLES[0], 1)):
            with pytest.raises(NotOwnerError) as refused:
                await other.ownership.own(topic)
            assert refused.value.listeners == {"pulsar": f"pulsar://{one.name}:6650"}
        await cluster.settle()
        told = await other.ownership.owner(T)
        assert (told.here, told.broker_id, told.node_id) == (False, one.name, "ab".index(one.name))
        assert (await one.ownership.owner(T)).here

    in_cluster(scenario)


def test_topics_of_a_bundle_cost_one_claim_however_many_they_are(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.brokers("a")
        await asyncio.gather(*(one.ownership.own(TopicName(SPACE, f"topic-{n}")) for n in range(200)))
        listing = await MemoryMeta(cluster.core, cluster.runtime).list("/weir/")
        claims = [item.key for item in listing.items if item.key.startswith(keys.CLAIMS)]
        assert claims == [keys.claim(bundle) for bundle in BUNDLES]
        assert len(listing.items) == len(claims) + 3  # its registration, its number, the next number

    in_cluster(scenario)


def test_a_bundle_that_nobody_has_is_taken_by_whom_everybody_chooses(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        members = await cluster.brokers("abc")
        for bundle in BUNDLES:
            topic = topic_in(bundle)
            owners = [member.ownership.owner_now(topic) for member in members]
            assert len({owner.broker_id for owner in owners}) == 1
            assert [owner.here for owner in owners].count(True) == 1
            for member in members:
                if member.name == owners[0].broker_id:
                    assert (await member.ownership.own(topic)).held
                else:
                    with pytest.raises(NotOwnerError):
                        await member.ownership.own(topic)

    in_cluster(scenario)


def test_owners_of_many_partitions_are_those_of_each_and_change_as_brokers_come_go_and_move(
    in_cluster: Callable,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        parts = TopicName(SPACE, "many")

        def same_everywhere() -> set[str]:
            told = [member.ownership.owners_now(parts, range(40)) for member in cluster.members.values()]
            for member, owners in zip(cluster.members.values(), told, strict=True):
                assert owners == [member.ownership.owner_now(parts.at(index)) for index in range(40)]
            assert len({tuple(owner.broker_id for owner in owners) for owners in told}) == 1
            return {owner.broker_id for owner in told[0]}

        one, other = await cluster.brokers("ab")
        assert same_everywhere() <= {"a", "b"}
        await cluster.brokers("c")
        await cluster.settle()
        assert same_everywhere() <= {"a", "b", "c"}
        await one.ownership.registration.drain(True)
        await cluster.settle()
        assert same_everywhere() <= {"b", "c"}
        for bundle in BUNDLES:
            chosen = cluster.chosen(bundle)
            await chosen.ownership.own(topic_in(bundle))
            if chosen is not other:
                await chosen.moves.hand_over(bundle, "b")
        await cluster.settle()
        assert same_everywhere() == {"b"}

    in_cluster(scenario)


def test_bundles_spread_and_only_those_of_a_broker_that_goes_move() -> None:
    bundles = Boundaries.even(3000).bundles(SPACE)
    three = {bundle: choose(bundle, ["a", "b", "c"]) for bundle in bundles}
    two = {bundle: choose(bundle, ["c", "a"]) for bundle in bundles}
    assert all(850 < share < 1150 for share in Counter(three.values()).values())
    assert all(two[bundle] == owner for bundle, owner in three.items() if owner != "b")
    assert choose(bundles[0], []) is None


def test_it_is_known_for_some_seconds_which_brokers_went_without_a_word(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other, third = await cluster.brokers("abc")
        assert one.ownership.former_brokers() == []
        fourth = await cluster.broker("d")
        await cluster.settle()
        await fourth.ownership.registration.drain(True)
        for gone in (other, third, fourth):
            await gone.ownership.close()
        await cluster.settle()
        assert [info.broker_id for info in one.ownership.former_brokers()] == ["b", "c"]  # `d` said so
        await cluster.broker("b", "2")
        await cluster.settle()
        assert [info.broker_id for info in one.ownership.former_brokers()] == ["c"]
        await cluster.runtime.clock.sleep(10)
        assert one.ownership.former_brokers() == []

    in_cluster(scenario)


def test_a_broker_that_closes_lets_go_of_everything_and_epochs_grow(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.brokers("ab")
        one = cluster.chosen(BUNDLES[0])
        other = cluster.other(one)
        claim = await one.ownership.own(T)
        assert claim.epoch == 0
        await one.ownership.close()
        assert not claim.held
        await cluster.settle()
        assert (await other.ownership.own(T)).epoch == 1
        assert [broker.broker_id for broker in other.ownership.brokers()] == [other.name]

    in_cluster(scenario)


def test_a_broker_that_lost_its_lease_has_lost_everything_before_another_may_take_it(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.brokers("ab")
        one = cluster.chosen(BUNDLES[0])
        other = cluster.other(one)
        claim = await one.ownership.own(T)
        one.meta.faults = MetaFaults(starve_leases=True, outage=True)
        while True:
            try:
                later = await other.ownership.own(T)
                break
            except NotOwnerError:
                await cluster.runtime.clock.sleep(0.05)
        assert not claim.held
        assert later.epoch == 1
        one.meta.faults = MetaFaults()
        await cluster.runtime.clock.sleep(2 * TTL_S)
        with pytest.raises(NotOwnerError):
            await one.ownership.own(T)
        assert [broker.broker_id for broker in other.ownership.brokers()] == ["a", "b"]
        assert later.held

    in_cluster(scenario)


def test_clients_of_a_broker_that_is_gone_wait_for_the_end_of_its_lease_where_its_bundles_go(
    in_cluster: Callable,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.brokers("abc")
        dead = cluster.chosen(BUNDLES[0])
        await dead.ownership.own(T)
        await cluster.settle()
        cluster.gone[dead.name] = None
        dead.meta.faults = MetaFaults(starve_leases=True, outage=True)
        left = [member for member in cluster.members.values() if member is not dead]
        told = [await member.ownership.owner(T) for member in left]
        assert len({owner.broker_id for owner in told}) == 1
        assert [owner.taken for owner in told] == [False, False]
        heir = cluster.members[told[0].broker_id]
        assert heir is not dead
        with pytest.raises(NotOwnerError):
            await cluster.other_than(dead, heir).ownership.own(T)
        claim = await heir.ownership.own(T)  # once, without having to ask again
        assert claim.epoch == 1
        assert not dead.held

    in_cluster(scenario)


def test_a_broker_that_does_not_listen_and_lives_keeps_what_it_has(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.brokers("ab")
        one = cluster.chosen(BUNDLES[0])
        other = cluster.other(one)
        claim = await one.ownership.own(T)
        await cluster.settle()
        cluster.gone[one.name] = None
        assert (await other.ownership.owner(T)).broker_id == other.name
        with pytest.raises(NotOwnerError):
            await other.ownership.own(T)
        assert claim.held
        assert (await other.ownership.owner(T)).broker_id == one.name  # it lives, whatever others see of it
        cluster.gone.clear()
        await cluster.settle()
        assert (await other.ownership.owner(T)).broker_id == one.name

    in_cluster(scenario)


def test_what_nobody_took_while_the_lease_was_lost_is_had_again(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.brokers("ab")
        one = cluster.chosen(BUNDLES[0])
        claim = await one.ownership.own(T)
        one.meta.faults = MetaFaults(starve_leases=True)
        await claim.bundle.lost()
        one.meta.faults = MetaFaults()
        await cluster.runtime.clock.sleep(2 * TTL_S)
        again = await one.ownership.own(T)
        assert again.held
        assert not claim.held

    in_cluster(scenario)


def test_without_a_lease_nothing_can_be_owned(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.brokers("a")
        claim = await one.ownership.own(T)
        one.meta.faults = MetaFaults(outage=True)
        await claim.bundle.lost()
        with pytest.raises(NotOwnerError):
            await one.ownership.own(T)

    in_cluster(scenario)


def test_what_a_killed_broker_had_is_the_others_once_it_is_started_again(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.brokers("abc")
        one = cluster.chosen(BUNDLES[0])
        await one.ownership.own(T)
        one.meta.faults = MetaFaults(outage=True)
        again = await cluster.broker(one.name, "2")
        await cluster.settle()
        (chosen,) = {member.ownership.owner_now(T).broker_id for member in cluster.members.values()}
        assert chosen != one.name  # where clients find nobody, and wait longer and longer before they try again
        assert (await cluster.members[chosen].ownership.own(T)).epoch == 1
        with pytest.raises(NotOwnerError):
            await again.ownership.own(T)

    in_cluster(scenario)


def test_a_broker_that_comes_back_takes_over_from_its_former_self_at_once(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        former = await cluster.broker("a", "1")
        await former.ownership.own(T)
        again = await cluster.broker("a", "2")
        claim = await again.ownership.own(T)
        assert claim.epoch == 1
        await cluster.settle()
        assert former.held == []
        await former.ownership.close()
        await cluster.runtime.clock.sleep(2 * TTL_S)
        assert claim.held
        assert await claim_of(cluster, BUNDLES[0]) == BundleClaim("a", "2", 1)

    in_cluster(scenario)


def test_an_owner_that_this_broker_has_not_heard_of_yet_is_not_robbed(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.brokers("a")
        late = await cluster.broker("z", "1")
        await late.ownership.claims.upsert(keys.claim(BUNDLES[0]), lambda now: BundleClaim("z", "1", 3))
        one.ownership.registration._live = {"a": one.ownership.me}
        with pytest.raises(NotOwnerError):
            await one.ownership.own(T)

    in_cluster(scenario)


@pytest.mark.parametrize("seed", range(10))
def test_a_lost_reply_is_not_taken_for_somebody_elses_claim(in_cluster: Callable, seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.brokers("a")
        one.meta.faults = MetaFaults(delay_s=0.02, lose_reply=0.3, lose_request=0.1)
        held, refusals = 0, list[str]()
        for bundle in BUNDLES:
            try:
                held += (await one.ownership.own(topic_in(bundle))).held
            except NotOwnerError as refused:
                refusals.append(refused.what)
        assert held + len(refusals) == 4
        assert not [what for what in refusals if "could not store its claim" not in what]

    in_cluster(scenario, seed)


@pytest.mark.parametrize("seed", range(10))
def test_two_brokers_never_both_hold_a_bundle_while_their_leases_live(in_cluster: Callable, seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        members = [await cluster.broker(name) for name in "abc"]  # not all have heard of all
        for bundle in BUNDLES:
            topic = topic_in(bundle)
            await asyncio.gather(*(member.ownership.own(topic) for member in members), return_exceptions=True)
            await cluster.settle()
            assert sum(bundle in member.held for member in members) <= 1

    in_cluster(scenario, seed)


def test_a_namespace_is_served_by_its_group_of_brokers_or_by_its_fallback(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.isolation[SPACE] = Isolation(("ssd-.*",), ("hdd-1",))
        members = [await cluster.broker(name) for name in ("hdd-1", "hdd-2", "ssd-1", "ssd-2")]
        await cluster.settle()
        hdd, _, first, second = members
        owners = {hdd.ownership.owner_now(TopicName(SPACE, f"t{n}")).broker_id for n in range(50)}
        assert owners == {"ssd-1", "ssd-2"}
        for member in (first, second):
            await member.ownership.close()
        await cluster.settle()
        assert hdd.ownership.owner_now(T).here
        assert (await hdd.ownership.own(T)).held

    in_cluster(scenario)


def test_a_brokers_number_is_its_own_for_good(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        members = await cluster.brokers("cab")
        assert [member.ownership.me.node_id for member in members] == [0, 1, 2]
        assert [broker.broker_id for broker in members[0].ownership.brokers()] == ["c", "a", "b"]
        await members[1].ownership.close()
        again = await cluster.broker("a", "2")
        another = await cluster.broker("d")
        assert (again.ownership.me.node_id, another.ownership.me.node_id) == (1, 3)

    in_cluster(scenario)
