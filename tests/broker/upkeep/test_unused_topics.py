"""Topics that are not used are unloaded, and lists answer for them without loading them."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.api.consumers import StartAt
from weir.broker.api.producers import Outgoing
from weir.broker.broker import Broker
from weir.broker.settings import BrokerSettings
from weir.broker.standalone import PlainRegistry, SoleOwner
from weir.broker.upkeep.background_tasks import is_needed
from weir.meta import keys
from weir.model.batch import BatchFormat, Stamp
from weir.model.policies import BacklogAction, BacklogQuota, Policies, Retention
from weir.model.topics import TopicName
from weir.wire.stream import decode_chain

NAME = TopicName.parse("t")
STREAM = "public/default/t"
#: Topics are unloaded after so long.
AFTER_S = 60.0


KEPT = Policies(retention=Retention(-1, -1))


async def started(bench: Any, registry: PlainRegistry | None = None) -> Broker:
    context = await bench.context(broker=BrokerSettings(unload_s=AFTER_S))
    broker = Broker(context, registry or PlainRegistry(KEPT), SoleOwner())
    broker.start()
    return broker


async def epoch_of(bench: Any) -> int:
    """How often the topic was loaded so far."""
    found = await (await bench.context()).streams.meta.get(keys.stream(STREAM))
    return decode_chain(found.value).epoch


async def written(bench: Any, broker: Broker, *texts: str, name: TopicName = NAME) -> Any:
    topic = await broker.load(name)
    await topic.stored.create_subscription("s", StartAt())
    producer = await bench.producer(topic)
    await bench.publish(producer, *texts)
    await producer.close()
    return topic


def test_an_unused_topic_is_unloaded_with_its_memory_and_loaded_by_the_next_use(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        broker = await started(bench)
        names = [TopicName.parse(f"t{number}") for number in range(20)]  # the simulation itself holds the last few
        gone = [weakref.ref(await written(bench, broker, "a", "b", name=name)) for name in names]
        await bench.runtime.clock.sleep(AFTER_S - 1)
        loaded = len(broker.loaded)
        await bench.runtime.clock.sleep(AFTER_S)
        assert (loaded, len(broker.loaded)) == (20, 0)
        gc.collect()
        assert [topic() for topic in gone] == [None] * 20
        consumer = await bench.consumer(await broker.load(names[0]), "s")
        assert await bench.receive(consumer, 2, ack=True) == ["a", "b"]
        await consumer.close()
        await broker.close()

    run(scenario)


def test_each_use_begins_the_time_anew(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        broker = await started(bench)
        await written(bench, broker, "a")
        for _ in range(8):
            await bench.runtime.clock.sleep(AFTER_S / 2)
            await broker.load(NAME)
        assert await epoch_of(bench) == 1
        await broker.close()

    run(scenario)


async def a_producer(bench: Any, topic: Any) -> Any:
    return await bench.producer(topic)


async def a_consumer(bench: Any, topic: Any) -> Any:
    return await bench.consumer(topic, "other")


async def a_fetch_that_waits(bench: Any, topic: Any) -> Any:
    return topic.on_growth(lambda: None)


async def a_delayed_message(bench: Any, topic: Any) -> Any:
    producer = await bench.producer(topic)
    due_ms = bench.runtime.clock.wall_ms() + 3_600_000
    await producer.publish(Outgoing(b"later", 1, BatchFormat.PULSAR, deliver_at_ms=due_ms))
    await producer.close()


async def an_open_transaction(bench: Any, topic: Any) -> Any:
    producer = await bench.producer(topic)
    await producer.publish(Outgoing(b"x", 1, BatchFormat.PULSAR, stamp=Stamp(7, 0, 0), transactional=True))
    await producer.close()


@pytest.mark.parametrize(
    "use", [a_producer, a_consumer, a_fetch_that_waits, a_delayed_message, an_open_transaction]
)
def test_a_topic_in_use_or_with_work_stays(run: Callable, use: Callable) -> None:
    async def scenario(bench: Any) -> None:
        broker = await started(bench)
        topic = await written(bench, broker, "a")
        assert not is_needed(topic)
        kept = await use(bench, topic)
        assert is_needed(topic)
        await bench.runtime.clock.sleep(5 * AFTER_S)
        assert broker.loaded == [topic]
        del kept
        await broker.close()

    run(scenario)


@pytest.mark.parametrize(
    "policies",
    [
        Policies(message_ttl_s=1000),
        Policies(subscription_expiry_min=100),
        Policies(backlog_quota=BacklogQuota(seconds=1000, action=BacklogAction.EVICT_OLDEST)),
    ],
    ids=["ttl", "subscription expiry", "backlog quota"],
)
def test_a_topic_whose_backlog_expires_stays_until_it_has(run: Callable, policies: Policies) -> None:
    async def scenario(bench: Any) -> None:
        broker = await started(bench, PlainRegistry(policies.over(KEPT)))
        topic = await written(bench, broker, "a")
        await bench.runtime.clock.sleep(500)
        assert broker.loaded == [topic]
        await bench.runtime.clock.sleep(8000)
        assert broker.loaded == []
        stats = await broker.stats(NAME)
        assert [one.backlog for one in stats.subscriptions] in ([], [0])
        await broker.close()

    run(scenario)


def test_the_stats_of_a_topic_that_is_not_loaded_do_not_load_it(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        registry = PlainRegistry(KEPT)
        broker = await started(bench, registry)
        topic = await written(bench, broker, "a", "b", "c")
        consumer = await bench.consumer(topic, "s")
        await bench.receive(consumer, 1, credit=1, ack=True)
        await consumer.close()
        live = await broker.stats(NAME)
        await broker.unload(NAME)
        other = await started(bench, registry)  # another broker of the cluster answers as well
        for each in (broker, other):
            stored = await each.stats(NAME)
            assert (stored.start_offset, stored.end_offset) == (live.start_offset, live.end_offset) == (0, 3)
            (one,) = stored.subscriptions
            assert (one.name, one.backlog, one.position) == ("s", 2, 1)
            assert each.loaded == []
        assert await epoch_of(bench) == 1
        await broker.close()
        await other.close()

    run(scenario)


def test_after_a_crash_the_stats_load_the_topic_once_and_unload_it(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        registry = PlainRegistry(KEPT)
        crashed = await started(bench, registry)
        topic = await written(bench, crashed, "a", "b")
        await crashed.unload(NAME)
        topic = await crashed.load(NAME)
        producer = await bench.producer(topic)
        await bench.publish(producer, "c")  # what was written down of the topic is out of date now
        broker = await started(bench, registry)
        for _ in range(2):
            (one,) = (await broker.stats(NAME)).subscriptions
            assert one.backlog == 3
            assert broker.loaded == []
        assert await epoch_of(bench) == 3
        await broker.close()

    run(scenario)


def test_stats_do_not_unload_a_topic_that_a_client_asks_for_meanwhile(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        registry = PlainRegistry(KEPT)
        crashed = await started(bench, registry)
        await written(bench, crashed, "a")
        broker = await started(bench, registry)
        stats, topic = await asyncio.gather(broker.stats(NAME), broker.load(NAME))
        assert stats.end_offset == 1
        assert topic.alive
        assert broker.loaded == [topic]
        await broker.close()

    run(scenario)


def test_nothing_of_a_topic_is_known_after_another_has_its_name(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        registry = PlainRegistry(KEPT)
        broker = await started(bench, registry)
        await written(bench, broker, "a")
        await broker.unload(NAME)
        meta = (await bench.context()).streams.meta
        old = await meta.get(keys.topic_overview(STREAM))
        await meta.delete(keys.stream(STREAM))
        assert (await broker.stats(NAME)).end_offset == 0
        topic = await broker.load(NAME)  # in the same epoch as the one before
        assert topic.stream.chain.epoch == 1
        stranger = await started(bench, registry)
        assert await meta.get(keys.topic_overview(STREAM)) == old
        assert (await stranger.stats(NAME)).subscriptions == ()
        await broker.close()
        await stranger.close()

    run(scenario)
