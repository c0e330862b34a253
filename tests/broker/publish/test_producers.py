"""Producers: access modes, names, limits, and what happens to them when storing fails."""

import asyncio
from collections.abc import Callable

import pytest

from weir.broker.api.producers import AccessMode
from weir.broker.settings import BrokerSettings
from weir.model.errors import (
    BookieUnavailableError,
    InvalidNameError,
    MessageTooLargeError,
    ProducerBusyError,
    ProducerClosedError,
    ProducerFencedError,
    StreamTerminatedError,
    TooManyError,
    WeirError,
)
from weir.model.policies import Policies, Rate
from weir.model.topics import TopicName
from weir.runtime.budgets import ByteBudget

EXCLUSIVE, WAIT, FENCE = (
    AccessMode.EXCLUSIVE,
    AccessMode.WAIT_FOR_EXCLUSIVE,
    AccessMode.EXCLUSIVE_WITH_FENCING,
)


def test_a_name_that_batches_cannot_carry_is_refused(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=Policies(deduplication=True))
        with pytest.raises(InvalidNameError, match="4096 bytes"):
            await bench.producer(topic, "n" * 70_000)
        longest = await bench.producer(topic, "n" * 4096)
        await longest.publish(bench.out("m", sequence=0))
        assert longest.last_sequence == 0

    run(scenario)


