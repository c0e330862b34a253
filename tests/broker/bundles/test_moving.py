"""Bundles are handed over, let go of, and made two."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.broker.bundles.conftest import BUNDLES, SPACE, TTL_S, Cluster, Member, topic_in

from weir.broker.topics.lifecycle import PassOn
from weir.meta import keys
from weir.meta.interfaces import Versioned
from weir.meta.leases import usable_lease
from weir.model.cluster import FEATURES, LEFT, BundleClaim, BundleName
from weir.model.errors import MetaUnavailableError, NotAllowedError, NotOwnerError
from weir.model.ids import LedgerId
from weir.model.policies import Isolation
from weir.model.topics import NamespaceName, TopicName
from weir.testing.leading import Led, claims_told, going_back
from weir.testing.world.meta import MetaFaults

BUNDLE = BUNDLES[0]
T, U = topic_in(BUNDLE), topic_in(BUNDLE, 1)


async def loaded(cluster: Cluster, names: str = "ab") -> tuple[Member, Member]:
    """Who has the bundle with two topics, and another."""
    await cluster.brokers(names)
    one = cluster.chosen(BUNDLE)
    await one.topics.load(T)
    await one.topics.load(U)
    return one, cluster.other(one)


def test_a_bundle_goes_to_a_named_broker_with_its_topics(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        await one.moves.hand_over(BUNDLE, other.name)
        assert cluster.told == [(other.name, BUNDLE, [T, U])]
        assert one.held == []
        assert one.topics.written_down == [T, U]
        assert one.topics.reasons == [f"the topic moves to broker {other.name}"] * 2
        owner = one.ownership.owner_now(T)
        assert (owner.broker_id, owner.here, owner.epoch) == (other.name, False, 1)
        await cluster.settle()
        assert sorted(map(str, other.topics.names)) == sorted([str(T), str(U)])
        assert other.topics.looked_at == [T, U]
        assert other.topics.prepared == [T]  # which is written to
        assert other.moves.info(BUNDLE).owner == other.name
        with pytest.raises(NotOwnerError):
            await one.ownership.own(T)

    in_cluster(scenario)


def test_topics_are_passed_on_to_a_broker_that_is_ready_for_them(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        steps: list[str] = []
        passed, unload, look, put = one.topics.all_passed, one.topics.unload, other.topics.look_ahead, one.meta.put

        async def told_look(name: TopicName, *, above: LedgerId | None) -> None:
            await look(name, above=above)
            steps.append("ready")

        async def told_unload(name: TopicName, reason: str = "", pass_on: PassOn | None = None) -> None:
            await unload(name, reason, pass_on)
            steps.append("left")

        async def told_put(key: str, value: bytes, **more: Any) -> int:
            steps.append("claim")
            return await put(key, value, **more)

        def told_passed() -> None:
            passed()
            steps.append("ledgers")

        one.topics.all_passed, one.topics.unload = told_passed, told_unload  # type: ignore[method-assign]
        other.topics.look_ahead, one.meta.put = told_look, told_put  # type: ignore[method-assign]
        await one.moves.hand_over(BUNDLE, other.name)
        # All that takes time is done before clients wait, or when they do not any more.
        assert steps == ["claim", "ready", "ready", "left", "left", "claim", "ledgers"]
        assert one.topics.passed_on == {T: True, U: True}
        assert other.topics.left == [(T, 1), (U, 1)]
        assert other.topics.made_ledgers == [(T, 7)]

    in_cluster(scenario)


def test_the_successor_reads_nothing_before_it_holds_what_it_was_told_of(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        asked: list[str] = []
        get = other.meta.get

        async def told_get(key: str) -> Versioned | None:
            asked.append(key)
            return await get(key)

        other.meta.get = told_get  # type: ignore[method-assign]
        await one.moves.hand_over(BUNDLE, other.name)
        await cluster.settle()
        assert other.held == [BUNDLE]
        assert asked == []

    in_cluster(scenario)


def test_who_is_asked_for_a_bundle_names_its_owner_though_its_own_watch_is_late(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster, "abc")
        third = cluster.other_than(one, other)
        third.meta.faults = MetaFaults(watch_delay_s=60)
        await one.moves.hand_over(BUNDLE, other.name)
        assert third.ownership.owner_now(T).broker_id == one.name  # as far as it knows
        with pytest.raises(NotOwnerError) as told:
            await third.moves.hand_over(BUNDLE, third.name)
        assert told.value.listeners["pulsar"] == f"pulsar://{other.name}:6650"

    in_cluster(scenario)


def test_topics_are_closed_while_a_broker_of_an_earlier_release_is_there(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        await cluster.broker("z", features=tuple(name for name in FEATURES if name != LEFT))
        await cluster.settle()
        await one.moves.hand_over(BUNDLE, other.name)
        await cluster.settle()
        assert one.topics.passed_on == {T: False, U: False}
        assert other.held == [BUNDLE]

    in_cluster(scenario)


def test_what_was_lost_while_it_was_handed_over_is_had_again_in_the_next_epoch(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        one.topics.closing_s = 1000.0  # and is told, and may have told others, of the next epoch
        moving = asyncio.ensure_future(one.moves.hand_over(BUNDLE, other.name))
        await cluster.runtime.clock.sleep(0.5)
        assert one.ownership.owner_now(T).epoch == 1
        lease = one.ownership.registration.lease
        assert lease is not None
        one.ownership._lease_lost()
        await cluster.settle()
        await one.ownership._taking.ended(one.ownership.take(BUNDLE))
        assert (await one.ownership.own(T)).epoch == 1
        assert one.ownership.owner_now(T).broker_id == one.name
        moving.cancel()

    in_cluster(scenario)


def test_a_hand_over_does_not_go_on_with_a_bundle_that_was_lost_meanwhile(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        get_ready = cluster.get_ready

        async def lost_meanwhile(*told: Any) -> None:
            await get_ready(*told)
            one.ownership._lease_lost()
            await one.ownership._taking.ended(one.ownership.take(BUNDLE))

        cluster.get_ready = lost_meanwhile  # type: ignore[method-assign]
        with pytest.raises(NotOwnerError):
            await one.moves.hand_over(BUNDLE, other.name)
        await cluster.settle()
        assert one.held == [BUNDLE]
        assert one.topics.names == [T, U]  # none was closed, or passed on in an epoch that does not come
        assert other.topics.left == []

    in_cluster(scenario)


def test_a_hand_over_that_is_stored_while_the_bundle_is_had_again_sends_no_client_elsewhere(
    in_cluster: Callable,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        read = asyncio.Event()
        put, confirmed = one.meta.put, one.ownership.boundaries.confirmed

        async def late_put(key: str, *args: Any, **options: Any) -> int:
            if key == keys.claim(BUNDLE):
                await read.wait()
            return await put(key, *args, **options)

        async def late_confirmed(bundle: BundleName) -> bool:
            await cluster.settle()  # the claim is read
            read.set()
            await cluster.settle()  # the hand-over is stored
            return await confirmed(bundle)

        one.meta.put = late_put  # type: ignore[method-assign]
        one.ownership.boundaries.confirmed = late_confirmed  # type: ignore[method-assign]
        moving = asyncio.ensure_future(one.moves.hand_over(BUNDLE, other.name))
        await cluster.settle()
        one.ownership._lease_lost()
        await one.ownership._taking.ended(one.ownership.take(BUNDLE))
        with pytest.raises(NotOwnerError):
            await moving
        await cluster.settle()
        assert (await one.ownership.own(T)).epoch == 1  # clients may know this epoch already
        assert one.moves.info(BUNDLE).next == ""
        for member in (one, other):
            assert member.ownership.owner_now(T).broker_id == one.name

    in_cluster(scenario)


def test_topics_are_closed_for_a_successor_that_cannot_be_told(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        cluster.gone[other.name] = None
        await one.moves.hand_over(BUNDLE, other.name)
        await cluster.settle()
        assert one.topics.passed_on == {T: False, U: False}
        assert other.held == [BUNDLE]

    in_cluster(scenario)


def test_who_asks_the_successor_while_topics_close_waits_for_the_bundle(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        one.topics.closing_s = 1.0
        moving = asyncio.ensure_future(one.moves.hand_over(BUNDLE, other.name))
        await cluster.runtime.clock.sleep(0.5)
        assert T in one.topics.names
        for member in (one, other):  # everybody is sent to the successor already
            assert member.ownership.owner_now(T).broker_id == other.name
        assert one.ownership.owner_now(T).epoch == 1  # else clients take no notice of a new leader
        with pytest.raises(NotOwnerError):
            await one.ownership.own(topic_in(BUNDLE, 2))
        claim = await other.ownership.own(T)
        assert claim.epoch == 1
        assert one.held == []
        await moving

    in_cluster(scenario)


def test_a_bundle_that_comes_while_it_is_looked_who_has_it_is_not_waited_for(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        closing, asked = asyncio.Event(), asyncio.Event()
        get, unload = other.meta.get, one.topics.unload

        async def slow_get(key: str) -> Versioned | None:
            found = await get(key)
            if key == keys.broker(one.name):
                asked.set()
                await moving
                await (
                    cluster.settle()
                )  # the successor's watch has told of the claim, and nobody waits for that yet
            return found

        async def slow_unload(name: TopicName, reason: str = "", pass_on: PassOn | None = None) -> None:
            closing.set()
            await asked.wait()
            await unload(name, reason, pass_on)

        other.meta.get = slow_get  # type: ignore[method-assign]
        one.topics.unload = slow_unload  # type: ignore[method-assign]
        moving = asyncio.ensure_future(one.moves.hand_over(BUNDLE, other.name))
        await closing.wait()
        before = cluster.runtime.clock.monotonic()
        assert (await other.ownership.own(T)).epoch == 1
        assert cluster.runtime.clock.monotonic() - before < 2  # of virtual time: `settle`, and nothing else

    in_cluster(scenario)


def test_whoever_waits_for_a_bundle_gets_it_as_soon_as_its_owner_is_gone(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        one.topics.closing_s = 1000.0
        moving = asyncio.ensure_future(one.moves.hand_over(BUNDLE, other.name))
        await cluster.runtime.clock.sleep(0.5)
        waiting = asyncio.ensure_future(other.ownership.own(T))
        await cluster.settle()
        before = cluster.runtime.clock.monotonic()
        await one.ownership.close()
        assert (await waiting).epoch == 1
        assert cluster.runtime.clock.monotonic() - before < 1  # of virtual time
        moving.cancel()

    in_cluster(scenario)


def test_topics_that_do_not_close_do_not_hold_a_bundle_back(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        one.topics.closing_s = 1000.0
        await one.moves.hand_over(BUNDLE, other.name)
        await cluster.settle()
        assert other.held == [BUNDLE]

    in_cluster(scenario)


def test_a_bundle_whose_owner_dies_while_it_hands_over_goes_to_the_successor(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        await loaded(cluster, "abcd")
        one = cluster.chosen(BUNDLE)
        to = next(name for name in "abcd" if name != one.name)
        one.topics.closing_s = 1000.0
        moving = asyncio.ensure_future(one.moves.hand_over(BUNDLE, to))
        await cluster.runtime.clock.sleep(0.5)
        await one.ownership.close()
        moving.cancel()
        await cluster.settle()
        for name in sorted(set("abcd") - {one.name}):
            assert cluster.members[name].ownership.owner_now(T).broker_id == to
        assert (await cluster.members[to].ownership.own(T)).epoch == 1

    in_cluster(scenario)


def test_a_bundle_whose_successor_dies_meanwhile_is_nobodys(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        one.topics.closing_s = 2.0
        moving = asyncio.ensure_future(one.moves.hand_over(BUNDLE, other.name))
        await cluster.runtime.clock.sleep(0.5)
        await other.ownership.close()
        await moving
        one.topics.closing_s = 0.0
        assert one.moves.info(BUNDLE).owner == ""
        assert (await one.ownership.own(T)).epoch == 1

    in_cluster(scenario)


def test_what_cannot_be_handed_over_is_refused_and_goes_on(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        with pytest.raises(NotOwnerError):
            await other.moves.hand_over(BUNDLE, one.name)
        with pytest.raises(NotAllowedError):
            await one.moves.hand_over(BUNDLE, "nobody")
        cluster.isolation[SPACE] = Isolation((one.name,))
        with pytest.raises(NotAllowedError):
            await one.moves.hand_over(BUNDLE, other.name)
        with pytest.raises(NotAllowedError):
            await one.moves.hand_over(BUNDLE.halves()[0], other.name)
        await one.moves.hand_over(BUNDLE, one.name)
        assert one.held == [BUNDLE]
        assert one.topics.reasons == []

    in_cluster(scenario)


def test_a_hand_over_that_could_not_be_announced_does_not_happen(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        one.meta.faults = MetaFaults(lose_reply=1.0)  # it is announced, and nobody knows
        with pytest.raises(MetaUnavailableError):
            await one.moves.hand_over(BUNDLE, other.name)
        one.meta.faults = MetaFaults()
        await cluster.runtime.clock.sleep(2 * TTL_S)
        assert one.moves.info(BUNDLE).next == ""
        assert other.ownership.owner_now(T).broker_id == one.name
        assert (await one.ownership.own(T)).held

    in_cluster(scenario)


def test_a_bundle_that_is_let_go_of_goes_to_whom_everybody_chooses(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        await one.moves.hand_over(BUNDLE, other.name)
        await cluster.settle()
        await other.moves.let_go(BUNDLE)
        await cluster.settle()
        assert other.topics.names == []
        assert (await one.ownership.own(T)).epoch == 2

    in_cluster(scenario)


# --- splitting ------------------------------------------------------------------------------------------------


def test_both_halves_of_a_bundle_stay_with_their_topics_where_it_was(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        claims = list(one.topics.claims.values())
        low, high = await one.moves.split(BUNDLE)
        assert one.held == [low, high]
        assert all(claim.held and claim.epoch == 0 for claim in claims)
        assert one.topics.reasons == []
        await cluster.settle()
        for member in (one, other):
            assert [info.name for info in member.moves.of(SPACE)] == [low, high, *BUNDLES[1:]]
            assert member.moves.bundle_of(topic_in(low)) == low
            assert member.ownership.owner_now(topic_in(high)).broker_id == one.name
            assert BUNDLE not in [info.name for info in member.moves.all()]
        await one.moves.hand_over(low, other.name)
        await cluster.settle()
        assert other.held == [low]
        assert [claim.held for claim in claims] == [high.holds(topic) for topic in (T, U)]

    in_cluster(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_a_split_that_is_cut_short_is_ended_by_whoever_has_the_bundle_next(
    in_cluster: Callable, seed: int
) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        low, high = BUNDLE.halves()
        one.meta.faults = MetaFaults(delay_s=0.02)
        splitting = asyncio.ensure_future(one.moves.split(BUNDLE))
        await cluster.runtime.clock.sleep(0.02 + 0.012 * seed)
        one.meta.faults = MetaFaults(outage=True, starve_leases=True)
        await cluster.runtime.clock.sleep(3 * TTL_S)
        epochs = {}
        for topic in (topic_in(low), topic_in(high)):
            epochs[topic] = (await other.ownership.own(topic)).epoch
        assert all(epoch >= 1 for epoch in epochs.values())
        one.meta.faults = MetaFaults()
        await asyncio.wait([splitting])
        splitting.exception()
        await cluster.runtime.clock.sleep(3 * TTL_S)
        assert one.held == []
        names = [info.name for info in other.moves.of(SPACE)]
        assert names in ([low, high, *BUNDLES[1:]], BUNDLES)
        assert [(info.name, info.owner, info.epoch) for info in other.moves.of(SPACE)] == [
            (info.name, info.owner, info.epoch) for info in one.moves.of(SPACE)
        ]
        for topic, epoch in epochs.items():
            assert (await other.ownership.own(topic)).epoch >= epoch

    in_cluster(scenario, seed)


@pytest.mark.parametrize("seed", range(10))
def test_no_half_is_of_an_epoch_before_that_of_who_ended_the_split_of_a_slow_broker(
    in_cluster: Callable, seed: int
) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        told: list[tuple[None, Led]] = []

        async def follow() -> None:
            async for led in claims_told(cluster.core, cluster.runtime):
                told.append((None, led))  # noqa: PERF401 - it never ends

        following = asyncio.ensure_future(follow())
        one.meta.faults = MetaFaults(delay_s=0.3, watch_delay_s=1.0)
        splitting = asyncio.ensure_future(one.moves.split(BUNDLE))
        while not (other.ownership.claims.get(keys.claim(BUNDLE)) or BundleClaim()).split:
            await cluster.runtime.clock.sleep(0.01)
        cluster.core.revoke(usable_lease(one.ownership.registration.lease, ""))  # sooner than it knows
        other.meta.faults = MetaFaults(delay_s=0.1)
        with suppress(NotOwnerError):
            await other.ownership.own(T)
        await asyncio.wait([splitting])
        await cluster.runtime.clock.sleep(3 * TTL_S)
        following.cancel()
        splitting.exception()
        assert len(told) > 3
        assert going_back(told) == []

    in_cluster(scenario, seed)


def test_a_broker_that_did_not_hear_of_a_split_does_not_get_the_whole(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        await one.moves.split(BUNDLE)
        other.ownership.boundaries._records._items.clear()  # its watch is late
        with pytest.raises(NotOwnerError):
            await other.ownership.own(T)
        await cluster.settle()
        assert not [info for info in other.moves.all() if info.name == BUNDLE]
        assert other.ownership.claims.get(keys.claim(BUNDLE)) is None

    in_cluster(scenario)


def test_what_nobody_has_is_split_and_given_away_by_whom_everybody_would_choose(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.brokers("ab")
        one = cluster.chosen(BUNDLE)
        other = cluster.other(one)
        with pytest.raises(NotOwnerError) as told:
            await other.moves.split(BUNDLE)
        assert told.value.listeners == one.ownership.me.listeners
        low, high = await one.moves.split(BUNDLE)
        assert one.held == [low, high]
        one = cluster.chosen(BUNDLES[1])
        await one.moves.hand_over(BUNDLES[1], (other := cluster.other(one)).name)
        await cluster.settle()
        assert BUNDLES[1] in other.held
        with pytest.raises(NotAllowedError):
            await one.moves.split(BUNDLE)  # which there is no more
        assert one.ownership.claims.get(keys.claim(BUNDLE)) is None

    in_cluster(scenario)


def test_a_namespace_is_divided_once_before_anybody_has_anything_of_it(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await loaded(cluster)
        fresh = NamespaceName.parse("public/fresh")
        await one.moves.divide(fresh, 7)
        await cluster.settle()
        assert len(other.moves.of(fresh)) == 7
        for namespace, count in ((fresh, 3), (SPACE, 8)):
            with pytest.raises(NotAllowedError):
                await one.moves.divide(namespace, count)

    in_cluster(scenario)


# --- going down -----------------------------------------------------------------------------------------------


def test_a_broker_that_is_drained_hands_everything_over_and_takes_nothing(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        members = await cluster.brokers("abc")
        for bundle in BUNDLES:
            await cluster.chosen(bundle).topics.load(topic_in(bundle))
        one = max(members, key=lambda member: len(member.held))
        had = one.held
        await one.moves.drain()
        await cluster.settle()
        assert one.held == []
        assert one.moves.draining
        assert sorted(bundle for member in members for bundle in member.held) == BUNDLES
        assert sorted(topic_in(b).local for b in BUNDLES) == sorted(
            topic.local for member in members for topic in member.topics.names
        )
        others = [member for member in members if member is not one]
        for bundle in had:
            holder = next(member for member in others if bundle in member.held)
            await holder.moves.let_go(bundle)
        await cluster.settle()
        assert all(
            member.ownership.owner_now(topic_in(b)).broker_id != one.name for member in members for b in had
        )
        await one.moves.resume()
        await cluster.settle()
        assert not one.moves.draining

    in_cluster(scenario)


def test_the_only_broker_is_not_drained(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.brokers("a")
        await one.topics.load(T)
        with pytest.raises(NotAllowedError):
            await one.moves.drain()
        await one.moves.leave()  # going down it does not mind
        assert one.held == [BUNDLE]

    in_cluster(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_epochs_never_go_back_and_bundles_are_not_lost_however_they_move(in_cluster: Callable, seed: int) -> None:
    """With replies lost, leases lost, splits and hand-overs, all at once."""

    async def scenario(cluster: Cluster) -> None:
        members = await cluster.brokers("abc")
        rng, clock = cluster.runtime.rng, cluster.runtime.clock
        seen: dict[str, int] = {}
        ending = False

        async def use(member: Member) -> None:
            while not ending:
                await clock.sleep(rng.uniform(0.01, 0.2))
                topic = topic_in(BUNDLES[rng.randrange(4)], rng.randrange(4))
                try:
                    claim = await member.ownership.own(topic)
                except NotOwnerError:
                    continue
                if claim.held:
                    assert claim.epoch >= seen.get(topic.local, 0)
                    seen[topic.local] = claim.epoch

        async def move(member: Member) -> None:
            while not ending:
                await clock.sleep(rng.uniform(0.1, 1.0))
                if not member.held:
                    continue
                bundle = rng.choice(member.held)
                try:
                    if rng.random() < 0.2:
                        await member.moves.split(bundle)
                    else:
                        await member.moves.hand_over(bundle, rng.choice("abc"))
                except (NotOwnerError, NotAllowedError, MetaUnavailableError):
                    pass

        async def fail(member: Member) -> None:
            while not ending:
                await clock.sleep(rng.uniform(1, 10))
                member.meta.faults = rng.choice(
                    [
                        MetaFaults(lose_reply=0.2, lose_request=0.1, delay_s=0.05),
                        MetaFaults(starve_leases=True),
                        MetaFaults(outage=True),
                    ]
                )
                await clock.sleep(rng.uniform(0.5, 7))
                member.meta.faults = MetaFaults()

        work = [asyncio.ensure_future(what(member)) for member in members for what in (use, move, fail)]
        await clock.sleep(60)
        ending = True
        await asyncio.gather(*work)
        assert len(seen) == 16
        await clock.sleep(30)
        for topic in (topic_in(bundle, n) for bundle in BUNDLES for n in range(4)):
            owner = members[0].ownership.owner_now(topic)
            assert (await cluster.members[owner.broker_id].ownership.own(topic)).epoch >= seen[topic.local]

    in_cluster(scenario, seed)
