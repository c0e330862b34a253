"""Bytes in hand: what one connection, and all together, may have."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.api.consumers import SubscriptionType
from weir.runtime.budgets import ByteBudget


def test_over_its_limit_a_connection_is_full_until_half_is_free() -> None:
    share = ByteBudget(10_000).share(100)
    share.acquire(60)
    assert not share.exhausted
    share.acquire(60)
    assert share.exhausted
    share.release(60)
    assert share.exhausted
    share.release(20)
    assert not share.exhausted


def test_who_waits_is_told_in_turn_as_long_as_there_is_room() -> None:
    share = ByteBudget(10_000).share(100)
    told: list[str] = []

    def greedy() -> None:
        told.append("greedy")
        share.acquire(200)

    share.on_capacity("greedy", greedy)
    share.on_capacity("late", lambda: told.append("late"))
    share.acquire(100)
    share.release(100)
    assert told == ["greedy"]
    share.forget("greedy")
    share.release(200)
    assert told == ["greedy", "late"]


def test_over_the_limit_of_all_everybody_may_still_have_one_delivery() -> None:
    total = ByteBudget(100, resume_bytes=50, equal_parts=False)
    rich, poor = total.share(1000), total.share(1000)
    told: list[str] = []
    rich.acquire(150)
    assert rich.exhausted
    assert not poor.exhausted
    poor.acquire(50)
    assert poor.exhausted
    poor.on_capacity("poor", lambda: told.append("poor"))
    rich.release(100)
    assert told == []
    rich.release(50)
    assert told == ["poor"]
    assert total.used_bytes == 50


def test_what_a_connection_had_is_free_when_it_is_gone() -> None:
    total = ByteBudget(100, resume_bytes=50, equal_parts=False)
    gone = total.share(1000)
    gone.acquire(500)
    gone.close()
    assert total.used_bytes == 0
    assert not total.exhausted


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_consumer_gets_no_more_than_its_connection_may_have_in_hand(
    run: Callable, kind: SubscriptionType
) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        share = ByteBudget(10_000).share(1000)
        consumer = await bench.consumer(topic, type=kind, delivery_share=share)
        texts = [f"k{number % 3}:{number:097}" for number in range(50)]  # 100 bytes each
        await bench.publish(producer, *texts)
        found: list[str] = []
        while len(found) < 50:
            taken = await consumer.next(1000)
            assert 0 < share.used_bytes <= 1000 + 100
            found += bench.texts(taken)
            if share.exhausted and len(found) < 50:
                assert await bench.nothing(consumer)  # whatever its credit
            share.release(sum(len(delivery.batch.payload) for delivery in taken))
        assert found == texts
        assert share.used_bytes == 0

    run(scenario)


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_what_was_given_and_not_taken_is_in_nobodys_hand_when_its_consumer_goes(
    run: Callable, kind: SubscriptionType
) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        total = ByteBudget(10_000)
        share, other = total.share(1000), total.share(1000)
        consumer = await bench.consumer(topic, type=kind, delivery_share=share)
        waiting = asyncio.ensure_future(consumer.next(10))
        await bench.publish(producer, "k:a", "k:b")
        await waiting
        share.release(share.used_bytes)
        waiting = asyncio.ensure_future(consumer.next(10))
        await bench.runtime.clock.sleep(0)
        producer.publish(bench.out("k:c"))
        while not share.used_bytes and not waiting.done():
            await bench.runtime.clock.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await consumer.close()
        if waiting.cancelled():
            assert share.used_bytes == 0
        again = await bench.consumer(topic, type=kind, delivery_share=other)
        assert len(bench.texts(await again.next(10))) == 3

    run(scenario)
