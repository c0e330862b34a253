"""Order by message group: what fails holds up its group and nothing else, in bounded attempts."""

from collections.abc import Callable, Sequence

import pytest

from weir.broker.api import SubscriptionType
from weir.broker.settings import BrokerSettings
from weir.model.errors import SubscriptionBusyError
from weir.model.fifo import FIFO_PROPERTY
from weir.model.retry import MAX_DELIVERIES, SCHEDULE

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
