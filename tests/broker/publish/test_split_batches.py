"""Batches in parts: stored, held and cancelling, with one receipt, and once only for idempotent producers."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from weir.broker.api.producers import Outgoing
from weir.broker.publish.split_batches import DelayedNames
from weir.model.batch import Batch, BatchFormat, HeldId, Stamp
from weir.model.errors import (
    NotHeldError,
    OutOfOrderSequenceError,
    StaleEpochError,
    StreamClosedError,
    WeirError,
)
from weir.model.policies import Policies
from weir.testing.broker.crashing import lose_bookies

CRASHED = pytest.mark.parametrize("graceful", [True, False], ids=["closed", "crashed"])


def part(text: str, due_ms: int | None = None, **more: Any) -> Outgoing:
    name = text.partition("#")[2] or None
    return Outgoing(text.encode(), 1, BatchFormat.PULSAR, deliver_at_ms=due_ms, delay_id=name, **more)


def cancel(name: str) -> Outgoing:
    return Outgoing(b"", 1, BatchFormat.PULSAR, cancels=name)


def whole(parts: Sequence[Outgoing], stamp: Stamp | None = None) -> Outgoing:
    """The batch of these parts, one message each."""
    if stamp is not None:
        parts = [replace(p, stamp=replace(stamp, sequence=stamp.sequence + n)) for n, p in enumerate(parts)]
    return Outgoing(b"whole", len(parts), BatchFormat.PULSAR, stamp=stamp, parts=tuple(parts))


def plain(text: str, stamp: Stamp) -> Outgoing:
    return Outgoing(text.encode(), 1, BatchFormat.PULSAR, stamp=stamp)


async def held(topic: Any) -> int:
    return 0 if topic.stored.area is None else (await topic.stored.area.count()).batches


def test_parts_are_seen_in_their_time_and_have_one_receipt(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        producer, consumer = await bench.producer(topic), await bench.consumer(topic)
        now = bench.runtime.clock.wall_ms()
        receipt = await producer.publish(whole([part("a"), part("later", now + 10_000), part("b")]))
        assert receipt.held
        assert await bench.receive(consumer, 2) == ["a", "b"]
        assert await bench.receive(consumer, 1) == ["later"]
        assert bench.runtime.clock.wall_ms() - now >= 10_000
        await topic.close()

    run(scenario)


def test_parts_that_are_all_stored_have_the_first_ones_offset(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic(policies=Policies(delayed_delivery=False))
        producer = await bench.producer(topic)
        await bench.publish(producer, "first")
        receipt = await producer.publish(whole([part("a", 1 << 50), part("b")]))
        assert (receipt.offset, receipt.held) == (1, False)
        await topic.close()

    run(scenario)


def test_a_cancellation_takes_back_what_has_its_name_and_nothing_else(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        producer, consumer = await bench.producer(topic), await bench.consumer(topic)
        due = bench.runtime.clock.wall_ms() + 10_000
        await producer.publish(whole([part("x#1", due), part("y#2", due), part("z#1", due)]))
        assert await held(topic) == 3
        await producer.publish(whole([cancel("1"), part("now")]))
        assert await held(topic) == 1
        await producer.publish(whole([cancel("1")]))
        await producer.publish(whole([cancel("nobody")]))
        assert await bench.receive(consumer, 2) == ["now", "y#2"]
        await producer.publish(whole([cancel("2")]))  # too late
        assert topic.end_offset == 2
        await topic.close()

    run(scenario)


@CRASHED
def test_a_cancellation_finds_what_a_former_broker_held(run: Callable, graceful: bool) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        due = bench.runtime.clock.wall_ms() + 30_000
        await (await bench.producer(topic)).publish(whole([part(f"m#{n}", due) for n in range(5)]))
        if graceful:
            await topic.close()
        again = await bench.topic()
        await (await bench.producer(again)).publish(whole([cancel("3")]))
        assert await bench.receive(await bench.consumer(again), 4) == ["m#0", "m#1", "m#2", "m#4"]
        await again.close()

    run(scenario)


class FakeHolding:
    """Held names, and what was asked."""

    def __init__(self, *names: str) -> None:
        self.names = dict(enumerate(names))
        self.looks = 0

    async def held_since(self, positions: Any) -> AsyncGenerator[tuple[HeldId, Batch], None]:
        self.looks += 1
        for entry, name in list(self.names.items()):
            await asyncio.sleep(0)
            yield HeldId(1, entry), Batch(0, 1, BatchFormat.PULSAR, 0, name.encode())

    async def cancel(self, held: HeldId) -> None:
        if self.names.pop(held.entry, None) is None:
            raise NotHeldError("gone")


def names_of(*, most: int, incomplete: bool = False) -> DelayedNames:
    names = DelayedNames(lambda batch: bytes(batch.payload).decode(), most=most)
    names.incomplete = incomplete
    return names


async def test_what_is_held_is_looked_through_once_if_all_names_can_be_remembered() -> None:
    holding: Any = FakeHolding("a", "b", "a", "c")
    names = names_of(most=10, incomplete=True)
    assert await asyncio.gather(names.cancel("a", holding), names.cancel("x", holding)) == [2, 0]
    assert await names.cancel("c", holding) == 1
    assert await names.cancel("c", holding) == 0
    assert (holding.names, holding.looks) == ({1: "b"}, 1)


async def test_names_beyond_the_bound_are_looked_for_again() -> None:
    holding: Any = FakeHolding("a", "b", "c", "d")
    names = names_of(most=2, incomplete=True)
    for name in ("a", "b", "c", "d"):
        assert await names.cancel(name, holding) == 1
    assert holding.names == {}
    others = names_of(most=2)
    for entry in range(3):
        assert not others.incomplete
        others.held(str(entry), HeldId(1, entry))
    assert others.incomplete


async def test_a_look_that_fails_is_looked_again() -> None:
    class Failing(FakeHolding):
        async def held_since(self, positions: Any) -> AsyncGenerator[tuple[HeldId, Batch], None]:
            raise StreamClosedError("closed")
            yield

    names = names_of(most=2, incomplete=True)
    failing: Any = Failing()
    with pytest.raises(StreamClosedError):
        await names.cancel("a", failing)
    whole_again: Any = FakeHolding("a")
    assert await names.cancel("a", whole_again) == 1


# --- idempotent producers -------------------------------------------------------------------------------------


def test_a_parted_batch_that_is_sent_again_is_known(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        producer, consumer = await bench.producer(topic), await bench.consumer(topic)
        now = bench.runtime.clock.wall_ms()
        batch = whole([part("a"), part("b#id", now + 10_000), part("c")], Stamp(7, 0, 0))
        first, second = producer.publish(batch), producer.publish(batch)  # while it is under way
        assert not (await first).duplicate
        assert (await second).duplicate
        assert (await producer.publish(batch)).duplicate
        assert await held(topic) == 1
        assert not (await producer.publish(plain("d", Stamp(7, 0, 3)))).duplicate
        assert (await producer.publish(batch)).duplicate
        with pytest.raises(OutOfOrderSequenceError):
            await producer.publish(plain("gap", Stamp(7, 0, 9)))
        assert await bench.receive(consumer, 4) == ["a", "c", "d", "b#id"]
        await topic.close()

    run(scenario)


def test_what_is_sent_behind_it_waits_for_its_turn(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        producer, consumer = await bench.producer(topic), await bench.consumer(topic)
        now = bench.runtime.clock.wall_ms()
        receipts = [
            producer.publish(plain("first", Stamp(7, 0, 0))),
            producer.publish(whole([part("later", now + 10_000), part("a")], Stamp(7, 0, 1))),
            producer.publish(plain("b", Stamp(7, 0, 3))),
            producer.publish(plain("other", Stamp(8, 0, 0))),
            producer.publish(whole([part("c")], Stamp(7, 0, 4))),
            producer.publish(plain("d", Stamp(7, 0, 5))),
        ]
        assert [(await receipt).duplicate for receipt in receipts] == [False] * 6
        texts = await bench.receive(consumer, 7)
        assert [text for text in texts if text != "other"] == ["first", "a", "b", "c", "d", "later"]
        await topic.close()

    run(scenario)


def test_more_parts_than_duplicates_are_kept_do_not_push_out_what_came_before(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        before = plain("before", Stamp(7, 0, 0))
        await producer.publish(before)
        batch = whole([part(f"m{n}") for n in range(20)], Stamp(7, 0, 1))
        await producer.publish(batch)
        assert (await producer.publish(before)).duplicate
        assert (await producer.publish(batch)).duplicate
        assert topic.end_offset == 21
        await topic.close()

    run(scenario)


@CRASHED
def test_held_parts_are_known_after_a_restart(run: Callable, graceful: bool) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        due = bench.runtime.clock.wall_ms() + 30_000
        all_held = whole([part("a", due), part("b", due)], Stamp(7, 0, 0))
        mixed = whole([part("c"), part("d", due)], Stamp(7, 0, 2))
        await producer.publish(all_held)
        await producer.publish(mixed)
        if graceful:
            await topic.close()
        again = await bench.topic()
        producer = await bench.producer(again)
        assert (await producer.publish(mixed)).duplicate
        await producer.publish(plain("e", Stamp(7, 0, 4)))
        assert await held(again) == 3
        texts = await bench.receive(await bench.consumer(again), 5)
        assert texts == ["c", "e", "a", "b", "d"]
        await again.close()

    run(scenario)


@pytest.mark.parametrize("taken", [1, 2, 3, 4])
@CRASHED
def test_a_batch_of_which_a_beginning_is_stored_goes_on_behind_it(
    run: Callable, taken: int, graceful: bool
) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        due = bench.runtime.clock.wall_ms() + 30_000
        stamp = Stamp(7, 0, 0x7FFFFFFE)  # sequence numbers begin anew after the last
        parts = [part("a", due), part("b"), part("c", due), part("d")]
        batch = _wrapped(parts, stamp)
        beginning = replace(batch, count=taken, parts=batch.parts[:taken])
        await (await bench.producer(topic)).publish(beginning)  # and the broker dies before the rest
        if graceful:
            await topic.close()
        again = await bench.topic()
        producer = await bench.producer(again)
        assert (await producer.publish(batch)).duplicate is (taken == 4)
        assert (await producer.publish(batch)).duplicate
        await producer.publish(plain("e", Stamp(7, 0, 2)))
        assert sorted(await bench.receive(await bench.consumer(again), 5)) == ["a", "b", "c", "d", "e"]
        await again.close()

    run(scenario)


def _wrapped(parts: Sequence[Outgoing], stamp: Stamp) -> Outgoing:
    stamped = tuple(
        replace(one, stamp=replace(stamp, sequence=(stamp.sequence + n) & 0x7FFFFFFF))
        for n, one in enumerate(parts)
    )
    return Outgoing(b"whole", len(parts), BatchFormat.PULSAR, stamp=stamp, parts=stamped)


@CRASHED
def test_a_cancellation_uses_up_its_sequence_number_for_good(run: Callable, graceful: bool) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        await producer.publish(plain("a", Stamp(7, 0, 0)))
        await producer.publish(whole([cancel("x"), cancel("y")], Stamp(7, 0, 1)))
        if graceful:
            await topic.close()
        again = await bench.topic()
        producer = await bench.producer(again)
        await producer.publish(plain("b", Stamp(7, 0, 3)))
        with pytest.raises(OutOfOrderSequenceError):
            await producer.publish(plain("gap", Stamp(7, 0, 5)))
        assert await bench.receive(await bench.consumer(again), 2) == ["a", "b"]
        await again.close()

    run(scenario)


def test_an_old_epoch_delays_nothing(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        due = bench.runtime.clock.wall_ms() + 30_000
        await producer.publish(whole([part("a", due)], Stamp(7, 1, 0)))
        with pytest.raises(StaleEpochError):
            await producer.publish(whole([part("b", due)], Stamp(7, 0, 1)))
        assert await held(topic) == 1
        await topic.close()

    run(scenario)


# --- failures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_everything_is_seen_once_whatever_fails_in_between(run: Callable, seed: int) -> None:
    async def scenario(bench: Any) -> None:
        dice = Random(f"parting {seed}")
        clock = bench.runtime.clock
        topic = await bench.topic()
        number = sequence = 0
        for _ in range(12):
            batches: list[Outgoing] = []
            for _ in range(dice.randrange(1, 4)):
                parts = []
                for _ in range(dice.randrange(1, 5)):
                    due = clock.wall_ms() + dice.randrange(1, 20_000) if dice.random() < 0.5 else None
                    parts.append(part(f"m{number}", due))
                    number += 1
                batches.append(whole(parts, Stamp(7, 0, sequence)))
                sequence += len(parts)
            topic = await _send_until_stored(bench, topic, batches, dice)
        texts = await bench.receive(await bench.consumer(topic), number)
        counts = Counter(texts)
        assert {text: count for text, count in counts.items() if count > 1} == {}
        assert sorted(texts) == sorted(f"m{n}" for n in range(number))
        assert topic.end_offset == number
        assert await held(topic) == 0
        await topic.close()

    run(scenario, seed)


async def _send_until_stored(bench: Any, topic: Any, batches: Sequence[Outgoing], dice: Random) -> Any:
    """Send the batches as a client does, all at once, and again from the first that failed; meanwhile bookies go
    away, their answers get lost, and the topic moves to another broker. Answers the topic where it is now."""
    left = list(batches)
    while left:
        try:
            producer = await bench.producer(topic)
        except WeirError:
            await bench.runtime.clock.sleep(dice.random())
            continue
        answers = [producer.publish(batch) for batch in left]
        if dice.random() < 0.4:
            await lose_bookies(bench.bookies, bench.runtime.clock, dice)
        for answer in await asyncio.gather(*answers, return_exceptions=True):
            if not isinstance(answer, WeirError):
                left.pop(0)  # what stands behind a failure fails too
        if dice.random() < 0.3:
            topic = await bench.topic()  # the former one is fenced
    return topic
