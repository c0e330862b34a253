"""Batches for one subscription alone: it gets them, and all others come past them as if there were nothing."""

from collections.abc import Callable

import pytest

from weir.broker.api.consumers import StartAt, SubscriptionType
from weir.broker.api.producers import Outgoing
from weir.model.batch import BatchFormat, Stamp
from weir.model.errors import NotAllowedError, SubscriptionNotFoundError
from weir.model.subscriptions import MessageFilter

SHARED, EXCLUSIVE = SubscriptionType.SHARED, SubscriptionType.EXCLUSIVE


def _only_for(name: str, text: str, sequence: int) -> Outgoing:
    return Outgoing(text.encode(), 1, BatchFormat.PULSAR, stamp=Stamp(7, 0, sequence), subscription=name)


@pytest.mark.parametrize("kind", [SHARED, EXCLUSIVE, SubscriptionType.KEY_SHARED])
def test_only_the_subscription_that_a_batch_is_for_gets_it_and_no_other_waits_for_it(
    run: Callable, kind: SubscriptionType
) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        mine = await bench.consumer(topic, type=kind, subscription="mine")
        await bench.consumer(topic, type=kind, subscription="idle")
        producer = await bench.producer(topic)
        await bench.publish(producer, "a")
        await producer.publish(_only_for("mine", "again", 0))
        assert (await producer.publish(_only_for("mine", "again", 0))).duplicate
        await bench.publish(producer, "b")
        assert await bench.receive(mine, 3) == ["a", "again", "b"]
        assert topic.stored.subscription("idle").backlog == 2
        assert topic.stored.subscription("mine").backlog == 3
        late = await bench.consumer(topic, type=kind, subscription="late", start=StartAt(offset=0))
        assert await bench.receive(late, 2) == ["a", "b"]
        late.ack([(0, 1), (2, 3)])
        assert topic.stored.subscription("late").cursor.mark_delete == 2

    run(scenario)


def test_what_is_for_a_subscription_alone_is_so_after_a_restart(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        await (await bench.consumer(topic, type=SHARED, subscription="mine")).persisted()
        producer = await bench.producer(topic)
        await bench.publish(producer, "a")
        await producer.publish(_only_for("mine", "again", 0))
        later = await bench.topic()
        assert await bench.receive(await bench.consumer(later, type=SHARED, subscription="mine"), 2) == [
            "a",
            "again",
        ]
        other = await bench.consumer(later, type=SHARED, subscription="other", start=StartAt(offset=0))
        assert await bench.receive(other, 1) == ["a"]
        sender = await bench.producer(later)
        assert (await sender.publish(_only_for("mine", "again", 0))).duplicate

    run(scenario)


def test_what_is_not_stamped_or_for_nobody_is_refused(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        with pytest.raises(SubscriptionNotFoundError):
            await producer.publish(_only_for("nobody", "x", 0))
        with pytest.raises(NotAllowedError):
            await producer.publish(Outgoing(b"x", 1, BatchFormat.PULSAR, subscription="nobody"))

    run(scenario)


def test_the_filter_of_a_subscription_does_not_keep_what_is_for_it_alone(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        only = MessageFilter("x = 'y'")
        mine = await bench.consumer(topic, type=SHARED, subscription="mine", filter=only)
        producer = await bench.producer(topic)
        await producer.publish(_only_for("mine", "again", 0))
        assert await bench.receive(mine, 1) == ["again"]

    run(scenario)
