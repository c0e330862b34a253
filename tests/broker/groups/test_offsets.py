"""Positions of consumer groups, as cursors of subscriptions that hold nothing back."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from weir.broker.api.consumers import StartAt, SubscriptionType
from weir.broker.api.stats import ConsumerStats, Flow
from weir.broker.coordination.partition_ops import LocalParts
from weir.broker.coordination.shards import CoordinatorShards
from weir.broker.groups.group_offsets import GroupOffsets
from weir.broker.upkeep.topic_upkeep import maintain
from weir.model.errors import (
    CommitTooLargeError,
    IllegalGenerationError,
    NotAllowedError,
    NotInTransactionError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    UnstablePositionError,
    WireError,
)
from weir.model.policies import BacklogQuota, Policies, Retention
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset, TransactionEnd

T, U = TopicName.parse("t"), TopicName.parse("u")


async def offsets_of(bench: Any, broker: Any) -> GroupOffsets:
    for name in (T, U):
        await broker.load(name)
    return GroupOffsets(LocalParts(broker, bench.runtime.clock), CoordinatorShards(broker), bench.runtime.clock)


def plain(found: Any) -> dict[TopicName, Any]:
    """Positions without the moment."""
    return {
        part: replace(one, commit_ms=0) if isinstance(one, CommittedOffset) else one for part, one in found.items()
    }


def test_a_position_is_fetched_as_it_was_committed_and_is_the_cursor_of_a_subscription(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        offsets = await offsets_of(bench, broker)
        topic = await broker.load(T)
        await bench.publish(await bench.producer(topic), *"abcde")
        assert await offsets.commit("g", {T: CommittedOffset(3, 0, "note")}) == {T: None}
        assert plain(await offsets.fetch("g", [T, U])) == {T: CommittedOffset(3, 0, "note")}
        assert plain(await offsets.fetch("g")) == {T: CommittedOffset(3, 0, "note")}
        subscription = topic.stored.subscription("g")
        assert (subscription.cursor.mark_delete, subscription.backlog) == (2, 2)
        assert subscription.properties == {"weir.retains": "false"}
        assert await offsets.parts("g") == [T]

    run(scenario)


def test_positions_go_back_when_asked_and_a_number_beyond_the_end_is_kept_as_it_is(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        offsets = await offsets_of(bench, broker)
        topic = await broker.load(T)
        await bench.publish(await bench.producer(topic), *"abcde")
        for offset, cursor in ((5, 4), (2, 1), (100, 4), (0, -1)):
            await offsets.commit("g", {T: CommittedOffset(offset)})
            assert plain(await offsets.fetch("g", [T])) == {T: CommittedOffset(offset)}
            assert topic.stored.subscription("g").cursor.mark_delete == cursor

    run(scenario)


def test_positions_survive_the_loss_of_the_broker(run: Callable) -> None:
    async def scenario(bench) -> None:
        offsets = await offsets_of(bench, broker := await bench.broker())
        topic = await broker.load(T)
        await bench.publish(await bench.producer(topic), *"abcde")
        await offsets.commit("g", {T: CommittedOffset(4, 7, "kept"), U: CommittedOffset(9)})
        again = await offsets_of(bench, await bench.broker())  # the first one is not closed: it is fenced
        assert plain(await again.fetch("g")) == {T: CommittedOffset(4, 7, "kept"), U: CommittedOffset(9)}
        refused = await offsets.commit("g", {T: CommittedOffset(1)})
        assert refused[T] is not None
        assert plain(await again.fetch("g", [T])) == {T: CommittedOffset(4, 7, "kept")}

    run(scenario)


def test_a_group_holds_back_neither_trimming_nor_expiry_nor_producers(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker(roll_entries=2)
        offsets = await offsets_of(bench, broker)
        topic = await broker.load(T)
        await topic.apply(
            replace(
                topic.policies, retention=Retention(0, 0), backlog_quota=BacklogQuota(bytes=10), message_ttl_s=1
            )
        )
        producer = await bench.producer(topic)
        await offsets.commit("g", {T: CommittedOffset(1)})
        for i in range(10):
            await bench.publish(producer, f"m{i}")
        await bench.runtime.clock.sleep(60)
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert topic.start_offset == 8
        assert topic.producers.over_quota is None
        # It is behind the start, and says so: who comes back with it is told that it is out of range.
        assert plain(await offsets.fetch("g", [T])) == {T: CommittedOffset(1)}
        assert topic.stored.subscription("g").backlog == 2

    run(scenario)


def test_a_subscription_of_other_consumers_goes_on_holding_back_when_a_group_places_it(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker(roll_entries=2)
        offsets = await offsets_of(bench, broker)
        topic = await broker.load(T)
        await topic.stored.create_subscription("g", StartAt())
        producer = await bench.producer(topic)
        for i in range(10):
            await bench.publish(producer, f"m{i}")
        assert plain(await offsets.fetch("g", [T])) == {T: CommittedOffset(0)}  # a group goes on where others were
        await offsets.commit("g", {T: CommittedOffset(5)})
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert topic.start_offset == 4

    run(scenario)


def test_another_consumer_goes_on_where_the_group_is_and_the_group_where_that_one_stopped(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        offsets = await offsets_of(bench, broker)
        topic = await broker.load(T)
        producer = await bench.producer(topic)
        await bench.publish(producer, *"abcde")
        await offsets.commit("g", {T: CommittedOffset(2, metadata="mine")})
        consumer = await bench.consumer(topic, "g")
        assert await bench.receive(consumer, 3) == ["c", "d", "e"]
        consumer.ack_up_to(3)
        assert plain(await offsets.fetch("g", [T])) == {T: CommittedOffset(4)}
        # A position that goes back delivers again, one that goes on takes nothing back.
        await offsets.commit("g", {T: CommittedOffset(1)})
        assert await bench.receive(consumer, 4) == ["b", "c", "d", "e"]
        await offsets.commit("g", {T: CommittedOffset(3)})
        await bench.publish(producer, "f")
        assert await bench.receive(consumer, 1) == ["f"]
        await consumer.close()
        shared = await bench.consumer(topic, "g", SubscriptionType.SHARED)
        assert await bench.receive(shared, 3) == ["d", "e", "f"]

    run(scenario)


def test_each_partition_that_is_refused_says_why_and_the_others_are_placed(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        offsets = await offsets_of(bench, broker)
        missing = TopicName.parse("missing")
        passing = TopicName.parse("non-persistent://public/default/passing")
        await broker.load(passing)
        results = await offsets.commit(
            "g",
            {
                T: CommittedOffset(0, metadata="x" * 4097),
                U: CommittedOffset(0),
                missing: CommittedOffset(0),
                passing: CommittedOffset(0),
            },
        )
        kinds = {part: type(why) for part, why in results.items()}
        assert kinds == {
            T: CommitTooLargeError,
            U: type(None),
            missing: TopicNotFoundError,
            passing: NotAllowedError,
        }
        assert list(await offsets.fetch("g")) == [U]
        assert list(await offsets.fetch("g", [missing, U])) == [U]

    run(scenario)


@pytest.mark.parametrize("offset", [-1, -2, -100])
def test_a_position_below_zero_is_kept_and_told_and_nothing_counts_as_read(run: Callable, offset: int) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        offsets = await offsets_of(bench, broker)
        topic = await broker.load(T)
        await bench.publish(await bench.producer(topic), "a", "b")
        for committed in (2, offset):
            assert await offsets.commit("g", {T: CommittedOffset(committed, metadata="m")}) == {T: None}
        assert await offsets.commit("new", {T: CommittedOffset(offset)}) == {T: None}
        for group in ("g", "new"):
            told = (await offsets.fetch(group))[T]
            assert isinstance(told, CommittedOffset)
            assert (told.offset, topic.stored.subscription(group).backlog) == (offset, 2)
        assert await bench.receive(await bench.consumer(topic, "g"), 2) == ["a", "b"]

    run(scenario)


def test_a_group_makes_no_subscription_where_policies_let_consumers_make_none(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        offsets = await offsets_of(bench, broker)
        broker._registry.set(Policies(auto_subscription_creation=False))
        results = await offsets.commit("g", {T: CommittedOffset(0)})
        assert isinstance(results[T], SubscriptionNotFoundError)

    run(scenario)


def test_a_member_that_lost_its_place_while_topics_were_loaded_moves_nothing(run: Callable) -> None:
    async def scenario(bench) -> None:
        offsets = await offsets_of(bench, await bench.broker())
        await offsets.commit("g", {T: CommittedOffset(5)})

        def check() -> None:
            raise IllegalGenerationError("gone")

        with pytest.raises(IllegalGenerationError):
            await offsets.commit("g", {T: CommittedOffset(3)}, check=check)
        assert plain(await offsets.fetch("g", [T])) == {T: CommittedOffset(5)}

    run(scenario)


async def prepare(offsets: GroupOffsets, group: str, producer_id: int, of_round: int = 2) -> None:
    async def joined() -> int:
        return of_round

    await offsets.prepare(group, producer_id, {T: CommittedOffset(9)}, join=joined)


def test_what_a_transaction_holds_ready_outlives_its_broker_and_late_ends_leave_it(run: Callable) -> None:
    async def scenario(bench) -> None:
        offsets = await offsets_of(bench, await bench.broker())
        await offsets.commit("g", {T: CommittedOffset(1)})
        await prepare(offsets, "g", 7)
        broker, clock = await bench.broker(), bench.runtime.clock
        await broker.load(T)
        shards = CoordinatorShards(broker, several_brokers=True)
        offsets = GroupOffsets(LocalParts(broker, clock), shards, clock)
        for commit in (True, False):  # of the transaction before
            await offsets.end("g", TransactionEnd(7, 0, commit=commit, round=1))
        assert isinstance((await offsets.fetch("g", [T], stable=True))[T], UnstablePositionError)
        await offsets.end("g", TransactionEnd(7, 0, commit=True, round=2))
        assert plain(await offsets.fetch("g", [T], stable=True)) == {T: CommittedOffset(9)}

    run(scenario)


def test_an_end_that_comes_while_a_transaction_is_asked_for_makes_the_answer_void(run: Callable) -> None:
    async def scenario(bench) -> None:
        offsets = await offsets_of(bench, await bench.broker())
        asked = 0

        async def joined() -> int:
            nonlocal asked
            asked += 1
            if asked == 1:  # it was open when it answered, and is over by the time that the answer comes
                await offsets.end("g", TransactionEnd(7, 0, commit=False, round=1))
                return 1
            raise NotInTransactionError("it is over")

        with pytest.raises(NotInTransactionError):
            await offsets.prepare("g", 7, {T: CommittedOffset(9)}, join=joined)
        assert await offsets.fetch("g", [T], stable=True) == {}

    run(scenario)


def test_positions_that_a_transaction_moves_are_unstable_until_it_is_settled(run: Callable) -> None:
    async def scenario(bench) -> None:
        offsets = await offsets_of(bench, await bench.broker())
        await offsets.commit("g", {T: CommittedOffset(1), U: CommittedOffset(2)})
        await prepare(offsets, "g", 7)
        await prepare(offsets, "g", 8)
        assert plain(await offsets.fetch("g", [T, U])) == {T: CommittedOffset(1), U: CommittedOffset(2)}
        for settled in (7, 8):
            found = plain(await offsets.fetch("g", [T, U], stable=True))
            assert isinstance(found[T], UnstablePositionError)
            assert found[U] == CommittedOffset(2)
            await offsets.end("g", TransactionEnd(settled, 0, commit=False, round=2))
        assert plain(await offsets.fetch("g", [T], stable=True)) == {T: CommittedOffset(1)}
        await offsets.end("g", TransactionEnd(8, 0, commit=True, round=2))  # once more changes nothing
        assert plain(await offsets.fetch("g", [T], stable=True)) == {T: CommittedOffset(1)}

    run(scenario)


def test_deleted_positions_are_gone_with_their_subscription_unless_others_use_it(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        offsets = await offsets_of(bench, broker)
        await offsets.commit("g", {T: CommittedOffset(1), U: CommittedOffset(2)})
        consumer = await bench.consumer(await broker.load(U), "g")
        results = await offsets.delete("g")
        assert results[T] is None
        assert isinstance(results[U], SubscriptionBusyError)
        assert list(await offsets.fetch("g")) == [U]
        assert "g" not in (await broker.load(T)).subscriptions
        await consumer.close()
        assert await offsets.delete("g", [U, T]) == {U: None, T: None}
        assert await offsets.parts("g") == []
        again = await offsets_of(bench, await bench.broker())
        assert await again.fetch("g", [T, U]) == {}

    run(scenario)


def test_asking_for_groups_that_do_not_exist_costs_no_memory(run: Callable) -> None:
    async def scenario(bench) -> None:
        offsets = await offsets_of(bench, await bench.broker())
        for number in range(10):
            assert await offsets.fetch(f"g{number}") == {}
            assert await offsets.delete(f"g{number}", [T]) == {T: None}
            await prepare(offsets, f"g{number}", 1)
            await offsets.end(f"g{number}", TransactionEnd(1, 0, commit=False, round=2))
        assert not offsets._known
        assert not any(offsets._pending._of.values())

    run(scenario)


def test_positions_on_a_deleted_topic_are_forgotten(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        offsets = await offsets_of(bench, broker)
        await offsets.commit("g", {T: CommittedOffset(1), U: CommittedOffset(2)})
        await broker.delete(T)
        assert list(await offsets.fetch("g")) == [U]
        await broker.load(T)  # another topic of the same name
        assert list(await offsets.fetch("g")) == [U]
        await broker.delete(T)
        assert await offsets.delete("g", [T]) == {T: None}
        assert await offsets.parts("g") == [U]

    run(scenario)


def test_positions_expire_by_the_moment_they_were_committed_unless_others_use_them(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        offsets = await offsets_of(bench, broker)
        clock = bench.runtime.clock
        await offsets.commit("g", {T: CommittedOffset(1)})
        await clock.sleep(100)
        await offsets.commit("g", {U: CommittedOffset(2)})
        later = clock.wall_ms()
        assert await offsets.expire("g", later - 50_000) == later
        assert list(await offsets.fetch("g")) == [U]
        await bench.consumer(await broker.load(U), "g")
        assert await offsets.expire("g", later + 1) is None
        assert list((await broker.load(U)).subscriptions) == ["g"]
        assert await offsets.parts("g") == []

    run(scenario)


def test_a_group_with_members_is_not_dropped_for_not_committing(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        offsets = await offsets_of(bench, broker)
        broker._registry.set(Policies(subscription_expiry_min=5))
        topic = await broker.load(T)
        await offsets.commit("g", {T: CommittedOffset(1)})
        members = broker._context.members
        member = ConsumerStats("m", "", Flow(), 0, 0, 0, 0, True, False, 0)
        members.set("g", [(member, [T, U])])
        await bench.runtime.clock.sleep(301)
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert list(topic.subscriptions) == ["g"]
        members.set("g", [])
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert list(topic.subscriptions) == []

    run(scenario)


@pytest.mark.parametrize("damage", [b"", b"\x01", b"\x09" + bytes(28), b"\x01" + bytes(28) + b"\xff"])
def test_a_damaged_position_is_named(run: Callable, damage: bytes) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        offsets = await offsets_of(bench, broker)
        await offsets.commit("g", {T: CommittedOffset(1), U: CommittedOffset(2)})
        (await broker.load(T)).state.put("commit/g", damage)
        found = await offsets.fetch("g")
        assert isinstance(found[T], WireError)
        assert found[U].offset == 2

    run(scenario)
