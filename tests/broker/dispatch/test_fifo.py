"""Order by message group: what fails holds up its group and nothing else, in bounded attempts."""

from collections.abc import Callable, Sequence

import pytest

from weir.broker.api.consumers import SubscriptionType
from weir.broker.settings import BrokerSettings
from weir.model.errors import SubscriptionBusyError
from weir.model.retry import MAX_DELIVERIES, SCHEDULE
from weir.model.subscriptions import FIFO_PROPERTY

FIFO = {FIFO_PROPERTY: "true"}
AT_ONCE = {**FIFO, SCHEDULE: "0s", MAX_DELIVERIES: "0"}


async def consumer(bench, topic, name: str = "c", properties: dict[str, str] = AT_ONCE):
    return await bench.consumer(topic, type=SubscriptionType.SHARED, name=name, subscription_properties=properties)


async def get(bench, consumer, credit: int = 100) -> dict[str, Sequence[tuple[int, int]]]:
    """What the next delivery brings: each message and its offset."""
    found = {}
    for delivery in await consumer.next(credit):
        batch = delivery.batch
        words = bytes(batch.payload).decode().split()
        for index in range(batch.count):
            if delivery.wanted is None or delivery.wanted >> index & 1:
                offset = batch.base_offset + index
                found[words[index]] = [(offset, offset + 1)]
    return found


