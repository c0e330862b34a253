"""Looking after topics: expiry, quotas, retention, what nobody uses, policies that change."""

from collections.abc import Callable

import pytest

from weir.broker.api.consumers import StartAt, SubscriptionType
from weir.broker.upkeep.topic_upkeep import maintain
from weir.model.errors import OffsetTrimmedError, ProducersHeldError, QuotaExceededError
from weir.model.policies import BacklogAction, BacklogQuota, Policies, Rate, Retention
from weir.model.topics import TopicName

SHARED = SubscriptionType.SHARED


def test_messages_expire_for_every_subscription_after_their_time_to_live(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=Policies(message_ttl_s=60))
        producer = await bench.producer(topic)
        await bench.publish(producer, "old", count=3)
        await bench.runtime.clock.sleep(50)
        await bench.publish(producer, "new")
        consumer = await bench.consumer(topic, type=SHARED)
        await topic.stored.create_subscription("other", StartAt())
        await bench.receive(consumer, 2)
        await bench.runtime.clock.sleep(15)
        await maintain(topic, bench.runtime.clock.wall_ms())
        for name in ("s", "other"):
            assert topic.stored.subscription(name).backlog == 1
            assert topic.stored.subscription(name).expired == 3
        assert consumer.unacked == 1

    run(scenario)


@pytest.mark.parametrize("unit", ["bytes", "seconds"])
@pytest.mark.parametrize("action", list(BacklogAction))
def test_a_backlog_over_its_quota_holds_or_fails_producers_or_gives_up_the_oldest(
    run: Callable, action: BacklogAction, unit: str
) -> None:
    async def scenario(bench) -> None:
        quota = (
            BacklogQuota(bytes=1000, action=action) if unit == "bytes" else BacklogQuota(seconds=30, action=action)
        )
        topic = await bench.topic(policies=Policies(backlog_quota=quota))
        producer = await bench.producer(topic)
        subscription = await topic.stored.create_subscription("s", StartAt())
        await bench.publish(producer, *["x" * 90] * 20)
        if unit == "seconds":
            await bench.runtime.clock.sleep(31)
        await maintain(topic, bench.runtime.clock.wall_ms())
        if action is BacklogAction.EVICT_OLDEST:
            assert subscription.backlog == (0 if unit == "seconds" else 8)  # headers count too
            await bench.publish(producer, "more")
            return
        await producer.closed()
        expected = ProducersHeldError if action is BacklogAction.HOLD_PRODUCERS else QuotaExceededError
        with pytest.raises(expected):
            await bench.producer(topic)
        subscription.skip_all()
        await maintain(topic, bench.runtime.clock.wall_ms())
        await bench.publish(await bench.producer(topic), "more")

    run(scenario)


def test_ledgers_go_once_everyone_acknowledged_them_and_retention_is_over(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=Policies(retention=Retention(10, -1)), roll_entries=2)
        producer = await bench.producer(topic)
        one, two = [await topic.stored.create_subscription(name, StartAt()) for name in ("one", "two")]
        for i in range(10):
            await bench.publish(producer, f"m{i}")
        one.skip_all()
        two.skip(4)
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert topic.start_offset == 0
        await bench.runtime.clock.sleep(601)
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert topic.start_offset == 4
        with pytest.raises(OffsetTrimmedError):
            await topic.read(3, 1)
        again = await bench.topic()  # the cursors were persisted before
        assert [again.stored.subscription(name).backlog for name in ("one", "two")] == [0, 6]

    run(scenario)


def test_a_reader_behind_the_retention_goes_on_with_what_is_left(run: Callable) -> None:
    async def scenario(bench) -> None:
        for kind in SubscriptionType:
            topic = await bench.topic(kind.value, roll_entries=2, tail_bytes=0)
            producer = await bench.producer(topic)
            for i in range(10):
                await bench.publish(producer, f"m{i}")
            reader = await bench.consumer(topic, "r", kind, durable=False)
            assert await bench.receive(reader, 1, 1) == ["m0"]
            await maintain(topic, bench.runtime.clock.wall_ms())
            rest = [f"m{i}" for i in range(topic.start_offset, 10)]
            assert 0 < len(rest) < 9
            assert (await bench.receive(reader, len(rest)))[-len(rest) :] == rest

    run(scenario)


def test_truncating_forgets_every_message(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        subscription = await topic.stored.create_subscription("s", StartAt())
        await bench.publish(producer, *"abc")
        await topic.stored.truncate()
        assert (topic.start_offset, subscription.backlog, topic.stats().storage_bytes) == (3, 0, 0)
        await bench.publish(producer, "d")
        assert await bench.receive(await bench.consumer(topic), 1) == ["d"]

    run(scenario)


def test_subscriptions_that_nobody_uses_are_dropped_if_policies_say_so(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=Policies(subscription_expiry_min=5))
        await topic.stored.create_subscription("unused", StartAt())
        await bench.consumer(topic, "used")
        await bench.runtime.clock.sleep(301)
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert list(topic.subscriptions) == ["used"]

    run(scenario)


def test_the_broker_looks_after_its_topics_and_applies_new_policies(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker(roll_entries=2)
        broker.start()
        name = TopicName.parse("t")
        topic = await broker.topic(name, role="r")
        producer = await bench.producer(topic)
        for i in range(10):
            await bench.publish(producer, f"m{i}")
        await bench.runtime.clock.sleep(10)
        assert topic.start_offset >= 8
        broker._registry.set(Policies(publish_rate=Rate(messages=1), max_producers=1))
        await bench.runtime.clock.sleep(2)
        assert topic.policies.max_producers == 1
        assert topic.publisher.rate.limits
        await broker.close()

    run(scenario)


def test_a_deleted_topic_leaves_nothing_behind(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker(roll_entries=2)
        name = TopicName.parse("t")
        topic = await broker.topic(name, role="r")
        producer, consumer = await bench.producer(topic), await bench.consumer(topic)
        await bench.publish(producer, *"abcde")
        consumer.ack([(0, 2)])
        await consumer.persisted()
        with pytest.raises(Exception, match="has producers or consumers"):
            await broker.delete(name)
        await broker.delete(name, force=True)
        await producer.closed()
        await consumer.closed()
        assert not any(bookie.ledgers for bookie in bench.bookies.bookies.values())
        assert (await broker.topic(name, role="r")).end_offset == 0
        await broker.close()

    run(scenario)


def test_stats_say_what_passed_and_what_waits(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic, "p", address="here", properties={"a": "b"})
        consumer = await bench.consumer(topic, type=SHARED)
        await bench.publish(producer, *["x" * 100] * 10, count=2)
        await bench.receive(consumer, 4, 8)
        consumer.ack([(0, 2), (4, 6)])
        await bench.runtime.clock.sleep(10)
        await maintain(topic, bench.runtime.clock.wall_ms())
        stats = topic.stats()
        (subscription,) = stats.subscriptions
        assert (stats.published.messages, stats.published.bytes) == (20, 1000)
        assert 1.9 < stats.published.messages_per_s < 2.1
        assert (subscription.backlog, subscription.unacked, subscription.mark_delete, subscription.holes) == (
            16,
            4,
            1,
            2,
        )
        assert subscription.consumers[0].unacked == 4
        assert 9 < subscription.oldest_unacked_s < 11
        assert stats.delivered.messages == 8
        assert sum(stats.publish_latency.counts) == 10
        assert sum(stats.dispatch_latency.counts) >= 1
        assert (stats.producers[0].name, stats.producers[0].address) == ("p", "here")
        assert stats.storage_bytes >= 1000

    run(scenario)
