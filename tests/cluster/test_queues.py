"""Queues used through any broker of a cluster, whoever has them."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from weir.broker.api.consumers import Delivery
from weir.broker.api.queues import ConsumeRequest, NamespaceQueues, Queue, QueueMessages
from weir.model.errors import ConsumerClosedError, QueueLockedError, QueueNotFoundError, ReadStuckError
from weir.model.messages import Message
from weir.model.queues import QUEUE_SUBSCRIPTION, QueueDeclaration, QueuePolicy, topic_of_queue
from weir.model.topics import DEFAULT_NAMESPACE
from weir.testing.many_brokers import ManyBrokers
from weir.wire.formats.messages import decode_messages, encode_message

NAMES = ("first", "second", "third")
ANN = "ann"


def batch(*values: str) -> QueueMessages:
    return QueueMessages([encode_message(Message(None, value.encode())) for value in values])


def texts(delivery: Delivery) -> list[tuple[int, str]]:
    """Offset and value of each message that is meant."""
    batch = delivery.batch
    return [
        (batch.base_offset + place, bytes(message.value or b"").decode())
        for place, message in enumerate(decode_messages(batch.payload))
        if delivery.wanted is None or delivery.wanted >> place & 1
    ]


class Desk:
    """One broker's queues of the default namespace."""

    def __init__(self, brokers: ManyBrokers, name: str) -> None:
        self._brokers = brokers
        self._name = name

    async def queues(self) -> NamespaceQueues:
        return await self._brokers[self._name].composed.queues.open(DEFAULT_NAMESPACE)

    async def get(self, name: str, connection: str = "") -> Queue:
        return await (await self.queues()).get(ANN, name, connection=connection)

    async def declare(self, name: str, connection: str = "", **how: Any) -> Queue:
        return await (await self.queues()).declare(ANN, QueueDeclaration(name, **how), connection=connection)


@pytest.fixture
def tell(brokers: ManyBrokers) -> Callable[[Callable[..., Awaitable[None]]], None]:
    """Runs a story on the brokers' loop, with the queues of each."""

    def run(story: Callable[..., Awaitable[None]]) -> None:
        brokers.call(lambda: story(*(Desk(brokers, name) for name in NAMES)))

    return run


async def taken(consumer: Any, count: int, credit: int = 100) -> list[tuple[int, str, int]]:
    """So many messages, in the order of delivery: offset, value, how often it came before."""
    found: list[tuple[int, str, int]] = []
    while len(found) < count:
        for delivery in await consumer.next(credit):
            found += [(offset, text, delivery.redelivered) for offset, text in texts(delivery)]
    return found


def test_a_queue_takes_and_gives_messages_in_order_through_every_broker(
    brokers: ManyBrokers, tell, unique: str
) -> None:
    async def story(first: Desk, second: Desk, third: Desk) -> None:
        await first.declare(unique)
        queues = [await desk.get(unique) for desk in (first, second, third)]
        owner = brokers["first"].broker.owner_now(topic_of_queue(DEFAULT_NAMESPACE, unique)).broker_id
        for at, queue in enumerate(queues):
            sent = [queue.publish(batch(f"{at}-{part}-a", f"{at}-{part}-b")) for part in range(20)]
            assert [await one for one in sent] == [0] * 20
        for at, (name, queue) in enumerate(zip(NAMES, queues, strict=True)):
            assert (await queue.counts()).ready == 120 - 40 * at
            consumer = await queue.consume(ConsumeRequest(ANN, tag=name))
            assert (await queue.counts()).consumers == 1
            got = await taken(consumer, 40, credit=40)
            assert [text for _, text, _ in got] == [f"{at}-{part}-{end}" for part in range(20) for end in "ab"]
            consumer.ack([(got[0][0], got[-1][0] + 1)])
            await consumer.close()
        assert owner in NAMES
        assert await queues[1].counts() == await queues[2].counts() == await queues[0].counts()

    tell(story)