def test_of_each_group_one_message_is_out_and_other_groups_go_on(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer, one = await bench.producer(topic), await consumer(bench, topic)
        await bench.publish(producer, "a:1", "a:2", "b:1", "plain", "a:3", "plain")
        got = await get(bench, one)
        assert list(got) == ["a:1", "b:1", "plain"]
        one.ack(got["b:1"])
        await bench.publish(producer, "b:2")
        again = await get(bench, one)
        assert list(again) == ["b:2"]
        one.redeliver(got["a:1"])
        one.ack(again["b:2"])
        back = await get(bench, one)
        assert list(back) == ["a:1"]
        one.ack(back["a:1"])
        assert list(await get(bench, one)) == ["a:2"]
        assert await bench.nothing(one)
        await topic.close()

    run(scenario)


def test_consumers_share_the_groups_and_what_one_leaves_is_next(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer, first, second = (
            await bench.producer(topic),
            await consumer(bench, topic, "first"),
            await consumer(bench, topic, "second"),
        )
        await bench.publish(producer, "a:1", "a:2")
        got = await get(bench, first)
        assert list(got) == ["a:1"]
        assert await bench.nothing(second)
        await first.close(failed=True)
        got = await get(bench, second)
        assert list(got) == ["a:1"]
        second.ack(got["a:1"])
        assert list(await get(bench, second)) == ["a:2"]
        await topic.close()

    run(scenario)


def test_messages_of_one_batch_may_be_of_different_groups(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer, one = await bench.producer(topic), await consumer(bench, topic)
        await bench.publish(producer, "a:1 b:1 a:2", count=3)
        got = await get(bench, one)
        assert list(got) == ["a:1", "b:1"]
        one.ack(got["a:1"])
        assert list(await get(bench, one)) == ["a:2"]
        await topic.close()

    run(scenario)


def test_without_a_policy_a_failing_message_waits_a_second_and_does_not_hold_up_its_group_for_ever(
    run: Callable,
) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        one = await consumer(bench, topic, properties=FIFO)
        retry = topic.subscriptions["s"].retry
        assert (retry.max_deliveries, retry.delay_ms(1)) == (16, 1000)
        await one.close()
        await topic.close()

    run(scenario)


def test_order_holds_over_another_broker_for_what_waits_to_be_tried_again(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        slow = {**FIFO, SCHEDULE: "1h", MAX_DELIVERIES: "0"}
        producer, one = await bench.producer(topic), await consumer(bench, topic, properties=slow)
        await bench.publish(producer, "a:1", "a:2", "b:1")
        got = await get(bench, one)
        one.redeliver(got["a:1"])
        await topic.close()
        topic = await bench.topic()
        one = await consumer(bench, topic, properties=slow)
        assert list(await get(bench, one)) == ["b:1"]
        assert await bench.nothing(one)
        await bench.runtime.clock.sleep(3600)
        assert list(await get(bench, one)) == ["a:1"]
        await topic.close()

    run(scenario)


def test_what_waits_is_bounded_and_reading_goes_on_when_there_is_room(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(broker=BrokerSettings(look_ahead=2))
        producer, one = await bench.producer(topic), await consumer(bench, topic)
        await bench.publish(producer, "a:1", "b:1", "c:1", "d:1")
        got = await get(bench, one)
        assert list(got) == ["a:1", "b:1"]
        one.ack(got["b:1"])
        got |= await get(bench, one)
        assert list(got) == ["a:1", "b:1", "c:1"]
        one.ack(got["a:1"])
        assert list(await get(bench, one)) == ["d:1"]
        await topic.close()

    run(scenario)


def test_consumers_agree_on_the_order(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        one = await consumer(bench, topic)
        with pytest.raises(SubscriptionBusyError, match="another order"):
            await consumer(bench, topic, "other", {FIFO_PROPERTY: "false"})
        await one.close()
        said = await bench.consumer(
            topic, type=SubscriptionType.SHARED, name="other", properties={FIFO_PROPERTY: "false"}
        )
        assert topic.subscriptions["s"].properties[FIFO_PROPERTY] == "false"
        await said.close()
        await topic.close()

    run(scenario)


TURNS = {"per_message": True, "turns": True}


async def turns(bench, topic, properties: dict[str, str] = AT_ONCE):
    return await bench.consumer(topic, type=SubscriptionType.SHARED, subscription_properties=properties, **TURNS)


def test_a_turn_brings_several_messages_of_a_group_and_the_next_when_all_are_acknowledged(
    run: Callable,
) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer, one = await bench.producer(topic), await turns(bench, topic)
        await bench.publish(producer, "a:1", "a:2", "b:1", "a:3", "a:4", "plain")
        got = await get(bench, one, 4)
        assert list(got) == ["a:1", "a:2", "b:1", "a:3"]
        assert list(await get(bench, one)) == ["plain"]
        one.ack(got["a:3"])
        one.ack(got["a:1"])
        assert await bench.nothing(one)
        one.ack(got["a:2"])
        assert list(await get(bench, one)) == ["a:4"]
        await topic.close()

    run(scenario)


def test_what_fails_of_a_turn_comes_with_all_that_is_not_acknowledged_in_order(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer, one = await bench.producer(topic), await turns(bench, topic)
        await bench.publish(producer, "a:1", "a:2", "a:3", "a:4")
        got = await get(bench, one, 3)
        one.ack(got["a:2"])
        one.redeliver(got["a:3"])
        assert await bench.nothing(one)
        one.redeliver(got["a:1"], delay_ms=60_000)
        assert await bench.nothing(one)
        await bench.runtime.clock.sleep(60)
        deliveries = await one.next(100)
        assert [(bytes(each.batch.payload), each.redelivered) for each in deliveries] == [
            (b"a:1", 1),
            (b"a:3", 1),
            (b"a:4", 0),
        ]
        await topic.close()

    run(scenario)


def test_what_a_turn_has_is_given_back_without_an_attempt_and_in_its_place(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer, one = await bench.producer(topic), await turns(bench, topic)
        await bench.publish(producer, "a:1", "a:2", "a:3")
        first, *others = await one.next(3)
        one.give_back(others)
        assert await bench.nothing(one)
        one.ack([(first.batch.base_offset, first.batch.end_offset)])
        again = await one.next(3)
        assert [(bytes(each.batch.payload), each.redelivered) for each in again] == [(b"a:2", 0), (b"a:3", 0)]
        await one.close(failed=True)
        one.give_back(again)
        other = await turns(bench, topic)
        again = await other.next(3)
        assert [(bytes(each.batch.payload), each.redelivered) for each in again] == [(b"a:2", 1), (b"a:3", 1)]
        await topic.close()

    run(scenario)


def test_order_holds_over_another_broker_for_what_of_a_turn_waits_to_be_tried_again(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        slow = {**FIFO, SCHEDULE: "1h", MAX_DELIVERIES: "0"}
        producer, one = await bench.producer(topic), await turns(bench, topic, slow)
        await bench.publish(producer, "a:1", "a:2", "a:3")
        got = await get(bench, one, 3)
        one.redeliver(got["a:2"])
        await topic.close()
        topic = await bench.topic()
        one = await turns(bench, topic, slow)
        got = await get(bench, one)
        assert list(got) == ["a:1"]
        one.ack(got["a:1"])
        assert await bench.nothing(one)
        await bench.runtime.clock.sleep(3600)
        assert list(await get(bench, one)) == ["a:2", "a:3"]
        await topic.close()

    run(scenario)


def test_two_consumers_never_share_a_turn(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        one, other = await turns(bench, topic), await turns(bench, topic)
        await bench.publish(producer, "a:1", "a:2")
        got = await get(bench, one)
        assert list(got) == ["a:1"]
        assert await bench.nothing(other)
        await topic.close()

    run(scenario)
