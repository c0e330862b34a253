"""Bytes in hand: what one connection, and all together, may have."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.api import SubscriptionType
from weir.broker.dispatch.window import Total, Window


def test_over_its_limit_a_connection_is_full_until_half_is_free() -> None:
    window = Window(100, Total(10_000))
    window.take(60)
    assert not window.full
    window.take(60)
    assert window.full
    window.free(60)
    assert window.full
    window.free(20)
    assert not window.full


def test_who_waits_is_told_in_turn_as_long_as_there_is_room() -> None:
    window = Window(100, Total(10_000))
    told: list[str] = []

    def greedy() -> None:
        told.append("greedy")
        window.take(200)

    window.wait("greedy", greedy)
    window.wait("late", lambda: told.append("late"))
    window.take(100)
    window.free(100)
    assert told == ["greedy"]
    window.forget("greedy")
    window.free(200)
    assert told == ["greedy", "late"]


def test_over_the_limit_of_all_everybody_may_still_have_one_delivery() -> None:
    total = Total(100)
    rich, poor = Window(1000, total), Window(1000, total)
    told: list[str] = []
    rich.take(150)
    assert rich.full
    assert not poor.full
    poor.take(50)
    assert poor.full
    poor.wait("poor", lambda: told.append("poor"))
    rich.free(100)
    assert told == []
    rich.free(50)
    assert told == ["poor"]
    assert total.taken == 50


def test_what_a_connection_had_is_free_when_it_is_gone() -> None:
    total = Total(100)
    gone = Window(1000, total)
    gone.take(500)
    gone.close()
    assert total.taken == 0
    assert not total.over


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_consumer_gets_no_more_than_its_connection_may_have_in_hand(
    run: Callable, kind: SubscriptionType
) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        window = Window(1000, Total(10_000))
        consumer = await bench.consumer(topic, type=kind, window=window)
        texts = [f"k{number % 3}:{number:097}" for number in range(50)]  # 100 bytes each
        await bench.publish(producer, *texts)
        found: list[str] = []
        while len(found) < 50:
            taken = await consumer.next(1000)
            assert 0 < window.taken <= 1000 + 100
            found += bench.texts(taken)
            if window.full and len(found) < 50:
                assert await bench.nothing(consumer)  # whatever its credit
            window.free(sum(len(delivery.batch.payload) for delivery in taken))
        assert found == texts
        assert window.taken == 0

    run(scenario)


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_what_was_given_and_not_taken_is_in_nobodys_hand_when_its_consumer_goes(
    run: Callable, kind: SubscriptionType
) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        total = Total(10_000)
        window, other = Window(1000, total), Window(1000, total)
        consumer = await bench.consumer(topic, type=kind, window=window)
        waiting = asyncio.ensure_future(consumer.next(10))
        await bench.publish(producer, "k:a", "k:b")
        await waiting
        window.free(window.taken)
        waiting = asyncio.ensure_future(consumer.next(10))
        await bench.runtime.clock.sleep(0)
        producer.publish(bench.out("k:c"))
        while not window.taken and not waiting.done():
            await bench.runtime.clock.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await consumer.close()
        if waiting.cancelled():
            assert window.taken == 0
        again = await bench.consumer(topic, type=kind, window=other)
        assert len(bench.texts(await again.next(10))) == 3

    run(scenario)
