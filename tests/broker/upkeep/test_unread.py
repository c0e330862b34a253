"""What a policy is about to delete unread is told before: in the log once, and in the topic's stats."""

import logging
from collections.abc import Callable

import pytest

from weir.broker.api.consumers import StartAt
from weir.broker.api.stats import CompactionStatus
from weir.broker.upkeep.topic_upkeep import maintain
from weir.model.policies import BacklogAction, BacklogQuota, Cleanup, LogCompaction, Policies, Retention


def _told(topic) -> list[tuple[str, str, int]]:
    return [(told.subscription, told.policy, told.messages) for told in topic.unread_warnings]


def test_messages_near_their_time_to_live_are_told_once_and_until_they_are_read(
    run: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def scenario(bench) -> None:
        topic = await bench.topic(policies=Policies(message_ttl_s=1000))
        subscription = await topic.stored.create_subscription("s", StartAt())
        await bench.publish(await bench.producer(topic), "a", "b", "c")
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert _told(topic) == []
        await bench.runtime.clock.sleep(850)
        for _ in range(2):
            await maintain(topic, bench.runtime.clock.wall_ms())
            assert _told(topic) == [("s", "message_ttl", 3)]
        assert topic.stored.subscription("s").backlog == 3, "told before, not after"
        subscription.skip_all()
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert _told(topic) == []

    run(scenario)
    assert sum("has 3 unread messages, and the time to live (1000 s)" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("action", [BacklogAction.EVICT_OLDEST, BacklogAction.HOLD_PRODUCERS])
def test_a_backlog_near_the_quota_that_evicts_is_told(run: Callable, action: BacklogAction) -> None:
    async def scenario(bench) -> None:
        quota = BacklogQuota(bytes=100_000, action=action)
        topic = await bench.topic(policies=Policies(backlog_quota=quota))
        await topic.stored.create_subscription("s", StartAt())
        await bench.publish(await bench.producer(topic), "x" * 85_000)
        await maintain(topic, bench.runtime.clock.wall_ms())
        evicts = action is BacklogAction.EVICT_OLDEST
        assert _told(topic) == ([("s", "backlog_quota", 1)] if evicts else [])

    run(scenario)


def test_what_nobody_subscribed_to_is_told_before_retention_deletes_it(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=Policies(retention=Retention(100, -1)), roll_entries=2)
        producer = await bench.producer(topic)
        for text in "abcde":
            await bench.publish(producer, text)
        await bench.runtime.clock.sleep(85 * 60)
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert topic.start_offset == 0
        ((subscription, policy, messages),) = _told(topic)
        assert (subscription, policy) == ("", "retention")
        assert messages >= 2

    run(scenario)


def test_an_unused_subscription_with_unread_messages_is_told_before_it_is_deleted(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=Policies(subscription_expiry_min=100))
        await topic.stored.create_subscription("s", StartAt())
        await bench.publish(await bench.producer(topic), "a")
        await bench.runtime.clock.sleep(85 * 60)
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert _told(topic) == [("s", "subscription_expiry", 1)]

    run(scenario)


def test_whoever_is_away_is_told_of_before_compaction_leaves_the_latest_of_each_key(run: Callable) -> None:
    async def scenario(bench) -> None:
        policy = LogCompaction(cleanup=Cleanup.COMPACT, dirty_percent=0, max_lag_ms=1_000_000)
        topic = await bench.topic(policies=Policies(log_compaction=policy))
        await topic.stored.create_subscription("s", StartAt())
        await bench.publish(await bench.producer(topic), "a", "b", "c")
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert _told(topic) == []
        await bench.runtime.clock.sleep(970)
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert _told(topic) == [("s", "compaction", 3)]
        assert topic.stored.compaction is CompactionStatus.NOT_RUN, "told before, not after"

    run(scenario)
