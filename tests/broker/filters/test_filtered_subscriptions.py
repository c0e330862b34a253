"""Subscriptions with filters on a real stream: what passes is delivered, the rest counts as acknowledged."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from weir.broker.api.consumers import SubscriptionType
from weir.broker.api.producers import Outgoing
from weir.model.batch import BatchFormat, indices_of
from weir.model.errors import FilterError, SubscriptionBusyError
from weir.model.messages import Message
from weir.model.subscriptions import MessageFilter
from weir.wire.formats.messages import decode_messages, encode_messages

RED = MessageFilter("color = 'red'")
TYPES = [*SubscriptionType]


def colored(*colors: str) -> Outgoing:
    """A batch with a message of each color; its value says the same."""
    messages = [
        Message(color.encode(), color.encode(), [("color", color.encode()), ("TAGS", color[:1].encode())])
        for color in colors
    ]
    return Outgoing(encode_messages(messages), len(messages), BatchFormat.MESSAGES)


def seen(deliveries: Sequence[Any]) -> list[tuple[int, str]]:
    """Offset and color of each message that is wanted."""
    found = []
    for delivery in deliveries:
        messages = decode_messages(delivery.batch.payload)
        at = range(len(messages)) if delivery.wanted is None else indices_of(delivery.wanted)
        found += [(delivery.batch.base_offset + index, bytes(messages[index].value).decode()) for index in at]
    return found


async def until(consumer: Any, count: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    while len(found) < count:
        found += seen(await consumer.next(1000))
    return sorted(found)


@pytest.mark.parametrize("kind", TYPES)
def test_what_a_filter_leaves_out_is_acknowledged_and_counted(run: Callable, kind: SubscriptionType) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        for batch in (colored("red", "blue", "red"), colored("blue"), colored("blue", "green"), colored("red")):
            await producer.publish(batch)
        consumer = await bench.consumer(topic, type=kind, filter=RED)
        found = await until(consumer, 3)
        assert found == [(0, "red"), (2, "red"), (6, "red")]
        subscription = topic.stored.subscription("s")
        assert (subscription.filtered, subscription.backlog) == (4, 3)
        consumer.ack([(0, 1), (2, 3), (6, 7)])
        assert (subscription.backlog, subscription.cursor.mark_delete) == (0, 6)
        await consumer.persisted()
        again = await bench.topic()
        assert again.stored.subscription("s").cursor.mark_delete == 6

    run(scenario)


def test_a_filter_is_the_subscriptions_and_survives_a_restart(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        await bench.consumer(topic, properties={}, subscription_properties={"weir.filter.tags": "r || g"})
        producer = await bench.producer(topic)
        await producer.publish(colored("red", "blue", "green"))
        again = await bench.topic()
        found = await until(await bench.consumer(again), 2)
        assert [color for _, color in found] == ["red", "green"]

    run(scenario)


def test_a_topic_of_which_a_filter_leaves_out_all_is_acknowledged_whole_in_turns(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        for _ in range(40):
            await producer.publish(colored(*["blue"] * 50))
        await producer.publish(colored(*["blue"] * 3000, "red"))  # looked at in steps
        consumer = await bench.consumer(topic, type=SubscriptionType.SHARED, filter=RED)
        assert await until(consumer, 1) == [(5000, "red")]
        assert topic.stored.subscription("s").filtered == 5000
        assert topic.stored.subscription("s").cursor.mark_delete == 4999

    run(scenario)


def test_a_wrong_filter_is_refused_before_a_subscription_is_made(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        with pytest.raises(FilterError, match="position 8"):
            await bench.consumer(topic, filter=MessageFilter("color = "))
        assert not topic.subscriptions

    run(scenario)


def test_consumers_of_one_subscription_have_one_filter_that_the_next_may_change(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        shared = SubscriptionType.SHARED
        first = await bench.consumer(topic, type=shared, filter=RED)
        await bench.consumer(topic, type=shared, name="same", filter=RED)
        silent = await bench.consumer(topic, type=shared, name="silent")
        with pytest.raises(SubscriptionBusyError, match="another filter: color = 'red'"):
            await bench.consumer(topic, type=shared, name="other", filter=MessageFilter("color = 'blue'"))
        for consumer in [*topic.subscriptions["s"].consumers]:
            await consumer.close()
        assert first.open is silent.open is False
        other = await bench.consumer(topic, type=shared, name="other", filter=MessageFilter("color = 'blue'"))
        await (await bench.producer(topic)).publish(colored("red", "blue"))
        assert await until(other, 1) == [(1, "blue")]
        topic.stored.subscription("s").set_properties({"weir.filter.tags": "g"})
        await (await bench.producer(topic)).publish(colored("red", "blue", "green"))
        assert await until(other, 1) == [(4, "green")]

    run(scenario)


def test_a_batch_that_nobody_can_look_into_passes_every_filter(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        await bench.publish(producer, "no metadata here", count=2)
        consumer = await bench.consumer(topic, filter=RED)
        (only,) = await consumer.next(10)
        assert only.wanted is None
        assert topic.stored.subscription("s").filtered == 0

    run(scenario)


def test_many_subscriptions_look_into_a_batch_once(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    from weir.broker.filters import message_filter

    looked: list[int] = []
    real = message_filter.reading_heads
    monkeypatch.setattr(
        message_filter, "reading_heads", lambda batch: looked.append(batch.base_offset) or real(batch)
    )

    async def scenario(bench) -> None:
        topic = await bench.topic()
        consumers = [
            await bench.consumer(topic, f"s{n}", filter=MessageFilter(f"color = 'c{n % 3}'")) for n in range(30)
        ]
        await (await bench.producer(topic)).publish(colored("c0", "c1", "c2"))
        for n, consumer in enumerate(consumers):
            assert await until(consumer, 1) == [(n % 3, f"c{n % 3}")]

    run(scenario)
    assert looked == [0]


@pytest.mark.parametrize("per_message", [False, True])
@pytest.mark.parametrize("kind", TYPES)
def test_what_comes_again_passes_the_filter_of_now(
    run: Callable, kind: SubscriptionType, *, per_message: bool
) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        how = {"type": kind, "per_message": per_message and kind is SubscriptionType.SHARED}
        await (await bench.producer(topic)).publish(colored("red", "blue", "red"))
        before = await bench.consumer(topic, filter=RED, **how)
        assert await until(before, 2) == [(0, "red"), (2, "red")]
        await before.close()
        after = await bench.consumer(topic, name="after", filter=MessageFilter("color = 'blue'"), **how)
        await (await bench.producer(topic)).publish(colored("red", "blue"))
        assert await until(after, 1) == [(4, "blue")]
        after.ack([(4, 5)])
        assert topic.stored.subscription("s").backlog == 0

    run(scenario)
