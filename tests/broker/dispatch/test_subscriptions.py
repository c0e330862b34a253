"""Subscriptions on a real stream: cursors across restarts, redelivery, limits, failover, key-shared."""

import asyncio
from collections.abc import Callable

import pytest

from weir.broker.api.consumers import KeyShared, StartAt, SubscriptionType
from weir.model.errors import HashRangesError, SubscriptionBusyError, SubscriptionNotFoundError, TooManyError
from weir.model.policies import Policies, Rate

SHARED, FAILOVER, KEY = SubscriptionType.SHARED, SubscriptionType.FAILOVER, SubscriptionType.KEY_SHARED
EXCLUSIVE = SubscriptionType.EXCLUSIVE


def test_a_hundred_thousand_holes_survive_a_restart(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        await bench.publish(producer, *[f"b{i}" for i in range(200)], count=1000)
        consumer = await bench.consumer(topic, type=SHARED)
        consumer.ack([(offset, offset + 1) for offset in range(1, 200_000, 2)])
        await consumer.persisted()
        again = await bench.topic()
        subscription = again.stored.subscription("s")
        assert subscription.cursor.holes == 100_000
        assert subscription.backlog == 100_000
        (first, *_) = await (await bench.consumer(again, type=SHARED)).next(500)
        assert first.wanted == int("01" * 500, 2)

    run(scenario)


def test_redelivered_messages_come_first_in_order_and_are_counted(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        await bench.publish(producer, *"abcdef")
        consumer = await bench.consumer(topic, type=SHARED)
        assert await bench.receive(consumer, 4, 4) == ["a", "b", "c", "d"]
        consumer.redeliver([(3, 4), (1, 2)])
        found = []
        while len(found) < 4:
            found += await consumer.next(100)
        assert [(bytes(d.batch.payload), d.redelivered) for d in found] == [
            (b"b", 1),
            (b"d", 1),
            (b"e", 0),
            (b"f", 0),
        ]
        consumer.ack([(0, 1), (2, 6)])
        consumer.redeliver()
        (only,) = await consumer.next(100)
        assert (bytes(only.batch.payload), only.redelivered) == (b"b", 2)
        await consumer.close()
        other = await bench.consumer(topic, type=SHARED, name="other")
        (only,) = await other.next(100)
        assert only.redelivered == 2
        other.ack([(1, 2)])
        assert topic.stored.subscription("s").backlog == 0

    run(scenario)


def test_redelivery_of_an_exclusive_consumer_goes_back_to_the_first_that_is_not_acknowledged(
    run: Callable,
) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        await bench.publish(producer, *"abcd")
        consumer = await bench.consumer(topic)
        await bench.receive(consumer, 3, 3)
        consumer.ack([(0, 1), (2, 3)])
        consumer.redeliver([(1, 2)])
        found = []
        while len(found) < 2:
            found += await consumer.next(100)
        assert [(bytes(d.batch.payload), d.redelivered) for d in found] == [(b"b", 1), (b"d", 0)]

    run(scenario)


def test_nothing_more_is_delivered_beyond_the_limits_on_unacknowledged_messages(run: Callable) -> None:
    async def scenario(bench) -> None:
        policies = Policies(max_unacked_per_consumer=3, max_unacked_per_subscription=5)
        topic = await bench.topic(policies=policies)
        producer = await bench.producer(topic)
        await bench.publish(producer, *"abcdefgh")
        one = await bench.consumer(topic, type=SHARED, name="one")
        two = await bench.consumer(topic, type=SHARED, name="two")
        assert await bench.receive(one, 3) == ["a", "b", "c"]
        assert await bench.nothing(one)
        assert await bench.receive(two, 2) == ["d", "e"]
        waiting = asyncio.ensure_future(two.next(100))
        await bench.runtime.clock.sleep(1)
        assert not waiting.done()
        one.ack([(0, 2)])
        assert bench.texts(await waiting) == ["f"]

    run(scenario)


def test_failover_serves_the_best_priority_and_announces_changes(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        low = await bench.consumer(topic, type=FAILOVER, name="a", priority=1)
        assert low.active
        await bench.publish(producer, "m0", "m1")
        assert await bench.receive(low, 2) == ["m0", "m1"]
        low.ack_up_to(0)
        changed = asyncio.ensure_future(low.active_change(True))
        high = await bench.consumer(topic, type=FAILOVER, name="b", priority=0)
        assert await changed is False
        assert high.active
        assert await bench.nothing(low)
        assert await bench.receive(high, 1) == ["m1"]
        await high.close()
        assert low.active
        assert await bench.receive(low, 1) == ["m1"]

    run(scenario)


def test_partitions_of_a_topic_are_divided_among_failover_consumers(run: Callable) -> None:
    async def scenario(bench) -> None:
        active = []
        for partition in range(4):
            topic = await bench.topic(f"t-partition-{partition}")
            consumers = [await bench.consumer(topic, type=FAILOVER, name=name) for name in ("x", "y")]
            active.append([consumer.name for consumer in consumers if consumer.active])
        assert active == [["x"], ["y"], ["x"], ["y"]]

    run(scenario)


def test_a_key_stays_with_its_consumer_until_that_has_acknowledged_it(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        keys = [f"k{i}" for i in range(20)]
        first = await bench.consumer(topic, type=KEY, name="first")
        await bench.publish(producer, *[f"{key}:1" for key in keys])
        await bench.receive(first, 20)
        second = await bench.consumer(topic, type=KEY, name="second")
        await bench.publish(producer, *[f"{key}:2" for key in keys])
        mine = bench.texts(await first.next(100))
        assert 0 < len(mine) < 20
        assert await bench.nothing(second)
        first.ack([(0, 20)])
        theirs = bench.texts(await second.next(100))
        assert sorted(mine + theirs) == sorted(f"{key}:2" for key in keys)

    run(scenario)


def test_sticky_ranges_that_overlap_are_refused_and_keys_between_them_wait(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        low = KeyShared(sticky=True, ranges=[(0, 32767)])
        first = await bench.consumer(topic, type=KEY, name="first", key_shared=low)
        with pytest.raises(HashRangesError):
            await bench.consumer(topic, type=KEY, name="second", key_shared=low)
        with pytest.raises(SubscriptionBusyError):
            await bench.consumer(topic, type=KEY, name="second")
        await bench.publish(producer, *[f"k{i}:m" for i in range(20)])
        mine = bench.texts(await first.next(100))
        high = KeyShared(sticky=True, ranges=[(32768, 65535)])
        second = await bench.consumer(topic, type=KEY, name="second", key_shared=high)
        theirs = bench.texts(await second.next(100))
        assert len(mine) + len(theirs) == 20
        assert min(len(mine), len(theirs)) > 0

    run(scenario)


def test_a_batch_of_many_keys_is_shared_by_masks(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        one = await bench.consumer(topic, type=KEY, name="one")
        two = await bench.consumer(topic, type=KEY, name="two")
        await bench.publish(producer, " ".join(f"k{i}:x" for i in range(12)), count=12)
        (mine,), (theirs,) = await one.next(100), await two.next(100)
        assert mine.wanted & theirs.wanted == 0
        assert mine.wanted | theirs.wanted == (1 << 12) - 1
        one.ack([(i, i + 1) for i in range(12) if mine.wanted >> i & 1])
        two.redeliver()
        (again,) = await two.next(100)
        assert (again.wanted, again.redelivered) == (theirs.wanted, 1)

    run(scenario)


def test_subscriptions_that_are_not_durable_end_with_their_consumer(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        await bench.publish(producer, *"abc")
        reader = await bench.consumer(topic, "reader", durable=False, start=StartAt(offset=1))
        assert await bench.receive(reader, 2) == ["b", "c"]
        await reader.seek(0)
        assert "moved" in await reader.closed()
        reader = await bench.consumer(topic, "reader", durable=False, start=StartAt(latest=True))
        assert await bench.receive(reader, 3) == ["a", "b", "c"]
        await reader.close()
        assert topic.subscriptions == {}
        assert not any(
            bookie.ledgers.keys() - {s.ledger_id for s in topic.stream.chain.spans}
            for bookie in bench.bookies.bookies.values()
        )

    run(scenario)


def test_unsubscribing_ends_the_subscription_for_good(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        one = await bench.consumer(topic, type=SHARED, name="one")
        two = await bench.consumer(topic, type=SHARED, name="two")
        with pytest.raises(SubscriptionBusyError):
            await one.unsubscribe()
        await two.close()
        await one.unsubscribe()
        assert "unsubscribed" in await one.closed()
        assert (await bench.topic()).subscriptions == {}

    run(scenario)


def test_limits_on_consumers_and_subscriptions_hold(run: Callable) -> None:
    async def scenario(bench) -> None:
        policies = Policies(max_consumers=2, max_subscriptions=2, auto_subscription_creation=True)
        topic = await bench.topic(policies=policies)
        await bench.consumer(topic, "one", type=SHARED)
        await bench.consumer(topic, "one", type=SHARED)
        with pytest.raises(TooManyError):
            await bench.consumer(topic, "one", type=SHARED)
        await topic.stored.create_subscription("two", StartAt(latest=True))
        with pytest.raises(TooManyError):
            await topic.stored.create_subscription("three", StartAt(latest=True))

    run(scenario)


def test_consumers_make_no_subscription_where_policies_forbid_it(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=Policies(auto_subscription_creation=False))
        with pytest.raises(SubscriptionNotFoundError):
            await bench.consumer(topic)
        await bench.consumer(topic, durable=False)
        await topic.stored.create_subscription("made", StartAt(latest=True), properties={"k": "v"})
        await bench.consumer(topic, "made")
        assert (await bench.topic()).stored.subscription("made").properties == {"k": "v"}

    run(scenario)


def test_the_dispatch_rate_slows_delivery_down(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=Policies(subscription_dispatch_rate=Rate(messages=10)))
        producer = await bench.producer(topic)
        await bench.publish(producer, *[f"m{i}" for i in range(50)])
        for kind in SubscriptionType:
            consumer = await bench.consumer(topic, f"s-{kind.value}", type=kind)
            began = bench.runtime.clock.monotonic()
            await bench.receive(consumer, 50, 5)
            assert 3 <= bench.runtime.clock.monotonic() - began <= 5

    run(scenario)


def test_skip_look_and_reset_move_the_cursor(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        moments = []
        for text in "abcd":
            moments.append(bench.runtime.clock.wall_ms())
            await bench.publish(producer, text, count=2)
            await bench.runtime.clock.sleep(10)
        subscription = await topic.stored.create_subscription("s", StartAt())
        subscription.ack(None, [(2, 3)])
        batch, index = (await subscription.waiting(3))[2]
        assert (bytes(batch.payload), index) == (b"b", 1)
        assert len(await subscription.waiting(8)) == 7
        assert subscription.skip(3) == 3
        assert (subscription.cursor.mark_delete, subscription.backlog) == (3, 4)
        await subscription.seek(await topic.offset_at(moments[1]))
        assert await bench.receive(await bench.consumer(topic), 3) == ["b", "c", "d"]
        assert subscription.skip_all() == 6
        assert subscription.backlog == 0

    run(scenario)


def test_what_was_delivered_before_a_seek_is_acknowledged_no_more(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        for kind in (SHARED, EXCLUSIVE):
            await bench.publish(producer, *"abc")
            consumer = await bench.consumer(topic, type=kind, name="early", subscription=kind.value)
            await consumer.next(100)
            await consumer.seek(0)
            consumer.ack([(0, 1)])  # the rest of a command that is acknowledged in turns, say
            if kind is EXCLUSIVE:
                consumer.ack_up_to(2)
            again = await bench.consumer(topic, type=kind, name="late", subscription=kind.value)
            assert bench.texts(await again.next(100))[:3] == ["a", "b", "c"]

    run(scenario)


def test_one_call_brings_a_bounded_number_of_batches_however_small_they_are(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        await bench.publish(producer, *["x"] * 1500)
        for kind in (SHARED, EXCLUSIVE, KEY):
            consumer = await bench.consumer(topic, type=kind, name="c", subscription=kind.value)
            found = [len(await consumer.next(10_000)) for _ in range(3)]
            assert sum(found) <= 1500
            assert max(found) <= 512

    run(scenario)
