"""A message that fails too often is a dead letter, and its group goes on behind it."""

from collections.abc import Callable
from typing import Any

from weir.broker.api.consumers import StartAt, SubscribeRequest, SubscriptionType
from weir.broker.api.producers import Outgoing, ProducerRequest
from weir.model.batch import BatchFormat
from weir.model.messages import Message
from weir.model.retry import MAX_DELIVERIES, SCHEDULE
from weir.model.subscriptions import FIFO_PROPERTY
from weir.wire.formats.messages import encode_messages
from weir.wire.formats.table import messages_of


def test_a_message_that_fails_too_often_is_a_dead_letter_and_its_group_goes_on(run: Callable[..., None]) -> None:
    async def scenario(stage: Any) -> None:
        topic = await stage.topic("orders")
        fifo = {FIFO_PROPERTY: "true", SCHEDULE: "1s", MAX_DELIVERIES: "3"}
        topic.ensure_subscription("s", StartAt(), fifo)
        consumer = await topic.subscribe(SubscribeRequest("ann", "s", SubscriptionType.SHARED))
        producer = await topic.produce(ProducerRequest("ann"))
        batch = [Message(key, text) for key, text in ((b"a", b"a1"), (b"a", b"a2"), (b"b", b"b1"), (b"b", b"b2"))]
        await producer.publish(Outgoing(encode_messages(batch), 4, BatchFormat.MESSAGES))

        async def get() -> list[tuple[int, str]]:
            return [(offset, text) for offset, text, _ in stage.split(await consumer.next(10))]

        assert await get() == [(0, "a1"), (2, "b1")]
        consumer.redeliver([(0, 1)])
        consumer.ack([(2, 3)])
        assert await get() == [(3, "b2")]  # while a1 waits for its second
        for _ in range(2):
            assert await get() == [(0, "a1")]
            consumer.redeliver([(0, 1)])
        assert await get() == [(1, "a2")]
        letters = await stage.topic("orders-s-DLQ")
        stored = await letters.read(0, 1 << 20)
        assert [bytes(message.value) for batch in stored for message in messages_of(batch)] == [b"a1"]

    run(scenario)


def test_a_dead_letter_of_a_turn_lets_its_group_go_on_when_the_rest_is_acknowledged(
    run: Callable[..., None],
) -> None:
    async def scenario(stage: Any) -> None:
        topic = await stage.topic("orders")
        fifo = {FIFO_PROPERTY: "true", SCHEDULE: "0s", MAX_DELIVERIES: "2"}
        topic.ensure_subscription("s", StartAt(), fifo)
        consumer = await topic.subscribe(
            SubscribeRequest("ann", "s", SubscriptionType.SHARED, per_message=True, turns=True)
        )
        producer = await topic.produce(ProducerRequest("ann"))
        batch = [Message(b"a", text) for text in (b"a1", b"a2", b"a3", b"a4")]
        await producer.publish(Outgoing(encode_messages(batch), 4, BatchFormat.MESSAGES))

        async def get(credit: int) -> list[str]:
            return [text for _, text, _ in stage.split(await consumer.next(credit))]

        assert await get(3) == ["a1", "a2", "a3"]
        consumer.ack([(1, 2)])
        consumer.redeliver([(2, 3)])
        consumer.redeliver([(0, 1)])
        assert await get(2) == ["a1", "a3"]
        consumer.redeliver([(0, 1)])
        consumer.ack([(2, 3)])
        assert await get(3) == ["a4"]
        letters = await stage.topic("orders-s-DLQ")
        stored = await letters.read(0, 1 << 20)
        assert [bytes(message.value) for batch in stored for message in messages_of(batch)] == [b"a1"]

    run(scenario)
