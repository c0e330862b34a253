"""Topics that store nothing."""

import asyncio
from collections.abc import Callable

import pytest

from weir.broker.api.consumers import SubscriptionType
from weir.model.errors import NotAllowedError, SubscriptionBusyError
from weir.model.topics import TopicName

NAME = TopicName.parse("non-persistent://public/default/n")
SHARED, FAILOVER, KEY = SubscriptionType.SHARED, SubscriptionType.FAILOVER, SubscriptionType.KEY_SHARED


def test_what_is_published_reaches_those_who_have_credit_and_nobody_else(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        topic = await broker.topic(NAME, role="r")
        producer = await bench.producer(topic)
        await bench.publish(producer, "nobody is there")
        one, two = await bench.consumer(topic, "one"), await bench.consumer(topic, "two")
        with pytest.raises(SubscriptionBusyError):
            await bench.consumer(topic, "one")
        waiting = asyncio.ensure_future(one.next(2))
        await bench.runtime.clock.sleep(0)
        await bench.publish(producer, *"abc")
        assert bench.texts(await waiting) == ["a", "b"]
        assert await bench.nothing(two)
        stats = topic.stats()
        assert (stats.published.messages, stats.delivered.messages, stats.dropped) == (4, 2, 4)
        with pytest.raises(NotAllowedError):
            await one.seek(0)
        await one.close()
        assert list(topic.subscriptions) == ["two"]
        assert not any(bookie.ledgers for bookie in bench.bookies.bookies.values())
        await broker.close()
        await two.closed()

    run(scenario)


@pytest.mark.parametrize("kind", [SHARED, FAILOVER, KEY])
def test_consumers_of_one_subscription_share_as_in_a_stored_topic(run: Callable, kind: SubscriptionType) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        topic = await broker.topic(NAME, role="r")
        producer = await bench.producer(topic)
        consumers = [await bench.consumer(topic, type=kind, name=name) for name in ("a", "b")]
        waiting = [asyncio.ensure_future(consumer.next(100)) for consumer in consumers]
        await bench.runtime.clock.sleep(0)
        texts = [f"k{i}:m" for i in range(20)]
        await bench.publish(producer, *texts)
        if kind is FAILOVER:
            assert bench.texts(await waiting[0]) == texts
            assert [consumer.active for consumer in consumers] == [True, False]
            await consumers[0].close()
            assert consumers[1].active
            waiting[1].cancel()
        else:
            mine, theirs = [bench.texts(await w) for w in waiting]
            assert sorted(mine + theirs) == sorted(texts)
            assert min(len(mine), len(theirs)) > 3
        await broker.close()

    run(scenario)