def test_credit_is_exact_and_what_is_requeued_comes_again_in_its_place(tell, unique: str) -> None:
    async def story(first: Desk, second: Desk, third: Desk) -> None:
        await second.declare(unique)
        for desk in (first, second, third):
            queue = await desk.get(unique)
            await queue.publish(batch("a", "b", "c", "d"))
            consumer = await queue.consume(ConsumeRequest(ANN))
            (one,) = await taken(consumer, 1, credit=1)
            assert one[1:] == ("a", 0)
            two = await taken(consumer, 2, credit=2)
            assert [text for _, text, _ in two] == ["b", "c"]
            consumer.requeue([(one[0], one[0] + 1), (two[1][0], two[1][0] + 1)])
            again = await taken(consumer, 3, credit=3)
            assert [found[1:] for found in again] == [("a", 1), ("c", 1), ("d", 0)]
            consumer.ack([(two[0][0], two[0][0] + 1), *((at, at + 1) for at, _, _ in again)])
            await consumer.close()
            getter = await queue.getter(ANN)
            assert await getter.take() is None
            await getter.close()

    tell(story)


def test_what_a_consumer_had_is_there_for_others_when_it_is_closed(tell, unique: str) -> None:
    async def story(first: Desk, second: Desk, third: Desk) -> None:
        await third.declare(unique)
        queue = await first.get(unique)
        await queue.publish(batch("a", "b"))
        consumer = await queue.consume(ConsumeRequest(ANN))
        assert len(await taken(consumer, 2)) == 2
        await consumer.close()
        other = await (await second.get(unique)).consume(ConsumeRequest(ANN))
        assert [found[1:] for found in await taken(other, 2)] == [("a", 1), ("b", 1)]
        await other.close()

    tell(story)


def test_whoever_consumes_through_another_broker_is_told_that_a_read_is_stuck(
    brokers: ManyBrokers, tell, unique: str
) -> None:
    async def story(first: Desk, second: Desk, third: Desk) -> None:
        await first.declare(unique)
        topic = topic_of_queue(DEFAULT_NAMESPACE, unique)
        owner = brokers["first"].broker.owner_now(topic).broker_id
        elsewhere = next(desk for desk, name in zip((first, second, third), NAMES, strict=True) if name != owner)
        queue = await elsewhere.get(unique)
        consumer = await queue.consume(ConsumeRequest(ANN))
        waiting = asyncio.ensure_future(consumer.next(10))
        served = await brokers[owner].broker.topic(topic, role=ANN)
        subscription = served.stored.subscription(QUEUE_SUBSCRIPTION)
        stuck = ReadStuckError("q cannot be read from offset 7 on: bookie-1 does not answer")
        while not waiting.done():
            subscription._served._stuck(stuck)
            await asyncio.sleep(0.01)
        with pytest.raises(ReadStuckError, match="from offset 7 on: bookie-1 does not answer"):
            await waiting
        await queue.publish(batch("a"))
        assert [text for _, text, _ in await taken(consumer, 1)] == ["a"], "it waits on, and is served"
        await consumer.close()

    tell(story)


def test_a_queue_that_moved_is_found_where_it_is(brokers: ManyBrokers, tell, unique: str) -> None:
    topic = topic_of_queue(DEFAULT_NAMESPACE, unique)

    async def before(first: Desk, second: Desk, third: Desk) -> None:
        await first.declare(unique)
        await (await first.get(unique)).publish(batch("a"))

    tell(before)
    for to in ("second", "third", "first"):
        brokers.move(topic, to)

        async def after(first: Desk, second: Desk, third: Desk) -> None:
            for desk in (first, second, third):
                queue = await desk.get(unique)
                consumer = await queue.consume(ConsumeRequest(ANN))
                ((_, text, _),) = await taken(consumer, 1)
                assert text == "a"
                await consumer.close()

        tell(after)


