"""Transient messages in durable queues: in memory, in their places, and on no disk."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.broker.queues.conftest import ANN, Stage
from tests.broker.queues.test_crashes import Cluster

from weir.broker.api.consumers import StartAt, SubscribeRequest, SubscriptionType
from weir.broker.api.queues import ConsumeRequest
from weir.model.batch import BatchFlags
from weir.model.policies import Policies, Retention
from weir.model.queues import QUEUE_SUBSCRIPTION, QueueDeclaration
from weir.runtime.interfaces import Runtime
from weir.testing.world.world import World, simulate

Run = Callable[..., None]


async def publish(stage: Stage, queue: Any, texts: str) -> None:
    """One after the other; capital letters are persistent."""
    for text in texts:
        await stage.publish(queue, text, persistent=text.isupper())
        await queue.accepted()


async def ready(stage: Stage, queue: Any) -> None:
    """The state says that there may be gaps in the log."""
    topic = await stage.topic()
    while not topic.producer_state.armed:
        await asyncio.sleep(0.1)


def untail(topic: Any) -> None:
    """What is in memory anyway has to be read from where it is."""
    topic.stream._tail.clear()


async def drained(stage: Stage, queue: Any, count: int) -> str:
    consumer = await stage.consumer(queue)
    async with asyncio.timeout(60):
        found = await stage.receive(consumer, count)
    consumer.ack([(offset, offset + 1) for offset, _, _ in found])
    assert await stage.counts(queue) == (0, 0, 1)
    await consumer.close()
    return "".join(text for _, text, _ in found)


def test_nothing_is_written_for_them_nor_for_their_acknowledgements(run: Run) -> None:
    async def scenario(stage: Stage) -> None:
        queue = await stage.declare()
        await ready(stage, queue)
        topic = await stage.topic()
        await topic.state.flush()
        noted = topic.state._noted
        for _ in range(3):
            await publish(stage, queue, "abc")
            assert await stage.counts(queue) == (3, 0, 0)
            assert await drained(stage, queue, 3) == "abc"
        assert topic.stream.chain.spans == ()
        assert (topic.stream.written_to, topic.end_offset) == (0, 9)
        assert topic.state._noted == noted
        assert stage.broker.context.queue_budget.used_bytes == 0

    run(scenario)


def test_they_keep_their_places_between_persistent_ones_wherever_they_are_read_from(run: Run) -> None:
    async def scenario(stage: Stage) -> None:
        queue = await stage.declare()
        await ready(stage, queue)
        await publish(stage, queue, "aBcdEFgh")
        topic = await stage.topic()
        assert topic.stream.written_to == 6
        untail(topic)
        consumer = await stage.consumer(queue)
        found = await stage.receive(consumer, 8)
        assert "".join(text for _, text, _ in found) == "aBcdEFgh"
        back = [found[place][0] for place in (6, 3, 0, 4)]
        consumer.requeue([(offset, offset + 1) for offset in back])
        untail(topic)
        again = await stage.receive(consumer, 4)
        assert [(text, times) for _, text, times in again] == [("a", 1), ("d", 1), ("E", 1), ("g", 1)]
        assert await stage.counts(queue) == (0, 8, 1)

    run(scenario)


def test_after_a_crash_they_are_gone_and_what_is_persistent_is_counted_right() -> None:
    async def scenario(runtime: Runtime) -> None:
        async with AsyncExitStack() as stack:
            cluster = Cluster(runtime, stack)
            stage = Stage(runtime, None, None, None)  # type: ignore[arg-type]
            queue = await (await cluster.next_broker()).declare(ANN, QueueDeclaration("q"))
            await asyncio.sleep(1)
            await publish(stage, queue, "AbCdEf")
            consumer = await queue.consume(ConsumeRequest(ANN))
            found = await stage.receive(consumer, 6)
            consumer.ack([(at, at + 1) for at, text, _ in found if text in "Af"])
            await consumer.persisted()
            last = found[-1][0]
            queue = await (await cluster.next_broker()).declare(ANN, QueueDeclaration("q"))
            assert await stage.counts(queue) == (2, 0, 0)
            await publish(stage, queue, "xY")
            assert await stage.counts(queue) == (4, 0, 0)
            consumer = await queue.consume(ConsumeRequest(ANN))
            left = await stage.receive(consumer, 4)
            assert [text for _, text, _ in left] == ["C", "E", "x", "Y"]
            assert left[2][0] > last, "an offset that the state knows of is given out once"
            consumer.ack([(offset, offset + 1) for offset, _, _ in left])
            assert await stage.counts(queue) == (0, 0, 1)

    simulated(scenario)


def test_acknowledged_and_gone_with_a_crash_they_leave_no_message_behind_the_cursor() -> None:
    """Offsets that were acknowledged and never written must not be given to what comes after the crash."""

    async def scenario(runtime: Runtime) -> None:
        async with AsyncExitStack() as stack:
            cluster = Cluster(runtime, stack)
            stage = Stage(runtime, None, None, None)  # type: ignore[arg-type]
            queue = await (await cluster.next_broker()).declare(ANN, QueueDeclaration("q"))
            await asyncio.sleep(1)
            await publish(stage, queue, "Abcde")
            await drained(stage, queue, 5)
            await asyncio.sleep(1)
            for letters in ("FG", "hiJ", "K"):
                queue = await (await cluster.next_broker()).declare(ANN, QueueDeclaration("q"))
                await publish(stage, queue, letters)
                assert await drained(stage, queue, len(letters)) == letters
                await asyncio.sleep(1)

    simulated(scenario)


def test_a_topic_that_is_closed_in_order_takes_them_along(run: Run) -> None:
    async def scenario(stage: Stage) -> None:
        queue = await stage.declare()
        await ready(stage, queue)
        await publish(stage, queue, "aBcDe")
        for more in ("fG", "h", "", ""):
            topic = await stage.topic()
            await stage.broker.broker.unload(topic.name)
            queue = await stage.declare()
            before = 5 if more == "fG" else 7 if more == "h" else 8
            assert await stage.counts(queue) == (before, 0, 0)
            await publish(stage, queue, more)
        consumer = await stage.consumer(queue)
        found = await stage.receive(consumer, 8)
        assert "".join(text for _, text, _ in found) == "aBcDefGh"
        consumer.ack([(offset, offset + 1) for offset, text, _ in found if text in "acB"])
        topic = await stage.topic()
        await stage.broker.broker.unload(topic.name)
        queue = await stage.declare()
        assert await drained(stage, queue, 5) == "DefGh"
        topic = await stage.topic()
        await asyncio.sleep(5)
        assert topic.state.get("memory/ledger") is None
        await stage.broker.broker.unload(topic.name)
        assert await stage.counts(await stage.declare()) == (0, 0, 0)

    run(scenario)


def test_what_is_acknowledged_while_the_topic_is_closed_does_not_come_back(run: Run) -> None:
    """A dead letter may arrive, and be acknowledged, when the state that is being left was written before."""

    async def scenario(stage: Stage) -> None:
        queue = await stage.declare()
        await ready(stage, queue)
        await publish(stage, queue, "abc")
        topic = await stage.topic()
        subscription = topic.subscriptions[QUEUE_SUBSCRIPTION]
        write_gap = topic.stream.write_gap

        async def acknowledged_meanwhile() -> int:
            await topic.state.flush()
            subscription.ack(None, [(1, 2)])
            end: int = await write_gap()
            return end

        topic.stream.write_gap = acknowledged_meanwhile
        await stage.broker.broker.unload(topic.name)
        assert await drained(stage, await stage.declare(), 2) == "ac"

    run(scenario)


def test_another_subscription_has_them_written_and_sees_what_is_in_memory_still(run: Run) -> None:
    async def scenario(stage: Stage) -> None:
        queue = await stage.declare()
        await ready(stage, queue)
        await publish(stage, queue, "aBc")
        topic = await stage.topic()
        request = SubscribeRequest(ANN, "other", SubscriptionType.EXCLUSIVE, start=StartAt())
        other = await topic.subscribe(request)
        assert topic.stream.written_to == 3
        await publish(stage, queue, "d")
        assert topic.stream.written_to == 4
        untail(topic)
        assert await stage.texts(_Asked(other), 4) == ["a", "B", "c", "d"]
        await other.close()
        await topic.stored.delete_subscription("other")
        await publish(stage, queue, "e")
        assert topic.stream.written_to == 4
        assert await drained(stage, queue, 5) == "aBcde"
        late = await topic.stored.create_subscription("late", StartAt())
        assert late.backlog == 2, "only what is in the log is there for those who come later"

    run(scenario)


class _Asked:
    """A consumer of another protocol, asked as a queue's is."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    async def next(self, credit: int) -> Any:
        return await self._consumer.next(credit)


