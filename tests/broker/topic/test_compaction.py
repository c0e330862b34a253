"""Compaction by key, as consumers see it."""

import asyncio
from collections.abc import Callable
from unittest.mock import patch

import pytest

from weir.broker.api.consumers import StartAt, SubscriptionType
from weir.broker.api.stats import CompactionStatus
from weir.broker.topics.topic import BrokerTopic
from weir.broker.topics.topic_deletion import erase
from weir.broker.upkeep.topic_upkeep import maintain
from weir.ledger.client import LedgerClient
from weir.model.errors import BookieUnavailableError, NotAllowedError
from weir.model.policies import DEFAULT_POLICIES, Policies
from weir.model.topics import TopicName


async def nothing_against_it() -> None:
    pass


async def values(bench, topic, name: str = "view") -> list[str]:
    """Everything that a reader of the compacted view sees, message by message."""
    reader = await bench.consumer(topic, name, durable=False, read_compacted=True, start=StartAt())
    found: list[str] = []
    while reader._owner.read_at < topic.end_offset:
        for delivery in await reader.next(100):
            words = bytes(delivery.batch.payload).decode().split()
            found += [w for i, w in enumerate(words) if delivery.wanted is None or delivery.wanted >> i & 1]
    await reader.close()
    return found


@pytest.mark.parametrize("tail_bytes", [0, 1 << 20])
def test_the_view_has_the_latest_of_each_key_and_everything_since(run: Callable, tail_bytes: int) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(roll_entries=3, tail_bytes=tail_bytes)
        producer = await bench.producer(topic)
        assert topic.stored.compaction is CompactionStatus.NOT_RUN
        await bench.publish(producer, "a:1", "b:1", "a:2", "c:1", "b:", "nokey", "d:1")
        await bench.publish(producer, "a:3 e:1 e:2", count=3)
        assert len(await values(bench, topic)) == 10
        topic.stored.compact()
        with pytest.raises(NotAllowedError):
            topic.stored.compact()
        await topic.compaction.ended()
        assert topic.stored.compaction is CompactionStatus.SUCCESS
        assert await values(bench, topic) == ["c:1", "d:1", "a:3", "e:2"]
        await bench.publish(producer, "c:2", "f:1")
        assert await values(bench, topic) == ["c:1", "d:1", "a:3", "e:2", "c:2", "f:1"]
        again = await bench.topic(tail_bytes=tail_bytes)
        assert await values(bench, again) == ["c:1", "d:1", "a:3", "e:2", "c:2", "f:1"]
        again.stored.compact()
        await again.compaction.ended()
        assert await values(bench, again) == ["d:1", "a:3", "e:2", "c:2", "f:1"]
        assert len(await bench.receive(await bench.consumer(again, "plain"), 10)) == 10

    run(scenario)


def test_compacted_messages_outlive_retention_and_what_is_not_compacted_is_kept_for_it(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=Policies(compaction_threshold=1000), roll_entries=2)
        producer = await bench.producer(topic)
        for i in range(10):
            await bench.publish(producer, f"k{i % 3}:{i}")
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert topic.start_offset == 0
        assert topic.stored.compaction is CompactionStatus.NOT_RUN
        await bench.publish(producer, "big:" + "x" * 1000)
        await maintain(topic, bench.runtime.clock.wall_ms())
        await topic.compaction.ended()
        await topic.stream.roll()
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert topic.start_offset > 9
        assert (await values(bench, topic))[:3] == ["k1:7", "k2:8", "k0:9"]

    run(scenario)


def test_a_cursor_moves_over_what_was_compacted_away(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        await bench.publish(producer, *[f"k{i % 2}:{i}" for i in range(10)])
        topic.stored.compact()
        await topic.compaction.ended()
        consumer = await bench.consumer(topic, read_compacted=True)
        assert await bench.receive(consumer, 2, ack=True) == ["k0:8", "k1:9"]
        assert (consumer.backlog, consumer.mark_delete) == (0, 9)
        with pytest.raises(NotAllowedError):
            await bench.consumer(topic, "shared", SubscriptionType.SHARED, read_compacted=True)

    run(scenario)


def test_a_crash_while_compacting_leaves_the_old_view_and_no_ledger(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        await bench.publish(producer, "a:1", "a:2")
        topic.stored.compact()
        await bench.runtime.clock.sleep(0)
        for _ in range(30):  # somewhere in the middle: another broker takes over
            await bench.runtime.clock.sleep(0)
            if topic.state.get("compacting") is not None:
                break
        again = await bench.topic()
        assert (await values(bench, again))[-1] == "a:2"
        again.stored.compact()
        await again.compaction.ended()
        assert await values(bench, again) == ["a:2"]
        await again.close()
        await erase((await bench.context()).streams, again.stream.name, confirm=nothing_against_it)
        live = {ledger for bookie in bench.bookies.bookies.values() for ledger in bookie.ledgers}
        assert len(live) <= 1  # what the former broker was just creating

    run(scenario)


def test_a_compaction_that_could_not_be_stored_leaves_the_old_view(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        await bench.publish(producer, "a:1", "b:1", "a:2")
        create, made = LedgerClient.create, []

        async def create_and_lose_bookies(self, *args, **more):
            made.append(await create(self, *args, **more))
            if len(made) == 1:  # the first one is the compaction's
                made[0].append = lambda data: _lost()
            return made[-1]

        with patch.object(LedgerClient, "create", create_and_lose_bookies):
            topic.stored.compact()
            await topic.compaction.ended()
        assert topic.stored.compaction is CompactionStatus.ERROR
        assert await values(bench, topic) == ["a:1", "b:1", "a:2"]
        topic.stored.compact()
        await topic.compaction.ended()
        assert await values(bench, topic) == ["b:1", "a:2"]
        await topic.close()

    run(scenario)


def _lost() -> "asyncio.Future[None]":
    lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    lost.set_exception(BookieUnavailableError("down"))
    return lost


def test_few_compactions_run_at_the_same_time_and_the_others_wait_for_their_turn(run: Callable) -> None:
    async def scenario(bench) -> None:
        context = await bench.context()
        topic = await BrokerTopic.open(context, TopicName.parse("t"), DEFAULT_POLICIES)
        await bench.publish(await bench.producer(topic), "a:1", "a:2")
        while not context.compactions.locked():
            await context.compactions.acquire()
        topic.stored.compact()
        await bench.runtime.clock.sleep(60)
        assert (topic.stored.compaction, topic.view.horizon) == (CompactionStatus.RUNNING, 0)
        context.compactions.release()
        await topic.compaction.ended()
        assert (topic.stored.compaction, topic.view.horizon) == (CompactionStatus.SUCCESS, 2)

    run(scenario)
