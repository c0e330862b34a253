"""Topics: what is produced is consumed, in order, and what was acknowledged stays so."""

import asyncio
from collections.abc import Callable

import pytest

from weir.broker.api.consumers import StartAt, SubscriptionType
from weir.broker.subscriptions.subscription_state import RETAINS
from weir.model.errors import (
    NotAllowedError,
    ProducerClosedError,
    SubscriptionBusyError,
    TopicClosedError,
    WeirError,
)
from weir.model.policies import LAKE_SUBSCRIPTION

EXCLUSIVE, SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED


def test_what_is_published_is_delivered_in_order(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        consumer = await bench.consumer(topic)
        assert await bench.publish(producer, "a", "b", "c", count=3) == [0, 3, 6]
        assert await bench.receive(consumer, 3) == ["a", "b", "c"]
        waiting = asyncio.ensure_future(bench.receive(consumer, 1))
        await bench.publish(producer, "d")
        assert await waiting == ["d"]

    run(scenario)


@pytest.mark.parametrize("kind", list(SubscriptionType))
@pytest.mark.parametrize("tail_bytes", [0, 1 << 20])
def test_acknowledged_messages_stay_acknowledged_after_a_restart(
    run: Callable, kind: SubscriptionType, tail_bytes: int
) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(tail_bytes=tail_bytes)
        producer = await bench.producer(topic)
        consumer = await bench.consumer(topic, type=kind)
        await bench.publish(producer, *[f"k{i}:m{i}" for i in range(10)], count=2)
        deliveries = []
        while len(deliveries) < 10:
            deliveries += await consumer.next(100)
        for d in deliveries:
            if d.batch.base_offset != 4:
                consumer.ack([(d.batch.base_offset, d.batch.end_offset)])
        consumer.ack([(5, 6)])
        await consumer.persisted()
        again = await bench.topic(tail_bytes=tail_bytes)
        (left,) = await (await bench.consumer(again, type=kind)).next(100)
        assert (left.batch.base_offset, left.wanted) == (4, 0b01)

    run(scenario)


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_position_beyond_the_end_of_the_log_moves_to_it_before_the_first_new_message(
    run: Callable, one_by_one: bool
) -> None:
    """As after `weir salvage`, or from a disk that lost what it had confirmed: else it would skip what comes."""

    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer, consumer = await bench.producer(topic), await bench.consumer(topic)
        await bench.publish(producer, "a", "b")
        consumer.ack([(0, 1)])
        subscription = topic.subscriptions[consumer.subscription]
        subscription.cursor.ack(2 if one_by_one else 0, 40)
        subscription.save()
        await consumer.persisted()
        for left in (["b", "c"] if one_by_one else ["c"], ["d"]):
            topic = await bench.topic()
            producer, consumer = await bench.producer(topic), await bench.consumer(topic)
            await bench.publish(producer, left[-1])
            assert await bench.receive(consumer, len(left), ack=True) == left
            await consumer.persisted()

    run(scenario)


def test_a_log_that_ends_before_what_the_lake_has_of_it_continues_behind_that(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        await bench.publish(await bench.producer(topic), "a", "b")
        lake = topic.ensure_subscription(LAKE_SUBSCRIPTION, StartAt(), {RETAINS: "true"})
        lake.cursor.ack(0, 5)
        lake.save()
        await lake.persisted()
        for first in (5, 6):
            topic = await bench.topic()
            assert topic.stream.end_offset == first
            assert await bench.publish(await bench.producer(topic), "c") == [first]
        assert await bench.receive(await bench.consumer(topic), 4) == ["a", "b", "c", "c"]

    run(scenario)


def test_credit_is_never_exceeded_by_more_than_a_batch(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        for kind in SubscriptionType:
            consumer = await bench.consumer(topic, f"s-{kind.value}", kind)
            await bench.publish(producer, *"abcde", count=3)
            assert [len(await consumer.next(4)), len(await consumer.next(1)), len(await consumer.next(6))] == [
                2,
                1,
                2,
            ]
            await consumer.close()

    run(scenario)


def test_cancelling_next_loses_nothing(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        for kind in SubscriptionType:
            consumer = await bench.consumer(topic, f"s-{kind.value}", kind, start=StartAt(latest=True))
            waiting = asyncio.ensure_future(consumer.next(100))
            await bench.runtime.clock.sleep(0)
            receipt = producer.publish(bench.out("x:1"))
            while not consumer.inbox:
                await bench.runtime.clock.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await receipt
            (delivery,) = await consumer.next(100)
            assert (bytes(delivery.batch.payload), delivery.redelivered) == (b"x:1", 0)
            assert await bench.nothing(consumer)
            await consumer.close()

    run(scenario)


def test_an_exclusive_subscription_takes_one_consumer_and_its_own_type_only(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        first = await bench.consumer(topic)
        with pytest.raises(SubscriptionBusyError):
            await bench.consumer(topic, name="c2")
        with pytest.raises(SubscriptionBusyError):
            await bench.consumer(topic, name="c2", type=SHARED)
        await first.close()
        await bench.consumer(topic, name="c2", type=SHARED)

    run(scenario)


def test_shared_consumers_take_turns_and_get_what_one_leaves(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        one = await bench.consumer(topic, type=SHARED, name="one")
        two = await bench.consumer(topic, type=SHARED, name="two")
        waiting = [asyncio.ensure_future(c.next(100)) for c in (one, two)]
        await bench.runtime.clock.sleep(0)
        await bench.publish(producer, *[f"m{i}" for i in range(10)])
        mine, others = [bench.texts(await w) for w in waiting]
        assert sorted(mine + others) == [f"m{i}" for i in range(10)]
        assert len(mine) == len(others) == 5
        await two.close()
        assert await bench.receive(one, 5) == sorted(others)
        assert await bench.nothing(one)

    run(scenario)


def test_a_topic_that_moved_closes_everyone(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer, consumer = await bench.producer(topic), await bench.consumer(topic)
        await bench.publish(producer, "a")
        again = await bench.topic()
        with pytest.raises(WeirError):
            await producer.publish(bench.out("ghost"))
        await producer.closed()
        await consumer.closed()
        with pytest.raises(ProducerClosedError):
            await producer.publish(bench.out("ghost"))
        with pytest.raises(TopicClosedError):
            await bench.consumer(topic)
        await bench.publish(await bench.producer(again), "b")
        assert await bench.receive(await bench.consumer(again, "other"), 2) == ["a", "b"]

    run(scenario)


def test_seek_moves_the_cursor_for_good_and_closes_the_consumers(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        consumer = await bench.consumer(topic)
        await bench.publish(producer, *"abcd", count=2)
        await bench.receive(consumer, 4, ack=True)
        await consumer.seek(3)
        assert "moved" in await consumer.closed()
        again = await bench.topic()
        deliveries = await (await bench.consumer(again)).next(100)
        assert bench.texts(deliveries) == ["b", "c", "d"]
        assert deliveries[0].wanted == 0b10

    run(scenario)


def test_cumulative_acknowledgement_is_not_for_shared_subscriptions(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        await bench.publish(producer, *"abc")
        one = await bench.consumer(topic, "one")
        one.ack_up_to(1)
        assert topic.stored.subscription("one").backlog == 1
        many = await bench.consumer(topic, "many", type=SHARED)
        with pytest.raises(NotAllowedError):
            many.ack_up_to(1)

    run(scenario)


def test_positions_are_arithmetic_on_offsets(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(roll_entries=2)
        assert topic.position_of(0) == (-1, -1)
        producer = await bench.producer(topic)
        receipts = [await producer.publish(bench.out(f"m{i}", count=3)) for i in range(6)]
        for receipt in receipts:
            assert topic.position_of(receipt.offset) == receipt.position
            assert topic.offset_of(*receipt.position) == receipt.offset
        assert topic.offset_of(-1, -1) == 0
        assert topic.offset_of(2**63 - 1, 2**63 - 1) == topic.end_offset == 18
        last = await topic.last_position()
        assert (last.ledger, last.entry, last.batch_index) == (*receipts[-1].position, 2)
        await topic.stream.trim(8)
        assert topic.offset_of(*receipts[0].position) == 8

    run(scenario)


def test_a_broker_loads_a_topic_once_for_all_who_ask(run: Callable) -> None:
    async def scenario(bench) -> None:
        from weir.model.topics import TopicName

        broker = await bench.broker()
        name = TopicName.parse("t")
        topics = await asyncio.gather(*[broker.topic(name, role="r") for _ in range(5)])
        assert all(topic is topics[0] for topic in topics)
        await broker.unload(name)
        again = await broker.topic(name, role="r")
        assert again is not topics[0]
        await bench.topic()  # another broker takes it over
        producer = await bench.producer(again)
        with pytest.raises(WeirError):
            await bench.publish(producer, "x")
        third = await broker.topic(name, role="r")
        await bench.publish(await bench.producer(third), "y")
        await broker.close()

    run(scenario)