def test_consumers_elsewhere_are_closed_when_the_queue_moves(brokers: ManyBrokers, tell, unique: str) -> None:
    topic = topic_of_queue(DEFAULT_NAMESPACE, unique)
    consumers: list[Any] = []

    async def before(first: Desk, second: Desk, third: Desk) -> None:
        await first.declare(unique)
        queues = [await desk.get(unique) for desk in (first, second, third)]
        consumers.extend([await queue.consume(ConsumeRequest(ANN)) for queue in queues])

    tell(before)
    there = brokers.owner(topic)
    brokers.move(topic, next(name for name in NAMES if name != there))

    async def after(first: Desk, second: Desk, third: Desk) -> None:
        for consumer in consumers:
            assert await consumer.closed()
            with pytest.raises(ConsumerClosedError):
                await consumer.next(1)

    tell(after)


def test_a_queue_in_memory_is_reached_through_other_brokers_and_goes_with_its_connection(
    tell, unique: str
) -> None:
    async def story(first: Desk, second: Desk, third: Desk) -> None:
        await first.declare(unique, "mine", durable=False, exclusive=True)
        with pytest.raises(QueueLockedError):
            await second.get(unique)
        with pytest.raises(QueueLockedError):
            await third.declare(unique, "other", durable=False, exclusive=True)
        await first.declare(f"{unique}-shared", durable=False)
        far = await second.declare(f"{unique}-shared", durable=False)
        await far.publish(batch("hello"))
        consumer = await (await first.get(f"{unique}-shared")).consume(ConsumeRequest(ANN))
        assert [text for _, text, _ in await taken(consumer, 1)] == ["hello"]
        await consumer.close()
        await (await first.queues()).release("mine")
        with pytest.raises(QueueNotFoundError):
            await second.get(unique)
        assert await (await third.queues()).delete(ANN, f"{unique}-shared") >= 0
        with pytest.raises(QueueNotFoundError):
            await first.get(f"{unique}-shared")

    tell(story)


def test_a_stream_is_read_from_a_moment_through_any_broker(tell, unique: str) -> None:
    async def story(first: Desk, second: Desk, third: Desk) -> None:
        await first.declare(unique, arguments={"x-queue-type": "stream"})
        await (await second.get(unique)).publish(batch("a", "b"))
        for desk in (first, second, third):
            queue = await desk.get(unique)
            for start in (datetime(2001, 9, 9, tzinfo=UTC), "first", 0):
                consumer = await queue.consume(ConsumeRequest(ANN, prefetch=10, stream_offset=start))
                assert [text for _, text, _ in await taken(consumer, 2, credit=2)] == ["a", "b"]
                await consumer.close()

    tell(story)


def test_the_policy_of_a_queue_is_told_by_any_broker(brokers: ManyBrokers, tell, unique: str) -> None:
    async def story(first: Desk, second: Desk, third: Desk) -> None:
        await first.declare(unique)
        await (await first.queues()).set_policy(ANN, QueuePolicy(unique, f"^{unique}$", {"max-length": 3}))

    async def told(first: Desk, second: Desk, third: Desk) -> None:
        queues = [await desk.get(unique) for desk in (first, second, third)]
        while not all(queue.policy is not None and queue.rules.max_length == 3 for queue in queues):
            await brokers["first"].composed.runtime.clock.sleep(0.01)

    tell(story)
    tell(told)


def test_a_queue_is_deleted_through_any_broker(tell, unique: str) -> None:
    async def story(first: Desk, second: Desk, third: Desk) -> None:
        for desk in (first, second, third):
            await first.declare(unique)
            await (await desk.get(unique)).publish(batch("a", "b"))
            assert await (await desk.queues()).delete(ANN, unique) == 2
            for other in (first, second, third):
                with pytest.raises(QueueNotFoundError):
                    await other.get(unique)

    tell(story)