def test_an_exclusive_producer_keeps_others_out_until_it_leaves(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        only = await bench.producer(topic, access=EXCLUSIVE)
        with pytest.raises(ProducerBusyError):
            await bench.producer(topic)
        with pytest.raises(ProducerFencedError):
            await bench.producer(topic, access=EXCLUSIVE)
        await only.close()
        await bench.producer(topic)
        with pytest.raises(ProducerFencedError):
            await bench.producer(topic, access=EXCLUSIVE)

    run(scenario)


def test_one_that_waits_is_let_in_when_the_others_have_gone_and_may_not_send_before(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        first, second = await bench.producer(topic), await bench.producer(topic)
        waiting = await bench.producer(topic, access=WAIT)
        ready = asyncio.ensure_future(waiting.wait_admitted())
        await first.close()
        await bench.runtime.clock.sleep(1)
        assert not ready.done()
        with pytest.raises(ProducerClosedError):
            await waiting.publish(bench.out("too early"))
        with pytest.raises(ProducerBusyError):
            await bench.producer(topic)
        await second.close()
        await ready
        assert waiting.topic_epoch == 0
        await bench.publish(waiting, "now")

    run(scenario)


def test_a_fencing_producer_throws_everyone_out_and_the_epoch_survives_a_restart(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        old = await bench.producer(topic, access=EXCLUSIVE)
        assert old.topic_epoch == 0
        new = await bench.producer(topic, access=FENCE)
        assert "fenced" in await old.closed()
        with pytest.raises(ProducerClosedError):
            await old.publish(bench.out("ghost"))
        assert new.topic_epoch == 1
        again = await bench.topic()
        with pytest.raises(ProducerFencedError):
            await bench.producer(again, access=EXCLUSIVE, topic_epoch=0)
        back = await bench.producer(again, access=EXCLUSIVE, topic_epoch=1)
        assert back.topic_epoch == 1

    run(scenario)


def test_a_taken_name_is_an_error_if_it_was_given_and_a_reconnect_if_not(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        first = await bench.producer(topic, "p", name_is_given=True)
        with pytest.raises(ProducerBusyError):
            await bench.producer(topic, "p", name_is_given=True)
        second = await bench.producer(topic, "p")
        await first.closed()
        await bench.publish(second, "m")
        generated = [(await bench.producer(topic)).name for _ in range(3)]
        assert len(set(generated)) == 3

    run(scenario)


def test_limits_on_producers_and_sizes_hold(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=Policies(max_producers=1, max_message_bytes=10))
        producer = await bench.producer(topic)
        with pytest.raises(TooManyError):
            await bench.producer(topic)
        with pytest.raises(MessageTooLargeError):
            await producer.publish(bench.out("x" * 11))
        await bench.publish(producer, "x" * 10)

    run(scenario)


def test_after_a_failed_append_everyone_connects_anew_and_nothing_overtakes_it(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer, other = await bench.producer(topic), await bench.producer(topic)
        await bench.publish(producer, "m0")
        for bookie in bench.bookies.bookies.values():
            bookie.failure = BookieUnavailableError("down")
        failing = producer.publish(bench.out("m1"))
        later = []

        def publish_more() -> None:
            """In the very moment in which the append fails, before anyone was told."""
            if topic.stream.failures and not later:
                for bookie in bench.bookies.bookies.values():
                    bookie.failure = None
                later.append(producer.publish(bench.out("m2")))

        topic.stream.listen(publish_more)
        with pytest.raises(WeirError):
            await failing
        await bench.runtime.clock.sleep(0)
        with pytest.raises(ProducerClosedError):
            await later[0]
        assert "could not be stored" in await other.closed()
        again = await bench.producer(topic)
        await bench.publish(again, "m1", "m2")
        texts = await bench.receive(await bench.consumer(topic), topic.end_offset)
        assert [text for i, text in enumerate(texts) if text not in texts[:i]] == ["m0", "m1", "m2"]

    run(scenario)


def test_the_publish_rate_slows_the_producer_down(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=Policies(publish_rate=Rate(messages=10)))
        producer = await bench.producer(topic)
        began = bench.runtime.clock.monotonic()
        for i in range(50):
            await producer.wait_capacity()
            await bench.publish(producer, f"m{i}")
        assert 3.5 <= bench.runtime.clock.monotonic() - began <= 5

    run(scenario)


def test_producers_relax_while_the_brokers_budget_is_used_up(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(broker=BrokerSettings(in_flight_bytes=100))
        producer = await bench.producer(topic)
        await bench.publish(producer, "warm")
        for bookie in bench.bookies.bookies.values():
            bookie.hold()
        sent = [producer.publish(bench.out("x" * 60)) for _ in range(2)]
        waiting = asyncio.ensure_future(producer.wait_capacity())
        await bench.runtime.clock.sleep(1)
        assert not waiting.done()
        for bookie in bench.bookies.bookies.values():
            bookie.release()
        await asyncio.gather(*sent)
        await waiting

    run(scenario)


def test_a_budget_wakes_those_who_wait_when_enough_was_given_back() -> None:
    async def main() -> None:
        share = ByteBudget(10).share()
        share.acquire(30)
        waiting = asyncio.ensure_future(share.wait_capacity())
        share.release(15)
        await asyncio.sleep(0)
        assert not waiting.done()
        share.release(10)
        await waiting

    asyncio.run(main())


def test_only_those_wait_who_use_more_than_their_share_of_an_exhausted_budget() -> None:
    budget = ByteBudget(100)
    floods = [budget.share(), budget.share()]
    modest = budget.share()
    for flood in floods:
        flood.acquire(80)
    modest.acquire(10)
    assert budget.exhausted
    assert [flood.exhausted for flood in floods] == [True, True]
    assert not modest.exhausted
    floods[0].release(80)
    assert not floods[1].exhausted, "90 of 100 are used"


def test_a_flood_of_some_topics_does_not_hold_up_another(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker(broker=BrokerSettings(in_flight_bytes=1000))
        floods = [await broker.load(TopicName.parse(f"flood{i}")) for i in range(3)]
        producers = [await bench.producer(topic) for topic in floods]
        calm = await bench.producer(await broker.load(TopicName.parse("calm")))
        await bench.publish(calm, "warm")
        for producer in producers:
            await bench.publish(producer, "warm")
        for bookie in bench.bookies.bookies.values():
            bookie.hold()
        sent = [producer.publish(bench.out("x" * 200)) for producer in producers for _ in range(3)]
        sent.append(calm.publish(bench.out("calm")))
        held_up = [asyncio.ensure_future(producer.wait_capacity()) for producer in producers]
        await calm.wait_capacity()
        await bench.runtime.clock.sleep(1)
        assert not any(waiting.done() for waiting in held_up)
        for bookie in bench.bookies.bookies.values():
            bookie.release()
        await asyncio.gather(*sent, *held_up)

    run(scenario)


def test_a_terminated_topic_takes_nothing_more_and_is_read_to_its_end(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        await bench.publish(producer, "last")
        last = await topic.stored.terminate()
        assert (last.ledger, last.entry) == topic.position_of(0)
        with pytest.raises(ProducerClosedError):  # it is told that it is over, and looks again
            await producer.publish(bench.out("more"))
        with pytest.raises(StreamTerminatedError):
            await (await bench.producer(topic)).publish(bench.out("more"))
        assert await bench.receive(await bench.consumer(topic), 1) == ["last"]

    run(scenario)


def test_batches_that_came_together_are_stored_as_one_and_follow_each_other(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=Policies(max_message_bytes=20))
        producer = await bench.producer(topic)
        await bench.publish(producer, "before")
        stored = producer.publish_all([bench.out("a"), bench.out("b", 3), bench.out("c")])
        after = producer.publish(bench.out("after"))
        receipt = await stored
        assert (receipt.offset, receipt.position) == (1, topic.position_of(1))
        assert (await after).offset == 6
        batches = await topic.read(0, 1000)
        assert [(batch.base_offset, bytes(batch.payload)) for batch in batches] == [
            (0, b"before"),
            (1, b"a"),
            (2, b"b"),
            (5, b"c"),
            (6, b"after"),
        ]
        later = bench.runtime.clock.wall_ms() + 60_000
        for special in (bench.out("x", deliver_at_ms=later), bench.out("x" * 21)):
            assert producer.publish_all([bench.out("a"), special]) is None
        assert topic.stats().published.messages == 7
        await topic.close()
        with pytest.raises(ProducerClosedError):
            await producer.publish_all([bench.out("a"), bench.out("b")])

    run(scenario)


def test_with_deduplication_each_batch_is_judged_on_its_own(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=Policies(deduplication=True))
        producer = await bench.producer(topic, "p")
        outgoing = [bench.out("a", sequence=0), bench.out("b", sequence=1)]
        assert producer.publish_all(outgoing) is None

    run(scenario)


def test_when_what_came_together_cannot_be_stored_its_producers_are_shut(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer, other = await bench.producer(topic), await bench.producer(topic)
        await bench.publish(producer, "before")
        for bookie in bench.bookies.bookies.values():
            bookie.failure = BookieUnavailableError("gone")
        with pytest.raises(WeirError):
            await producer.publish_all([bench.out("a"), bench.out("b")])
        assert not producer.open
        assert not other.open

    run(scenario)
