"""Half messages of a topic: not seen before they are committed, decided once, asked about, given up in the end."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from weir.broker.api.consumers import SubscriptionType
from weir.broker.api.topics import HalfCheck
from weir.broker.settings import BrokerSettings, HalfSettings
from weir.meta import keys
from weir.model.batch import HeldId
from weir.model.errors import (
    HalfDecidedError,
    InvalidNameError,
    NotAllowedError,
    NotAuthorisedError,
    NotHeldError,
    TooManyError,
)
from weir.model.messages import Decision, Preparation
from weir.model.topics import TopicName

COMMIT, ROLL_BACK = Decision.COMMIT, Decision.ROLL_BACK
GROUP = Preparation("shop")


async def prepare(bench, producer, text: str, half: Preparation = GROUP) -> HeldId:
    receipt = await producer.publish(bench.out(text, half=half))
    assert receipt.held
    return HeldId(*receipt.position)


class Asked:
    """A producer that notes what it is asked."""

    def __init__(self, there: bool = True) -> None:
        self.there = there
        self.checks: list[HalfCheck] = []

    def check_half(self, check: HalfCheck) -> bool:
        if self.there:
            self.checks.append(check)
        return self.there


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_half_message_is_seen_once_it_is_committed_and_not_before(run: Callable, kind: SubscriptionType) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer, consumer = await bench.producer(topic), await bench.consumer(topic, type=kind)
        first = await prepare(bench, producer, "half:1")
        second = await prepare(bench, producer, "half:2")
        third = await prepare(bench, producer, "half:3")
        await bench.publish(producer, "whole:0")
        assert await bench.receive(consumer, 1) == ["whole:0"]
        assert topic.end_offset == 1  # no place in the log, and so none in any cursor
        assert await bench.nothing(consumer)
        decided = await topic.half.decide(second, COMMIT, role="r")
        assert (decided.offset, decided.again) == (1, False)
        await topic.half.decide(first, ROLL_BACK, role="r")
        assert await bench.receive(consumer, 1) == ["half:2"]
        assert await bench.nothing(consumer)
        assert [half.id for half in await topic.half.waiting()] == [third]
        assert topic.half.counts.waiting == topic.half.counts.committed == topic.half.counts.rolled_back == 1
        await topic.close()

    run(scenario)


@pytest.mark.parametrize("graceful", [True, False])
def test_what_is_decided_stays_decided_whoever_has_the_topic(run: Callable, graceful: bool) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        kept, gone, open_ = [await prepare(bench, producer, text) for text in ("kept", "gone", "open")]
        await topic.half.decide(kept, COMMIT, role="r")
        await topic.half.decide(gone, ROLL_BACK, role="r")
        for _ in range(2):
            assert (await topic.half.decide(kept, COMMIT, role="r")).again
            assert (await topic.half.decide(gone, ROLL_BACK, role="r")).again
            with pytest.raises(HalfDecidedError, match="rolled back before"):
                await topic.half.decide(gone, COMMIT, role="r")
            with pytest.raises(HalfDecidedError, match="committed before"):
                await topic.half.decide(kept, ROLL_BACK, role="r")
            if graceful:
                await topic.close()
            topic = await bench.topic()  # without a word to the one before
        assert [half.id for half in await topic.half.waiting()] == [open_]
        assert await bench.receive(await bench.consumer(topic), 1) == ["kept"]
        await topic.half.decide(open_, COMMIT, role="r")
        assert topic.end_offset == 2
        await topic.close()

    run(scenario)


def test_several_who_decide_at_once_get_one_answer(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        half = await prepare(bench, await bench.producer(topic), "m")
        decisions = [topic.half.decide(half, which, role="r") for which in (COMMIT, COMMIT, ROLL_BACK, COMMIT)]
        first, second, other, third = await asyncio.gather(*decisions, return_exceptions=True)
        assert (first.again, second.again, third.again) == (False, True, True)
        assert isinstance(other, HalfDecidedError)
        assert topic.end_offset == 1
        await topic.close()

    run(scenario)


def test_a_decision_goes_to_its_end_when_nobody_waits_for_it_any_more(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        half = await prepare(bench, await bench.producer(topic), "m")
        asking = asyncio.create_task(topic.half.decide(half, COMMIT, role="r"))
        await asyncio.sleep(0)
        asking.cancel()
        assert (await topic.half.decide(half, COMMIT, role="r")).again
        assert topic.end_offset == 1
        await topic.close()

    run(scenario)


def test_live_producers_of_the_group_are_asked_in_turn_after_its_recovery_time(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(broker=BrokerSettings(half=HalfSettings(recovery_s=6, interval_s=30)))
        checkers, clock = topic._context.half_checkers, bench.runtime.clock
        gone, first, second, other = Asked(False), Asked(), Asked(), Asked()
        for checker in (gone, first, second):
            checkers.register("shop", checker, role="r")
        checkers.register("another", other, role="r")
        producer = await bench.producer(topic)
        half = await prepare(bench, producer, "m")
        patient = await prepare(bench, producer, "patient", Preparation("shop", recovery_ms=100_000))
        await clock.sleep(5)
        assert not first.checks
        await clock.sleep(2)
        (check,) = first.checks
        assert (check.topic, check.message.id, bytes(check.batch.payload)) == (topic.name, half, b"m")
        await clock.sleep(60)
        assert [len(asked.checks) for asked in (gone, first, second, other)] == [0, 2, 1, 0]
        await topic.half.decide(half, COMMIT, role="r")
        await clock.sleep(40)
        assert {check.message.id for check in [*first.checks, *second.checks]} == {half, patient}
        assert topic.half.counts.checked == 4
        await topic.close()

    run(scenario)


def test_what_nothing_is_heard_of_is_rolled_back_and_said_so(
    run: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(bench) -> None:
        few = BrokerSettings(half=HalfSettings(recovery_s=1, interval_s=10, checks=3))
        topic = await bench.topic(broker=few)
        half = await prepare(bench, await bench.producer(topic), "m")
        await bench.runtime.clock.sleep(25)
        topic = await bench.topic(broker=few)  # rounds count on
        assert [one.checks for one in await topic.half.waiting()] == [3]
        await bench.runtime.clock.sleep(10)
        assert not await topic.half.waiting()
        counts = topic.half.counts
        assert (counts.given_up, counts.rolled_back, counts.checked) == (1, 1, 0)
        with pytest.raises(HalfDecidedError):
            await topic.half.decide(half, COMMIT, role="r")
        assert topic.end_offset == 0
        await topic.close()

    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert "of group 'shop' is rolled back: nothing was heard of it in 3 checks" in caplog.text


def test_a_role_that_may_not_produce_is_neither_asked_nor_decides(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(broker=BrokerSettings(half=HalfSettings(recovery_s=1, interval_s=10)))
        half = await prepare(bench, await bench.producer(topic), "m")
        stranger = Asked()
        topic._context.half_checkers.register("shop", stranger, role="stranger")

        class Guard(type(topic._context.guard)):
            def check(self, role, *_, **__) -> None:
                if role == "stranger":
                    raise NotAuthorisedError("no")

        guard = Guard()
        topic.half._guard = guard
        object.__setattr__(topic.half._checking, "_ask_one", _asking(topic._context, guard))
        await bench.runtime.clock.sleep(30)
        assert not stranger.checks
        assert topic.half.counts.unasked
        with pytest.raises(NotAuthorisedError):
            await topic.half.decide(half, COMMIT, role="stranger")
        await topic.close()

    run(scenario)


def _asking(context, guard):
    return lambda check: context.half_checkers.ask_anywhere(check, guard)


def test_a_half_message_is_no_delayed_message(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        half = await prepare(bench, producer, "m")
        due = bench.runtime.clock.wall_ms() + 60_000
        await producer.publish(bench.out("later", deliver_at_ms=due))
        held = topic.stored.held
        assert [item.due_ms async for item in held.items()] == [due]
        assert ((await held.count()).messages, topic.stored.held_messages) == (1, 1)
        for act in (held.cancel, held.release):
            with pytest.raises(NotHeldError, match="waits for a decision"):
                await act(half)
        assert (await topic.half.get(half))[1].payload == b"m"
        await topic.close()

    run(scenario)


def test_what_cannot_be_a_half_message_is_refused(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(broker=BrokerSettings(half=HalfSettings(most=1)))
        producer = await bench.producer(topic)
        with pytest.raises(NotAllowedError):
            await producer.publish(bench.out("m", half=GROUP, deliver_at_ms=1))
        for name in ("", "x" * 1025):
            with pytest.raises(InvalidNameError):
                await producer.publish(bench.out("m", half=replace(GROUP, group=name)))
        await prepare(bench, producer, "m")
        with pytest.raises(TooManyError, match="not decided"):
            await producer.publish(bench.out("m", half=GROUP))
        with pytest.raises(NotHeldError):
            await topic.half.decide(HeldId(99, 0), COMMIT, role="r")
        await topic.close()

    run(scenario)


def test_a_topic_with_half_messages_is_loaded_by_itself_after_its_broker_died(run: Callable) -> None:
    async def scenario(bench) -> None:
        few = BrokerSettings(half=HalfSettings(recovery_s=1, interval_s=5, checks=2))
        broker = await bench.broker(broker=few)
        name = TopicName.parse("t")
        topic = await broker.topic(name, role="r")
        half = await prepare(bench, await bench.producer(topic), "m")
        await bench.runtime.clock.sleep(1)
        again = await bench.broker(broker=few)  # without a word to the one before
        again._registry._topics.update(broker._registry._topics)
        asked = Asked()
        again.half_checkers.register("shop", asked, role="r")
        again.start()
        await bench.runtime.clock.sleep(8)
        assert [check.message.id for check in asked.checks][:1] == [half]
        await bench.runtime.clock.sleep(60)
        assert again.served_now(name).half.counts.given_up == 1
        assert not (await again._context.streams.meta.list(keys.HALF_TOPICS)).items
        await again.close()

    run(scenario)