def test_whoever_reads_by_offset_has_them_written_for_an_hour(run: Run) -> None:
    async def scenario(stage: Stage) -> None:
        queue = await stage.declare()
        await ready(stage, queue)
        await publish(stage, queue, "a")
        topic = await stage.topic()
        untail(topic)
        reader = topic.reader()
        assert [batch.end_offset for batch in await reader.read(0, 1000)] == [1]
        await publish(stage, queue, "b")
        assert topic.stream.written_to == 2
        await stage.broker.broker.unload(topic.name)
        queue = await stage.declare()
        await publish(stage, queue, "c")
        topic = await stage.topic()
        assert topic.stream.written_to == 3, "also after the broker was another one"
        await asyncio.sleep(3600)
        await publish(stage, queue, "d")
        assert topic.stream.written_to == 3
        assert await drained(stage, queue, 4) == "abcd"
        untail(topic)
        flags = [batch.flags for batch in await topic.stream.read(0, 1000)]
        assert flags[:2] == [BatchFlags.CONTROL, BatchFlags.NONE]

    run(scenario)


@pytest.mark.parametrize("why", ["memory", "quorum", "retention", "topic"])
def test_they_are_written_where(run: Run, why: str) -> None:
    """... the memory for queues is used up, the queue is a quorum queue or any topic, or messages are kept."""

    async def scenario(stage: Stage) -> None:
        arguments = {"x-queue-type": "quorum"} if why == "quorum" else {}
        if why == "topic":
            topic = await stage.topic()
            queue = await stage.queues.get(ANN, "q")
        else:
            queue = await stage.declare(arguments=arguments)
            topic = await stage.topic()
            await ready(stage, queue)
        if why == "memory":
            stage.broker.context.queue_budget.share().acquire(200 << 20)
        if why == "retention":
            await topic.apply(Policies(retention=Retention(minutes=10)))
        await publish(stage, queue, "abc")
        await queue.accepted()
        assert topic.stream.written_to == 3
        if why == "topic":
            await stage.queues.get(ANN, "q")
        assert await drained(stage, queue, 3) == "abc"

    run(scenario)


