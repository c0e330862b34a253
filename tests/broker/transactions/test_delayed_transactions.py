"""Delayed messages in transactions: held at the commit and seen once, or never, whoever dies and when."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.broker.api.producers import Outgoing
from weir.broker.log.transaction_index import TransactionDelays
from weir.broker.settings import BrokerSettings
from weir.broker.upkeep.topic_upkeep import maintain
from weir.model.batch import Batch, BatchFlags, BatchFormat, HeldId, MovedFrom, Origin, Stamp
from weir.model.errors import (
    BookieUnavailableError,
    NotAllowedError,
    OutOfOrderSequenceError,
    WeirError,
    WireError,
)
from weir.model.policies import Policies, Retention
from weir.testing.broker.crashing import Liveness, crashing_lives, lose_bookies

CRASHED = pytest.mark.parametrize("graceful", [True, False], ids=["closed", "crashed"])


def part(text: str, due_ms: int | None = None) -> Outgoing:
    name = text.partition("#")[2] or None
    return Outgoing(text.encode(), 1, BatchFormat.PULSAR, deliver_at_ms=due_ms, delay_id=name, transactional=True)


def whole(parts: Sequence[Outgoing], stamp: Stamp) -> Outgoing:
    """The batch of these parts, one message each."""
    stamped = tuple(replace(p, stamp=replace(stamp, sequence=stamp.sequence + n)) for n, p in enumerate(parts))
    return Outgoing(b"whole", len(parts), BatchFormat.PULSAR, stamp=stamp, parts=stamped, transactional=True)


def cancel(name: str) -> Outgoing:
    return Outgoing(b"", 1, BatchFormat.PULSAR, parts=(Outgoing(b"", 1, BatchFormat.PULSAR, cancels=name),))


async def held(topic: Any) -> int:
    return 0 if topic.stored.area is None else (await topic.stored.area.count()).batches


async def moved(topic: Any) -> None:
    """Wait until everything that is committed is held."""
    while topic.producer_state.index.delays.unmoved:
        await topic._clock.sleep(0.01)


async def waiting(topic: Any) -> list[str]:
    """What is held."""
    area = topic.stored.area
    if area is None:
        return []
    return [bytes((await area.get(item.id))[1].payload).decode() async for item in area.items()]


# --- one broker -----------------------------------------------------------------------------------------------


def test_what_is_delayed_is_seen_after_the_commit_at_its_moment_and_the_rest_at_the_commit(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        clock = bench.runtime.clock
        producer, consumer = await bench.producer(topic), await bench.consumer(topic)
        due = clock.wall_ms() + 60_000
        batch = whole([part("a"), part("late", due), part("b"), part("later", due + 5_000)], Stamp(7, 0, 0))
        receipt = await producer.publish(batch)
        assert (receipt.offset, receipt.held) == (0, False)
        await producer.publish(bench.out("c", stamp=Stamp(7, 0, 4), transactional=True))
        assert await bench.nothing(consumer)
        assert await held(topic) == 0
        await topic.end_transaction(7, 0, commit=True)
        assert await bench.receive(consumer, 3, ack=True) == ["a", "b", "c"]
        await moved(topic)
        assert await held(topic) == 2
        assert topic.stored.subscription("s").backlog == 0
        assert clock.wall_ms() < due
        assert await bench.receive(consumer, 1) == ["late"]
        assert due <= clock.wall_ms() < due + 5_000
        assert await bench.receive(consumer, 1) == ["later"]
        assert await bench.nothing(consumer)
        await topic.close()

    run(scenario)


@CRASHED
def test_what_is_aborted_is_never_seen(run: Callable, graceful: bool) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        due = bench.runtime.clock.wall_ms() + 1_000
        await producer.publish(whole([part("late", due), part("a")], Stamp(7, 0, 0)))
        await topic.end_transaction(7, 0, commit=False)
        await bench.publish(producer, "other")
        if graceful:
            await topic.close()
        topic = await bench.topic()
        consumer = await bench.consumer(topic)
        assert await bench.receive(consumer, 1) == ["other"]
        assert await bench.nothing(consumer)
        assert await held(topic) == 0
        await topic.close()

    run(scenario)


def test_what_is_due_before_the_commit_is_seen_right_after_it(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        clock = bench.runtime.clock
        producer, consumer = await bench.producer(topic), await bench.consumer(topic)
        batch = whole([part("late", clock.wall_ms() + 1_000), part("past", 5)], Stamp(7, 0, 0))
        await producer.publish(batch)
        await clock.sleep(10)
        before = clock.wall_ms()
        await topic.end_transaction(7, 0, commit=True)
        assert await bench.receive(consumer, 2) == ["past", "late"]
        assert clock.wall_ms() - before < 1_000
        await topic.close()

    run(scenario)


@CRASHED
@pytest.mark.parametrize("name", [" committed", "stamp 7", "7"])
def test_no_producer_passes_for_the_broker_itself_whatever_it_is_called(
    run: Callable, name: str, graceful: bool
) -> None:
    """A committed delayed message is not taken for one already moved because a producer has the name and the
    sequence numbers that the broker used for those."""

    async def scenario(bench: Any) -> None:
        on = Policies(deduplication=True)
        topic = await bench.topic(policies=on)
        clock = bench.runtime.clock
        producer, outsider = await bench.producer(topic), await bench.producer(topic, name)
        due = clock.wall_ms() + 60_000
        await producer.publish(whole([part("late", due), part("later", due + 1)], Stamp(7, 0, 0)))
        for number in range(5):  # some are released before the end, and some are held still
            moment = clock.wall_ms() + (100 if number % 2 else 30_000)
            await outsider.publish(bench.out(f"x{number}", sequence=number, deliver_at_ms=moment))
        await clock.sleep(1)
        topic.writing.moves.wake = lambda: None  # it dies before it can hold what is committed
        await topic.end_transaction(7, 0, commit=True)
        if graceful:
            await topic.close()
        topic = await bench.topic(policies=on)
        consumer = await bench.consumer(topic)
        texts = await bench.receive(consumer, 7)
        assert sorted(texts) == ["late", "later", "x0", "x1", "x2", "x3", "x4"]
        assert await bench.nothing(consumer)
        assert (await bench.producer(topic, " committed", name_is_given=True)).last_sequence == (
            4 if name == " committed" else -1
        )
        await topic.close()

    run(scenario)


@CRASHED
def test_one_that_is_open_when_the_topic_moves_goes_on(run: Callable, graceful: bool) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic(broker=BrokerSettings(stamps_snapshot_every=1))
        due = bench.runtime.clock.wall_ms() + 60_000
        await (await bench.producer(topic)).publish(whole([part("x", due), part("y", due)], Stamp(7, 0, 0)))
        if graceful:
            await topic.close()
        topic = await bench.topic()
        await (await bench.producer(topic)).publish(whole([part("z", due)], Stamp(7, 0, 2)))
        await topic.end_transaction(7, 0, commit=True)
        assert await bench.receive(await bench.consumer(topic), 3) == ["x", "y", "z"]
        await topic.close()

    run(scenario)


def test_a_batch_that_is_sent_again_is_known(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        producer, consumer = await bench.producer(topic), await bench.consumer(topic)
        due = bench.runtime.clock.wall_ms() + 10_000
        batch = whole([part("a"), part("late", due), part("b")], Stamp(7, 0, 0))
        first, second = producer.publish(batch), producer.publish(batch)
        assert [(await first).duplicate, (await second).duplicate] == [False, True]
        await topic.end_transaction(7, 0, commit=True)
        with pytest.raises(OutOfOrderSequenceError, match="a transaction that is over"):
            await producer.publish(batch)
        assert await bench.receive(consumer, 3) == ["a", "b", "late"]
        assert await bench.nothing(consumer)
        await topic.close()

    run(scenario)


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_a_batch_of_which_a_beginning_is_stored_goes_on_behind_it(run: Callable, taken: int) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        due = bench.runtime.clock.wall_ms() + 30_000
        batch = whole([part("a"), part("late", due), part("b")], Stamp(7, 0, 0))
        beginning = replace(batch, count=taken, parts=batch.parts[:taken])
        await (await bench.producer(topic)).publish(beginning)  # and the broker dies before the rest
        topic = await bench.topic()
        producer = await bench.producer(topic)
        assert (await producer.publish(batch)).duplicate is (taken == 3)
        await topic.end_transaction(7, 0, commit=True)
        assert await bench.receive(await bench.consumer(topic), 3) == ["a", "b", "late"]
        await topic.close()

    run(scenario)


def test_the_rest_of_a_batch_that_comes_after_the_end_is_refused(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        batch = whole([part("a"), part("late", 1 << 50)], Stamp(7, 0, 0))
        await (await bench.producer(topic)).publish(replace(batch, count=1, parts=batch.parts[:1]))
        topic = await bench.topic()
        await topic.end_transaction(7, 0, commit=False)
        with pytest.raises(OutOfOrderSequenceError):  # the beginning is not in the transaction that would be open
            await (await bench.producer(topic)).publish(batch)
        assert topic.stable_offset == topic.end_offset == 2
        await topic.close()

    run(scenario)


def test_a_transaction_cancels_nothing(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        cancelling = Outgoing(b"", 1, BatchFormat.PULSAR, cancels="x", transactional=True)
        with pytest.raises(NotAllowedError):
            await producer.publish(whole([part("a"), cancelling], Stamp(7, 0, 0)))
        await producer.publish(whole([part("a")], Stamp(7, 0, 0)))
        assert topic.end_offset == 1
        await topic.close()

    run(scenario)


@pytest.mark.slow
@CRASHED
def test_what_is_held_can_be_cancelled_by_its_name_and_stays_so(run: Callable, graceful: bool) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        due = bench.runtime.clock.wall_ms() + 600_000
        await producer.publish(whole([part("x#1", due), part("a")], Stamp(7, 0, 0)))
        await topic.end_transaction(7, 0, commit=True)
        await moved(topic)
        await producer.publish(cancel("1"))
        assert await held(topic) == 0
        await bench.runtime.clock.sleep(20_000)  # the ledger that it was held in goes
        if graceful:
            await topic.close()
        topic = await bench.topic()
        consumer = await bench.consumer(topic)
        assert await bench.receive(consumer, 1) == ["a"]
        await bench.runtime.clock.sleep(700)
        assert await bench.nothing(consumer)
        assert await held(topic) == 0
        await topic.close()

    run(scenario)


def test_compaction_and_readers_of_the_compacted_view_do_not_see_what_is_hidden(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        due = bench.runtime.clock.wall_ms() + 60_000
        await producer.publish(whole([part("k:1"), part("k:2", due)], Stamp(7, 0, 0)))
        await topic.end_transaction(7, 0, commit=True)
        await bench.publish(producer, "other:1")
        topic.stored.compact()
        await topic.compaction.ended()
        consumer = await bench.consumer(topic, read_compacted=True)
        assert await bench.receive(consumer, 2) == ["k:1", "other:1"]
        assert await bench.receive(consumer, 1) == ["k:2"]
        await topic.close()

    run(scenario)


def test_the_log_keeps_what_is_yet_to_be_held(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic(policies=Policies(retention=Retention(0, 0)), roll_entries=2)
        clock, holding = bench.runtime.clock, topic.publisher.holding
        producer, consumer = await bench.producer(topic), await bench.consumer(topic)
        await producer.publish(whole([part("late", clock.wall_ms() + 5_000)], Stamp(7, 0, 0)))
        hold, stuck = holding.hold, asyncio.get_running_loop().create_future()
        holding.hold = lambda batch, due_ms: stuck
        await topic.end_transaction(7, 0, commit=True)
        await bench.publish(producer, *"abcdefgh")
        await bench.receive(consumer, 8, ack=True)
        await maintain(topic, clock.wall_ms())
        assert topic.start_offset == 0
        truncating = asyncio.create_task(topic.stored.truncate())
        await clock.sleep(10)
        assert not truncating.done()
        holding.hold = hold
        stuck.set_exception(BookieUnavailableError("down"))
        await truncating
        assert topic.start_offset == 10
        assert await bench.receive(consumer, 1) == ["late"]
        await topic.close()

    run(scenario)


# --- the record -----------------------------------------------------------------------------------------------


def test_delays_come_back_as_they_were_and_junk_is_named_so() -> None:
    delays = TransactionDelays()
    assert delays.to_bytes() is None
    for producer, offset in ((1, 5), (1, 7), (2, 6), (3, 1 << 40)):
        delays.hidden(producer, offset)
    delays.decide(1, aborted=False)
    delays.decide(2, aborted=True)
    delays.known = {3: 9, 4: 1}
    data = delays.to_bytes() or b""
    again = TransactionDelays()
    again.load(data)
    assert (list(again.unmoved), again.known, again.first) == ([5, 7], {3: 9, 4: 1}, 5)
    again.decide(3, aborted=False)
    again.released(Batch(0, 1, BatchFormat.KAFKA, 0, b"", BatchFlags.RELEASED, MovedFrom(5), HeldId(1, 1)))
    for name in ("x", " committed"):
        released = Batch(0, 1, BatchFormat.KAFKA, 0, b"", BatchFlags.RELEASED, Origin(name, 7), HeldId(1, 1))
        again.released(released)
    assert list(again.unmoved) == [7, 1 << 40]
    again.trim(8)
    assert again.first == 1 << 40
    for junk in (b"", b"\x09" + data[1:], data[:-1], data + b"x", data[:20]):
        with pytest.raises(WireError):
            TransactionDelays().load(junk)


@given(st.binary(max_size=60))
def test_no_bytes_but_a_record_are_taken_for_one(junk: bytes) -> None:
    with suppress(WireError):
        TransactionDelays().load(junk)


# --- failures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_everything_committed_is_seen_once_whatever_fails_in_between(run: Callable, seed: int) -> None:
    async def scenario(bench: Any) -> None:
        dice = Random(f"delayed transactions {seed}")
        clock = bench.runtime.clock
        settings = BrokerSettings(stamps_snapshot_every=dice.choice((1, 3, 1000)))
        topic = await bench.topic(broker=settings)
        expected: list[str] = []
        for producer_id in range(15):
            texts = [f"p{producer_id}m{number}" for number in range(dice.randrange(1, 6))]
            parts = [
                part(text, clock.wall_ms() + dice.randrange(0, 20_000) if dice.random() < 0.7 else None)
                for text in texts
            ]
            commit = dice.random() < 0.7
            if commit:
                expected += texts
            topic = await _until_ended(
                bench, topic, whole(parts, Stamp(producer_id, 0, 0)), commit, dice, settings
            )
        consumer = await bench.consumer(topic)
        found = await bench.receive(consumer, len(expected))
        assert sorted(found) == sorted(expected)
        await clock.sleep(60)
        assert await bench.nothing(consumer)
        assert await held(topic) == 0
        await topic.close()

    run(scenario, seed)


async def _until_ended(
    bench: Any, topic: Any, batch: Outgoing, commit: bool, dice: Random, settings: BrokerSettings
) -> Any:
    """A transaction of one batch; meanwhile bookies go away, their answers get lost, and the topic moves to
    another broker, while the former one does not know. Answers the topic where it is now."""
    sent = ended = False
    clock = bench.runtime.clock
    while not ended:
        trouble = dice.random() < 0.5
        losing = asyncio.create_task(lose_bookies(bench.bookies, clock, dice)) if trouble else None
        try:
            if not sent:
                await (await bench.producer(topic)).publish(batch)
                sent = True
            if dice.random() < 0.3:
                topic = await bench.topic(broker=settings)
            assert batch.stamp is not None
            await topic.end_transaction(batch.stamp.producer_id, 0, commit=commit)
            ended = True
        except WeirError:
            await clock.sleep(dice.random())
        if losing is not None:
            await losing
        if dice.random() < 0.3:
            topic = await bench.topic(broker=settings)
    return topic


# --- crashes --------------------------------------------------------------------------------------------------


@dataclass
class Outside:
    """What the coordinator knows: which transactions began, what is in them, and what it decided."""

    began: dict[int, list[str]] = field(default_factory=dict)
    decided: dict[int, bool] = field(default_factory=dict)
    finished: bool = False

    @property
    def expected(self) -> list[str]:
        return sorted(text for number, commit in self.decided.items() if commit for text in self.began[number])


async def client(bench: Any, topic: Any, outside: Outside) -> None:
    """Three transactions, of which the second aborts; some of their messages are due while this runs."""
    clock = bench.runtime.clock
    now = clock.wall_ms()
    producer = await bench.producer(topic)
    for number, commit in enumerate([True, False, True]):
        dues = [now + 2_000, None, now + 500 + number, now + 20_000_000]
        texts = [f"{number}-{place}" for place in range(len(dues))]
        outside.began[number] = texts
        parts = [part(text, due) for text, due in zip(texts, dues, strict=True)]
        await producer.publish(whole(parts, Stamp(number, 0, 0)))
        outside.decided[number] = commit
        await topic.end_transaction(number, 0, commit=commit)
        await clock.sleep(0.4)
    await clock.sleep(5)
    outside.finished = True


async def settle(bench: Any, topic: Any, outside: Outside) -> None:
    """What the coordinator does when a topic is there again; what it did not decide times out."""
    for number in outside.began:
        await topic.end_transaction(number, 0, commit=outside.decided.setdefault(number, False))
    await bench.runtime.clock.sleep(5)


async def check(bench: Any, topic: Any, outside: Outside) -> None:
    await settle(bench, topic, outside)
    assert topic.stable_offset == topic.end_offset
    found = await waiting(topic)
    assert all(text.endswith("-3") for text in found)
    consumer = await bench.consumer(topic)
    wanted = len(outside.expected) - len(found)
    found += await bench.receive(consumer, wanted) if wanted else []
    assert {text: count for text, count in Counter(found).items() if count > 1} == {}
    assert sorted(found) == outside.expected
    assert await bench.nothing(consumer)


def crash_run(bench_type: Any, at: int, stored: bool, every: int) -> bool:
    """One run with a crash at the add of this number, and at the same distance once more while the next broker
    recovers; answers whether the first client had finished before."""

    outside = Outside()

    def on(work: Callable[[Any, Any, Outside], Any]) -> Liveness:
        async def life(bench: Any) -> None:
            await work(bench, await bench.topic(broker=BrokerSettings(stamps_snapshot_every=every)), outside)

        return life

    crashing_lives(bench_type, at, stored, [on(client), on(settle), on(check)])
    return outside.finished


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 1000], ids=["many snapshots", "none"])
@pytest.mark.parametrize("stored", [False, True], ids=["before it is stored", "right after"])
def test_after_a_crash_at_any_durable_step_all_that_is_committed_is_seen_once(
    bench_type: Any, stored: bool, every: int
) -> None:
    at = 1
    while not crash_run(bench_type, at, stored, every):
        at += 1
    assert at > 15  # so many steps there are, at least
