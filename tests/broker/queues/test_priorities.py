"""Levels of priority: the highest first among what is ready, whoever produced it and whoever consumes it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from weir.broker.api.consumers import StartAt, SubscribeRequest, SubscriptionType
from weir.broker.api.producers import Outgoing, ProducerRequest
from weir.model.batch import BatchFormat
from weir.model.policies import Priority
from weir.model.topics import TopicName
from weir.wire.kafka.records import Record, build_batch

ANN = "ann"
FIVE = {"arguments": {"x-max-priority": 5}}


def test_the_highest_level_comes_first_and_within_a_level_the_oldest(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**FIVE)
        for number, level in enumerate([1, 5, 0, 5, 3]):
            await stage.publish(queue, f"{level}-{number}", priority=level)
        consumer = await stage.consumer(queue)
        assert await stage.texts(consumer, 5) == ["5-1", "5-3", "3-4", "1-0", "0-2"]
        consumer.requeue([(0, 5)])
        await stage.publish(queue, "4-new", priority=4)
        assert await stage.texts(consumer, 6) == ["5-1", "5-3", "4-new", "3-4", "1-0", "0-2"]

    run(scenario)


def test_levels_beyond_the_highest_count_as_the_highest_and_those_of_plain_queues_as_none(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue, plain = await stage.declare(**FIVE), await stage.declare("plain", durable=False)
        for one in (queue, plain):
            for level in (5, 200, 4, 9):
                await stage.publish(one, str(level), priority=level)
        assert await stage.texts(await stage.consumer(queue), 4) == ["5", "200", "9", "4"]
        assert await stage.texts(await stage.consumer(plain), 4) == ["5", "200", "4", "9"]

    run(scenario)


def test_a_message_of_one_batch_overtakes_its_neighbours(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**FIVE, durable=False)
        low, high = stage.messages("a", "b"), stage.messages("c", "d", priority=2)
        both = [*low.encoded, *high.encoded]
        await queue.publish(type(low)(both))
        consumer = await stage.consumer(queue)
        (first, second) = await consumer.next(10)
        assert stage.split([first, second]) == [(2, "c", 0), (3, "d", 0), (0, "a", 0), (1, "b", 0)]

    run(scenario)


def test_a_large_backlog_is_looked_through_before_the_first_delivery(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**FIVE)
        for number in range(50):
            await stage.publish(queue, *(f"{number}.{i}" for i in range(200)))
        await stage.publish(queue, "urgent", priority=5)
        topic = await stage.topic()
        await stage.broker.broker.unload(topic.name)
        again = await stage.queues.get(ANN, "q")
        getter = await again.getter(ANN)
        assert stage.split([await getter.take()]) == [(10_000, "urgent", 0)]
        await getter.close()
        consumer = await stage.consumer(again)
        assert await stage.receive(consumer, 2) == [(10_000, "urgent", 1), (0, "0.0", 0)]

    run(scenario, tail_bytes=20_000)


def test_a_kafka_header_is_a_level_and_shared_subscriptions_of_any_name_go_by_levels(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**FIVE)
        topic = await stage.topic()
        shared = await topic.subscribe(SubscribeRequest(ANN, "others", SubscriptionType.SHARED, start=StartAt()))
        alone = await topic.subscribe(SubscribeRequest(ANN, "alone", start=StartAt()))
        producer = await topic.produce(ProducerRequest(ANN))
        headers = ([], [(b"weir-priority", b"4")], [(b"weir-priority", b"no number")])
        records = [Record(number, 0, None, b"%d" % number, said) for number, said in enumerate(headers)]
        await producer.publish(Outgoing(build_batch(records), 3, BatchFormat.KAFKA))
        await stage.publish(queue, "amqp", priority=3)
        assert [d.wanted for d in await shared.next(10)] == [0b010, None, 0b101]
        assert [d.batch.base_offset for d in await alone.next(10)] == [0, 3]
        consumer = await stage.consumer(queue)
        assert [(d.batch.base_offset, d.wanted) for d in await consumer.next(10)] == [(0, 2), (3, None), (0, 5)]

    run(scenario)


def test_shared_consumers_come_back_when_a_topic_gets_levels(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        topic = await stage.topic("t")
        shared = await topic.subscribe(SubscribeRequest(ANN, "others", SubscriptionType.SHARED, start=StartAt()))
        queue = await stage.queues.get(ANN, "t")
        await stage.publish(queue, "low")
        await stage.publish(queue, "high", priority=1)
        await shared.next(10)
        closed = asyncio.ensure_future(shared.closed())
        queue = await stage.declare("t", **FIVE)
        assert "levels" in await closed
        again = await topic.subscribe(SubscribeRequest(ANN, "others", SubscriptionType.SHARED, start=StartAt()))
        assert [text for _, text, _ in stage.split(await again.next(10))] == ["high", "low"]
        assert await stage.texts(await stage.consumer(queue), 2) == ["high", "low"]

    run(scenario)


def test_a_policy_gives_a_topic_levels_and_bounds_how_long_lower_ones_wait(run: Any) -> None:
    async def scenario(stage: Any) -> None:
        name = TopicName.parse("tasks")
        await stage.topic("tasks")
        await stage.broker.registry.change_policies(name, lambda now: replace(now, priority=Priority(9, passed=3)))
        queue = await stage.queues.look("tasks")
        await stage.publish(queue, "low")
        for number in range(8):
            await stage.publish(queue, f"high {number}", priority=9)
        topic = await stage.topic("tasks")
        while topic.policies.priority != Priority(9, passed=3):
            await stage.runtime.clock.sleep(0.1)
        request = SubscribeRequest(ANN, "s", SubscriptionType.SHARED, start=StartAt())
        consumer = await topic.subscribe(request)
        texts = await stage.texts(consumer, 9)
        assert texts[:5] == ["high 0", "high 1", "high 2", "low", "high 3"]

    run(scenario)


def test_levels_that_a_queue_was_declared_with_are_strict_unless_the_topic_s_policy_bounds_them(run: Any) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("work", arguments={"x-max-priority": 2})
        await stage.publish(queue, "low")
        await stage.publish(queue, *["high"] * 300, priority=2)
        consumer = await stage.consumer(queue)
        assert (await stage.texts(consumer, 301))[-1] == "low"
        await consumer.close()
        name = TopicName.parse("work")
        await stage.broker.registry.change_policies(name, lambda now: replace(now, priority=Priority(0, passed=3)))
        while (await stage.topic("work")).policies.priority != Priority(0, passed=3):
            await stage.runtime.clock.sleep(0.1)
        consumer = await stage.consumer(queue)
        assert (await stage.texts(consumer, 301)).index("low") == 3

    run(scenario)
