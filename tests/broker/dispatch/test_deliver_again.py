"""One message of a subscription delivered again, alone: whatever its consumers are, and whatever became of it."""

from collections.abc import Callable

import pytest

from weir.broker.api.consumers import StartAt, SubscriptionType
from weir.model.errors import NotAllowedError, OffsetTrimmedError
from weir.model.policies import Policies, Retention
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.model.subscriptions import FIFO_PROPERTY
from weir.stream.cursor import Cursor

SHARED, FAILOVER, KEY = SubscriptionType.SHARED, SubscriptionType.FAILOVER, SubscriptionType.KEY_SHARED
EXCLUSIVE = SubscriptionType.EXCLUSIVE
#: What is acknowledged stays.
KEPT = Policies(retention=Retention(None, None))
KINDS = [
    pytest.param(EXCLUSIVE, {}, id="exclusive"),
    pytest.param(FAILOVER, {}, id="failover"),
    pytest.param(SHARED, {}, id="shared"),
    pytest.param(SHARED, {"per_message": True}, id="per-message"),
    pytest.param(KEY, {}, id="key-shared"),
]


@pytest.mark.parametrize(("kind", "more"), KINDS)
def test_an_acknowledged_message_comes_again_and_no_other(
    run: Callable, kind: SubscriptionType, more: dict
) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=KEPT)
        producer = await bench.producer(topic)
        await bench.publish(producer, *"abcde")
        consumer = await bench.consumer(topic, type=kind, **more)
        await bench.receive(consumer, 5, ack=True)
        subscription = topic.stored.subscription("s")
        assert await subscription.deliver_again(1)
        assert subscription.backlog == 1
        if kind in (EXCLUSIVE, FAILOVER):  # it had to connect anew
            assert "delivered again" in await consumer.closed()
            consumer.ack_up_to(4)
            assert subscription.backlog == 1, "what was under way does not undo it"
            consumer = await bench.consumer(topic, type=kind, name="again", **more)
        assert await bench.receive(consumer, 1, ack=True) == ["b"]
        assert (subscription.backlog, subscription.cursor.mark_delete) == (0, 4)
        assert await bench.nothing(consumer)

    run(scenario)


@pytest.mark.parametrize(("kind", "more"), KINDS)
def test_it_survives_the_broker_and_comes_to_whoever_is_next(
    run: Callable, kind: SubscriptionType, more: dict
) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=KEPT)
        producer = await bench.producer(topic)
        await bench.publish(producer, *"abcde")
        consumer = await bench.consumer(topic, type=kind, **more)
        await bench.receive(consumer, 5, ack=True)
        await consumer.close()
        assert await topic.stored.subscription("s").deliver_again(2)
        elsewhere = await bench.topic(policies=KEPT)
        assert await bench.receive(await bench.consumer(elsewhere, type=kind, **more), 1) == ["c"]

    run(scenario)


@pytest.mark.parametrize(
    ("kind", "more"), [one for one in KINDS if one.id in ("shared", "per-message", "key-shared")]
)
def test_what_a_consumer_has_comes_again_alone_and_what_waits_comes_once(
    run: Callable, kind: SubscriptionType, more: dict
) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=KEPT)
        producer = await bench.producer(topic)
        await bench.publish(producer, *"abc")
        consumer = await bench.consumer(topic, type=kind, **more)
        await bench.receive(consumer, 3)
        subscription = topic.stored.subscription("s")
        assert await subscription.deliver_again(1)
        (only,) = await consumer.next(100)
        assert (bytes(only.batch.payload), only.redelivered) == (b"b", 1)
        assert await bench.nothing(consumer)
        consumer.ack([(0, 3)])
        await bench.publish(producer, "d")
        await consumer.close()
        assert not await subscription.deliver_again(3), "nobody has had it"
        other = await bench.consumer(topic, type=kind, name="other", **more)
        assert await bench.receive(other, 1, ack=True) == ["d"]
        assert await bench.nothing(other)

    run(scenario)


def test_one_message_of_a_batch_comes_without_its_neighbours(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=KEPT)
        producer = await bench.producer(topic)
        await bench.publish(producer, "batch", count=5)
        for kind, more in ((EXCLUSIVE, {}), (SHARED, {}), (SHARED, {"per_message": True}), (KEY, {})):
            name = f"{kind.value}{bool(more)}"
            consumer = await bench.consumer(topic, subscription=name, type=kind, **more)
            await bench.receive(consumer, 1, ack=True)
            await topic.stored.subscription(name).deliver_again(3)
            if kind is EXCLUSIVE:
                consumer = await bench.consumer(topic, subscription=name, type=kind, name="again")
            (only,) = await consumer.next(100)
            assert only.wanted == 0b01000

    run(scenario)


def test_a_message_group_is_kept_in_order(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=KEPT)
        producer = await bench.producer(topic)
        await bench.publish(producer, "g:1", "g:2", "g:3")
        await topic.stored.create_subscription("s", StartAt(), properties={FIFO_PROPERTY: "true"})
        consumer = await bench.consumer(topic, type=SHARED, per_message=True)
        assert await bench.receive(consumer, 1, ack=True) == ["g:1"]
        assert await bench.receive(consumer, 1) == ["g:2"]
        assert await topic.stored.subscription("s").deliver_again(0)
        consumer = await bench.consumer(topic, type=SHARED, per_message=True, name="again")
        assert await bench.receive(consumer, 1) == ["g:1"]
        assert await bench.nothing(consumer), "the next of its group waits for it"

    run(scenario)


def test_a_queue_has_it_redelivered_with_its_priority(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=KEPT)
        producer = await bench.producer(topic)
        await bench.publish(producer, *"abc")
        consumer = await bench.consumer(topic, subscription=QUEUE_SUBSCRIPTION, type=SHARED)
        await bench.receive(consumer, 3, ack=True)
        assert await topic.stored.subscription(QUEUE_SUBSCRIPTION).deliver_again(0)
        (only,) = await consumer.next(100)
        assert (bytes(only.batch.payload), only.redelivered) == (b"a", 1)

    run(scenario)


def test_what_cannot_be_delivered_alone_is_refused_and_nothing_moves(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=KEPT)
        producer = await bench.producer(topic)
        await bench.publish(producer, *"abc")
        one = await topic.stored.create_subscription("one", StartAt(latest=True))
        reader = await bench.consumer(topic, subscription="reader", durable=False)
        await bench.receive(reader, 3, ack=True)
        with pytest.raises(OffsetTrimmedError, match="no message at offset 3"):
            await one.deliver_again(3)
        with pytest.raises(NotAllowedError, match="one position"):
            await topic.stored.subscription("reader").deliver_again(0)
        assert one.backlog == 0

    run(scenario)


@pytest.mark.parametrize("offset", range(9))
def test_a_cursor_takes_back_one_acknowledgement_and_keeps_the_others(offset: int) -> None:
    cursor = Cursor()
    cursor.ack(0, 4)
    cursor.ack(6, 8)
    acked = {number for number in range(12) if cursor.is_acked(number)}
    assert cursor.unack(offset) == (offset in acked)
    again = Cursor.from_bytes(cursor.to_bytes())
    assert {number for number in range(12) if again.is_acked(number)} == acked - {offset}
    again.ack(offset, offset + 1)
    assert again.mark_delete == (4 if offset == 4 else 3)
