"""Key-shared subscriptions with a retry policy: each key to its consumer, in order; what fails holds it up."""

from collections.abc import Callable, Sequence

import pytest

from weir.broker.api.consumers import KeyShared, SubscriptionType
from weir.model.errors import SubscriptionBusyError
from weir.model.retry import MAX_DELIVERIES, SCHEDULE

SLOW = {SCHEDULE: "1h", MAX_DELIVERIES: "0"}
KEYS = "abcdefgh"


async def consumer(bench, topic, name: str = "c", properties: dict[str, str] = SLOW, **how):
    return await bench.consumer(
        topic, type=SubscriptionType.KEY_SHARED, name=name, subscription_properties=properties, **how
    )


async def get(one, count: int, credit: int = 100) -> dict[str, Sequence[tuple[int, int]]]:
    """So many messages, in the order in which they come, with their offsets."""
    found: dict[str, Sequence[tuple[int, int]]] = {}
    while len(found) < count:
        for delivery in await one.next(credit):
            words = bytes(delivery.batch.payload).decode().split()
            for index in range(delivery.batch.count):
                if delivery.wanted is None or delivery.wanted >> index & 1:
                    offset = delivery.batch.base_offset + index
                    found[words[index]] = [(offset, offset + 1)]
    return found


def test_a_message_that_fails_waits_by_the_schedule_and_holds_up_its_key_only(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer, one = await bench.producer(topic), await consumer(bench, topic)
        await bench.publish(producer, "a:1", "b:1", "a:2", "b:2")
        got = await get(one, 2)
        assert list(got) == ["a:1", "b:1"]
        one.redeliver(got["a:1"])
        one.ack(got["b:1"])
        assert list(await get(one, 1)) == ["b:2"]
        assert await bench.nothing(one)
        await bench.runtime.clock.sleep(3600)
        again = await get(one, 1)
        assert list(again) == ["a:1"]
        one.ack(again["a:1"])
        assert list(await get(one, 1)) == ["a:2"]
        await topic.close()

    run(scenario)


def test_a_key_has_one_consumer_and_another_when_that_is_gone(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        first, second = await consumer(bench, topic, "first"), await consumer(bench, topic, "second")
        await bench.publish(producer, *(f"{key}:1" for key in KEYS))
        mine = await get(first, 1)
        theirs = await get(second, len(KEYS) - len(mine))
        assert mine.keys() | theirs.keys() == {f"{key}:1" for key in KEYS}
        for one, got in ((first, mine), (second, theirs)):
            for offsets in got.values():
                one.ack(offsets)
        await bench.publish(producer, *(f"{key}:2" for key in KEYS))
        assert {word[0] for word in await get(first, len(mine))} == {word[0] for word in mine}
        got = await get(second, len(theirs))
        assert {word[0] for word in got} == {word[0] for word in theirs}
        for offsets in got.values():
            second.ack(offsets)
        await first.close()
        assert set(await get(second, len(mine))) == {f"{word[0]}:2" for word in mine}
        await topic.close()

    run(scenario)


def test_a_consumer_without_credit_holds_up_nobody_elses_keys(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        low, high = KeyShared(True, ((0, 32767),)), KeyShared(True, ((32768, 65535),))
        first = await consumer(bench, topic, "first", key_shared=low)
        second = await consumer(bench, topic, "second", key_shared=high)
        with pytest.raises(SubscriptionBusyError):
            await consumer(bench, topic, "third")
        await bench.publish(producer, *(f"{key}:1" for key in KEYS))
        theirs = await get(second, 1)  # the first asks for nothing
        one_by_one: dict[str, Sequence[tuple[int, int]]] = {}
        while len(one_by_one) < len(KEYS) - len(theirs):
            one_by_one |= await get(first, 1, credit=1)
        assert one_by_one.keys() | theirs.keys() == {f"{key}:1" for key in KEYS}
        await topic.close()

    run(scenario)


def test_a_policy_that_comes_later_holds_for_consumers_that_come_back(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer, before = await bench.producer(topic), await consumer(bench, topic, properties={})
        await bench.publish(producer, "a:1", "a:2")
        assert list(await get(before, 2)) == ["a:1", "a:2"]
        topic.stored.subscription("s").set_properties(SLOW)
        assert not before.open
        assert list(await get(await consumer(bench, topic), 1)) == ["a:1"]
        await topic.close()

    run(scenario)