def test_the_rules_of_the_queue_hold_for_them(run: Run) -> None:
    async def scenario(stage: Stage) -> None:
        dead = await stage.declare("dead")
        to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        queue = await stage.declare(arguments={**to_dead, "x-max-length": 3, "x-message-ttl": 60_000})
        await ready(stage, queue)
        await publish(stage, queue, "abCde")
        letters = await stage.consumer(dead)
        assert await stage.texts(letters, 2) == ["a", "b"]
        assert await stage.counts(queue) == (3, 0, 0)
        consumer = await stage.consumer(queue)
        (first,) = await stage.receive(consumer, 1)
        consumer.reject([(first[0], first[0] + 1)])
        assert await stage.texts(letters, 1) == ["C"]
        await consumer.close()
        assert await stage.texts(letters, 2) == ["d", "e"], "their time is over"
        assert await stage.counts(queue) == (0, 0, 0)
        await publish(stage, queue, "fG")
        assert await queue.purge() == 2
        assert stage.broker.context.queue_budget.used_bytes == 0

    run(scenario)


def test_priorities_hold_among_both(run: Run) -> None:
    async def scenario(stage: Stage) -> None:
        queue = await stage.declare(arguments={"x-max-priority": 3})
        await ready(stage, queue)
        for text, level in (("a", 0), ("B", 1), ("c", 3), ("D", 3), ("e", 1)):
            await stage.publish(queue, text, persistent=text.isupper(), priority=level)
        untail(await stage.topic())
        assert await drained(stage, queue, 5) == "cDBea"

    run(scenario)


def simulated(scenario: Callable[[Runtime], Awaitable[None]]) -> None:
    async def main(world: World) -> None:
        await world.node("broker").start(scenario)

    simulate(1, main)
