"""Topics that nobody has loaded."""

from collections.abc import Callable

import pytest

from weir.broker.api.consumers import StartAt
from weir.broker.broker import Broker
from weir.broker.settings import BrokerSettings
from weir.broker.standalone import PlainRegistry, SoleOwner
from weir.meta import keys
from weir.model.policies import BacklogAction, BacklogQuota, Policies, Retention
from weir.model.topics import TopicName
from weir.wire.stream import decode_chain

NAME = TopicName.parse("t")


async def chain_of(context):
    found = await context.streams.meta.get(keys.stream("public/default/t"))
    return decode_chain(found.value)


async def filled(bench, context, retention: Retention, subscription: str | None = None) -> Broker:
    """A broker that has a topic with three closed ledgers, and has let go of it."""
    broker = Broker(context, PlainRegistry(Policies(retention=retention)), SoleOwner())
    topic = await broker.load(NAME)
    if subscription is not None:
        await topic.stored.create_subscription(subscription, StartAt())
    producer = await bench.producer(topic)
    for n in range(6):
        await bench.publish(producer, f"m{n}" + "x" * 1000)
    await broker.unload(NAME)
    assert len((await chain_of(context)).spans) == 3
    return broker


def test_old_messages_go_although_nobody_loads_the_topic_and_it_is_not_kept_in_memory(run: Callable) -> None:
    async def scenario(bench) -> None:
        context = await bench.context(roll_entries=2, broker=BrokerSettings(idle_s=60))
        broker = await filled(bench, context, Retention(10, -1))
        broker.start()
        await bench.runtime.clock.sleep(300)
        assert (await chain_of(context)).start_offset == 0
        epoch = (await chain_of(context)).epoch
        assert epoch == 1  # it was not even loaded to see that
        await bench.runtime.clock.sleep(400)
        chain = await chain_of(context)
        assert (chain.start_offset, chain.spans) == (6, ())
        assert broker.loaded == []
        await broker.close()

    run(scenario)


def test_messages_beyond_the_size_go_too(run: Callable) -> None:
    async def scenario(bench) -> None:
        context = await bench.context(roll_entries=2, broker=BrokerSettings(idle_s=60))
        broker = await filled(bench, context, Retention.exactly(-1, 2000))
        broker.start()
        await bench.runtime.clock.sleep(100)
        assert (await chain_of(context)).start_offset == 4
        await broker.close()

    run(scenario)


def test_a_topic_that_a_subscription_holds_back_is_tried_once_and_not_again_and_again(run: Callable) -> None:
    async def scenario(bench) -> None:
        context = await bench.context(roll_entries=2, broker=BrokerSettings(idle_s=60))
        broker = await filled(bench, context, Retention(1, -1), "slow")
        broker.start()
        await bench.runtime.clock.sleep(200)
        chain = await chain_of(context)
        assert (chain.start_offset, chain.epoch) == (0, 2)
        await bench.runtime.clock.sleep(1000)
        assert (await chain_of(context)).epoch == 2
        await broker.close()

    run(scenario)


def test_a_topic_in_use_is_left_to_those_who_use_it(run: Callable) -> None:
    async def scenario(bench) -> None:
        context = await bench.context(roll_entries=2, broker=BrokerSettings(idle_s=60, maintenance_s=10_000))
        broker = await filled(bench, context, Retention(1, -1))
        topic = await broker.load(NAME)
        broker.start()
        await bench.runtime.clock.sleep(300)
        assert topic.alive
        assert topic.start_offset == 0
        await broker.close()

    run(scenario)


@pytest.mark.parametrize(
    "policies",
    [
        Policies(message_ttl_s=300),
        Policies(backlog_quota=BacklogQuota(seconds=300, action=BacklogAction.EVICT_OLDEST)),
        Policies(subscription_expiry_min=5),
    ],
    ids=["ttl", "backlog quota", "subscription expiry"],
)
@pytest.mark.parametrize("crashed", [False, True])
def test_a_backlog_expires_although_the_policy_came_after_the_topic_was_unloaded(
    run: Callable, policies: Policies, crashed: bool
) -> None:
    async def scenario(bench) -> None:
        context = await bench.context(roll_entries=2, broker=BrokerSettings(idle_s=60, unload_s=60))
        former = await filled(bench, context, Retention(-1, -1), "slow")
        if crashed:  # no overview of it is valid
            await former.load(NAME)
        registry = PlainRegistry(policies.over(Policies(retention=Retention(-1, -1))))
        await registry.ensure_topic(NAME)
        broker = Broker(context, registry, SoleOwner())
        broker.start()
        await bench.runtime.clock.sleep(200)
        if not crashed:  # statistics load what has no overview
            assert [one.backlog for one in (await broker.stats(NAME)).subscriptions] == [6]
        await bench.runtime.clock.sleep(2000)
        assert [one.backlog for one in (await broker.stats(NAME)).subscriptions] in ([], [0])
        assert broker.loaded == []
        epoch = (await chain_of(context)).epoch
        await bench.runtime.clock.sleep(1000)  # what is left has nothing to expire
        assert (await chain_of(context)).epoch == epoch
        await broker.close()

    run(scenario)
