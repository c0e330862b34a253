"""Messages that may not be seen yet, through producers and for every subscription type."""

from collections.abc import Callable

import pytest

from weir.broker.api.consumers import SubscriptionType
from weir.model.policies import Policies


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_delayed_message_is_delivered_in_its_time(run: Callable, kind: SubscriptionType) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        assert topic.stored.area is None
        producer, consumer = await bench.producer(topic), await bench.consumer(topic, type=kind)
        now = bench.runtime.clock.wall_ms()
        receipts = [
            producer.publish(bench.out("later:2", deliver_at_ms=now + 20_000)),
            producer.publish(bench.out("later:1", deliver_at_ms=now + 10_000)),
            producer.publish(bench.out("now:0")),
            producer.publish(bench.out("past:0", deliver_at_ms=now - 5)),
        ]
        assert [(await receipt).held for receipt in receipts] == [True, True, False, False]
        assert await bench.receive(consumer, 2) == ["now:0", "past:0"]
        assert await bench.receive(consumer, 1) == ["later:1"]
        assert 10_000 <= bench.runtime.clock.wall_ms() - now < 10_200
        again = await bench.topic()  # the rest is released by the next holder
        last = await bench.consumer(again, type=kind)
        texts = await bench.receive(last, 4)
        assert sorted(texts) == ["later:1", "later:2", "now:0", "past:0"]
        await again.close()

    run(scenario)


def test_where_policies_forbid_delay_messages_are_seen_at_once(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=Policies(delayed_delivery=False))
        producer, consumer = await bench.producer(topic), await bench.consumer(topic)
        await producer.publish(bench.out("m", deliver_at_ms=bench.runtime.clock.wall_ms() + 60_000))
        assert await bench.receive(consumer, 1) == ["m"]

    run(scenario)


@pytest.mark.parametrize("graceful", [True, False])
def test_a_held_message_is_not_held_twice_after_a_restart(run: Callable, graceful: bool) -> None:
    async def scenario(bench) -> None:
        on = Policies(deduplication=True)
        topic = await bench.topic(policies=on)
        producer = await bench.producer(topic, "p")
        due = bench.runtime.clock.wall_ms() + 30_000
        for number in range(3):
            await producer.publish(bench.out(f"m{number}", sequence=number, deliver_at_ms=due))
        if graceful:
            await topic.close()
        again = await bench.topic(policies=on)
        producer = await bench.producer(again, "p")
        assert producer.last_sequence == 2
        receipts = [
            await producer.publish(bench.out(f"m{number}", sequence=number, deliver_at_ms=due))
            for number in range(4)
        ]
        assert [receipt.duplicate for receipt in receipts] == [True, True, True, False]
        assert await bench.receive(await bench.consumer(again), 4) == ["m0", "m1", "m2", "m3"]
        await again.close()

    run(scenario)
