"""Coordinators on several brokers: transactions and groups whose partitions and shards are anywhere."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.api.groups import GroupState, JoinRequest, SyncRequest
from weir.broker.coordination.partition_ops import LocalParts
from weir.model.errors import (
    NotInTransactionError,
    NotOwnerError,
    PeerUnavailableError,
    TransactionStateError,
    UnstablePositionError,
    WeirError,
)
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset, TransactionEnd
from weir.testing.broker.coordinators_stage import CoordinatorCluster

T0, T1, T2 = (TopicName.parse(name) for name in ("t0", "t1", "t2"))


async def cluster_of(bench: Any) -> CoordinatorCluster:
    """Transactional id x at a, group g at b, partitions T0 at b and T1 and T2 at c."""
    cluster = await CoordinatorCluster.make(bench, "a", "b", "c", shards=16)
    for key, name in (("x", "a"), ("g", "b")):
        await cluster.give_key(key, name)
    for part, name in ((T0, "b"), (T1, "c"), (T2, "c")):
        await cluster.give(part, name)
        await cluster.topic(part)
    return cluster


async def offset_of(cluster: CoordinatorCluster, part: TopicName = T2) -> int:
    found = (await (await cluster.at("g")).offsets.fetch("g", [part])).get(part)
    assert not isinstance(found, WeirError)
    return -1 if found is None else found.offset


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_over_partitions_and_a_group_of_several_brokers_is_all_or_nothing(
    run: Callable[..., None], commit: bool
) -> None:
    async def scenario(bench: Any) -> None:
        cluster = await cluster_of(bench)
        transactions, offsets = cluster.brokers["a"].transactions, cluster.brokers["b"].offsets
        who = await transactions.init("x")
        await cluster.begin("x", who, T0, T1)

        async def join() -> int:
            return await transactions.join_group("x", who, "g", joins=True)

        await offsets.prepare("g", who.producer_id, {T2: CommittedOffset(5)}, join=join)
        assert isinstance((await offsets.fetch("g", [T2], stable=True))[T2], UnstablePositionError)
        await transactions.end("x", who, commit=commit)
        assert await cluster.seen(T0) == await cluster.seen(T1) == (["m"] if commit else [])
        assert await offset_of(cluster) == (5 if commit else -1)
        assert not isinstance((await offsets.fetch("g", [T2], stable=True)).get(T2), WeirError)

    run(scenario)


def test_what_comes_too_late_for_a_transaction_is_refused_wherever_its_coordinator_is(
    run: Callable[..., None],
) -> None:
    async def scenario(bench: Any) -> None:
        cluster = await cluster_of(bench)
        transactions = cluster.brokers["a"].transactions
        who = await transactions.init("x")
        with pytest.raises(NotInTransactionError):
            await cluster.write(who, T0, "never begun")
        await cluster.begin("x", who, T0)
        with pytest.raises(NotInTransactionError):
            await cluster.write(who, T1, "not part of it")
        await transactions.end("x", who, commit=True)
        with pytest.raises(NotInTransactionError):
            await cluster.write(who, T0, "late")
        assert await cluster.seen(T0) == ["m"]
        assert await cluster.seen(T1) == []

    run(scenario)


def test_a_decision_is_carried_out_by_the_next_coordinator_and_late_markers_of_the_former_do_no_harm(
    run: Callable[..., None],
) -> None:
    async def scenario(bench: Any) -> None:
        cluster = await cluster_of(bench)
        who = await cluster.brokers["a"].transactions.init("x", timeout_ms=600_000)
        await cluster.begin("x", who, T0, T1)
        former = cluster.lose("a")
        await former.transactions.end("x", who, commit=True)  # decided; no partition hears of it
        assert (await cluster.topic(T0)).stable_offset == 0
        await cluster.give_key("x", "c")
        assert await cluster.seen(T0) == await cluster.seen(T1) == ["m"]
        # The same producer, at the same epoch, goes on; the former coordinator is heard again, and still at it.
        await cluster.begin("x", who, T0, T1, text="next")
        cluster.find("a")
        await bench.runtime.clock.sleep(10)
        for part in (T0, T1):
            topic = await cluster.topic(part)
            assert topic.stable_offset < topic.end_offset, "the next transaction is still open"
        with pytest.raises(WeirError):
            await former.transactions.add_partitions("x", who, [T2])  # it can make nothing durable
        await cluster.brokers["c"].transactions.end("x", who, commit=False)
        assert await cluster.seen(T0) == await cluster.seen(T1) == ["m"]

    run(scenario)


def test_a_partition_that_moves_before_its_marker_gets_it_from_its_next_broker(run: Callable[..., None]) -> None:
    async def scenario(bench: Any) -> None:
        cluster = await cluster_of(bench)
        transactions = cluster.brokers["a"].transactions
        who = await transactions.init("x", timeout_ms=600_000)
        await cluster.begin("x", who, T0, T1)
        cluster.lose("b")
        await cluster.give(T0, "c")
        await transactions.end("x", who, commit=True)
        assert await cluster.seen(T0) == await cluster.seen(T1) == ["m"]
        # A marker that comes late, when the next one is open at a broker that has just taken the partition.
        late = TransactionEnd(who.producer_id, who.epoch, True, 1 << 40)
        await cluster.begin("x", who, T0, text="next")
        await cluster.give(T0, "a")
        with pytest.raises(TransactionStateError):
            await LocalParts(cluster.brokers["a"].broker, bench.runtime.clock).end_transaction(T0, late)
        await transactions.end("x", who, commit=False)
        assert await cluster.seen(T0) == ["m"]

    run(scenario)


def test_a_marker_that_is_sent_twice_ends_one_transaction(run: Callable[..., None]) -> None:
    async def scenario(bench: Any) -> None:
        cluster = await cluster_of(bench)
        transactions = cluster.brokers["a"].transactions
        who = await transactions.init("x")
        sent: list[TransactionEnd] = []
        topic = await cluster.topic(T0)
        end = topic.end_transaction

        async def spied(producer_id: int, epoch: int, **how: Any) -> None:
            sent.append(TransactionEnd(producer_id, epoch, **how))
            await end(producer_id, epoch, **how)

        topic.end_transaction = spied  # type: ignore[method-assign]
        await cluster.begin("x", who, T0)
        await transactions.end("x", who, commit=True)
        await cluster.begin("x", who, T0, text="next")
        parts = LocalParts(cluster.brokers["b"].broker, bench.runtime.clock)
        await parts.end_transaction(T0, sent[0])
        assert topic.stable_offset == 2
        await transactions.end("x", who, commit=False)
        assert await cluster.seen(T0) == ["m"]

    run(scenario)


def test_a_transaction_that_was_open_when_its_coordinator_moved_goes_on(run: Callable[..., None]) -> None:
    async def scenario(bench: Any) -> None:
        cluster = await cluster_of(bench)
        who = await cluster.brokers["a"].transactions.init("x", timeout_ms=600_000)
        await cluster.begin("x", who, T0)
        await cluster.give_key("x", "b")  # where T0 is: the path without a network
        await cluster.begin("x", who, T1, T0, text="more")
        await cluster.give_key("x", "c")
        await cluster.brokers["c"].transactions.end("x", who, commit=True)
        assert await cluster.seen(T0) == ["m", "more"]
        assert await cluster.seen(T1) == ["more"]

    run(scenario)


# --- groups -----------------------------------------------------------------------------------------------------


def test_positions_on_partitions_of_three_brokers_are_kept_when_the_coordinator_moves(
    run: Callable[..., None],
) -> None:
    async def scenario(bench: Any) -> None:
        cluster = await cluster_of(bench)
        await cluster.give(T2, "a")
        positions = {part: CommittedOffset(number) for number, part in enumerate((T0, T1, T2), 1)}
        results = await cluster.brokers["b"].offsets.commit("g", positions)
        assert results == dict.fromkeys(positions)
        for name in ("b", "c", "a"):
            await cluster.give_key("g", name)
            offsets = cluster.brokers[name].offsets
            found = await offsets.fetch("g")
            assert {part: at.offset for part, at in found.items() if isinstance(at, CommittedOffset)} == {
                T0: 1,
                T1: 2,
                T2: 3,
            }
        await cluster.give(T0, "c")  # with what is committed there
        assert await offset_of(cluster, T0) == 1
        assert await cluster.brokers["a"].offsets.delete("g", [T0, T1]) == {T0: None, T1: None}
        assert list(await cluster.brokers["a"].offsets.fetch("g")) == [T2]
        assert await cluster.brokers["a"].offsets.expire("g", bench.runtime.clock.wall_ms() + 1) is None
        assert await cluster.brokers["a"].offsets.fetch("g", [T0, T1, T2]) == {}

    run(scenario)


def test_a_coordinator_that_was_replaced_moves_no_position_that_its_successor_has_moved(
    run: Callable[..., None],
) -> None:
    async def scenario(bench: Any) -> None:
        cluster = await cluster_of(bench)
        former = cluster.brokers["b"]
        await former.offsets.commit("g", {T1: CommittedOffset(10)})
        cluster.lose("b")
        await cluster.give_key("g", "a")
        await cluster.brokers["a"].offsets.commit("g", {T1: CommittedOffset(20)})
        cluster.find("b")
        result = (await former.offsets.commit("g", {T1: CommittedOffset(11)}))[T1]
        assert isinstance(result, NotOwnerError)
        assert await offset_of(cluster, T1) == 20

    run(scenario)


def test_a_placing_that_is_overtaken_by_a_later_one_is_left_out(run: Callable[..., None]) -> None:
    async def scenario(bench: Any) -> None:
        cluster = await cluster_of(bench)
        parts = LocalParts(cluster.brokers["c"].broker, bench.runtime.clock)
        for order, offset in ((2, 20), (2, 20), (1, 10)):
            assert await parts.place("g", {T1: CommittedOffset(offset)}, order=1 << 40 | order) == {T1: None}
        assert await offset_of(cluster, T1) == 20

    run(scenario)


def test_a_partition_whose_broker_is_out_of_reach_fails_alone_and_is_found_where_it_goes(
    run: Callable[..., None],
) -> None:
    async def scenario(bench: Any) -> None:
        cluster = await cluster_of(bench)
        offsets = cluster.brokers["b"].offsets
        cluster.peers.cut.add(("b", "c"))
        results = await offsets.commit("g", {T0: CommittedOffset(1), T1: CommittedOffset(2)})
        assert results[T0] is None
        assert isinstance(results[T1], PeerUnavailableError)
        committing = asyncio.ensure_future(offsets.commit("g", {T1: CommittedOffset(3)}))
        await bench.runtime.clock.sleep(0.3)
        await cluster.give(T1, "a")  # it is looked for again
        assert await committing == {T1: None}
        assert await offset_of(cluster, T1) == 3

    run(scenario)


def test_members_whose_coordinator_moves_in_the_middle_of_a_rebalance_join_the_next_one(
    run: Callable[..., None],
) -> None:
    async def scenario(bench: Any) -> None:
        cluster = await cluster_of(bench)
        groups = cluster.brokers["b"].groups
        request = JoinRequest("consumer", {"range": b""}, session_s=10.0, rebalance_s=20.0)
        first = await groups.join("g", request)
        await groups.sync("g", SyncRequest(first.generation, first.member_id, assignments={first.member_id: b"1"}))
        await groups.commit("g", {T1: CommittedOffset(7)}, member_id=first.member_id, generation=first.generation)
        joining = asyncio.ensure_future(groups.join("g", request))  # waits for the first to come again
        await bench.runtime.clock.sleep(1)
        await cluster.give_key("g", "c")
        with pytest.raises(NotOwnerError):
            await joining
        with pytest.raises(NotOwnerError):
            await groups.heartbeat("g", first.member_id, first.generation)
        groups = cluster.brokers["c"].groups
        await groups.heartbeat("g", first.member_id, first.generation)  # as if nothing had happened
        joining = asyncio.ensure_future(groups.join("g", request))
        await bench.runtime.clock.sleep(1)
        again = await groups.join(
            "g", JoinRequest("consumer", {"range": b""}, 10.0, 20.0, member_id=first.member_id)
        )
        second = await joining
        assert again.generation == second.generation > first.generation
        assert (await groups.describe("g")).state is GroupState.SYNCING
        found = (await groups.fetch("g", [T1]))[T1]
        assert isinstance(found, CommittedOffset)
        assert found.offset == 7

    run(scenario)
