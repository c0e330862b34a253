"""Idempotent producers: duplicates are answered, gaps refused, old epochs fenced, across restarts and failures."""

import asyncio
import zlib
from collections.abc import Callable
from dataclasses import replace
from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.broker.api.producers import Receipt
from weir.broker.log.producer_state import KEPT, Pending, ProducerStates
from weir.broker.settings import BrokerSettings
from weir.model.batch import Batch, BatchFlags, BatchFormat, Stamp
from weir.model.errors import (
    BookieUnavailableError,
    OutOfOrderSequenceError,
    ProducerClosedError,
    StaleEpochError,
    WeirError,
    WireError,
)
from weir.model.transactions import Stored

P = 7
LAST = 2**31 - 1


def states(most: int = 1000) -> ProducerStates:
    return ProducerStates(forget_ms=1000, most=most)


def stored(offset: int, sequence: int, count: int = 1, epoch: int = 0, producer: int = P, ms: int = 0) -> Batch:
    return Batch(
        offset, count, BatchFormat.KAFKA, ms, b"", BatchFlags.NONE, stamp=Stamp(producer, epoch, sequence)
    )


def marker(offset: int, epoch: int) -> Batch:
    flags = BatchFlags.CONTROL | BatchFlags.TRANSACTIONAL
    return Batch(offset, 1, BatchFormat.KAFKA, 0, b"", flags, stamp=Stamp(P, epoch))


# --- judging --------------------------------------------------------------------------------------------------


def test_the_last_five_batches_are_known_with_their_offsets_and_older_ones_are_out_of_order() -> None:
    known = states()
    for number in range(8):
        known.learn(stored(100 + 3 * number, 3 * number, 3))
    for number in range(8 - KEPT, 8):
        found = known.judge(Stamp(P, 0, 3 * number), 3)
        assert isinstance(found, Stored)
        assert found.offset == 100 + 3 * number
    for stamp, count in [
        (Stamp(P, 0, 3 * (7 - KEPT)), 3),  # too old to be told from anything
        (Stamp(P, 0, 21), 2),  # begins like a known one, and is another
        (Stamp(P, 0, 25), 3),  # one is missing
    ]:
        with pytest.raises(OutOfOrderSequenceError):
            known.judge(stamp, count)
    assert known.judge(Stamp(P, 0, 24), 3) is None


def test_sequence_numbers_begin_anew_after_the_last_also_within_a_batch() -> None:
    known = states()
    known.learn(stored(0, LAST - 1, 4))  # LAST - 1, LAST, 0, 1
    assert known.judge(Stamp(P, 0, 2), 1) is None
    assert isinstance(known.judge(Stamp(P, 0, LAST - 1), 4), Stored)
    known.learn(stored(4, 2))
    exact = states()
    exact.learn(stored(0, LAST))
    assert exact.judge(Stamp(P, 0, 0), 1) is None
    with pytest.raises(OutOfOrderSequenceError):
        exact.judge(Stamp(P, 0, 1), 1)


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one() -> None:
    known = states()
    known.learn(stored(0, 5, epoch=1))
    with pytest.raises(OutOfOrderSequenceError):
        known.judge(Stamp(P, 2, 6), 1)
    assert known.judge(Stamp(P, 2, 0), 1) is None
    known.push(Stamp(P, 2, 0), 1, transactional=False)  # decided before it is stored
    with pytest.raises(StaleEpochError):
        known.judge(Stamp(P, 1, 6), 1)
    assert known.judge(Stamp(P, 2, 1), 1) is None


def test_a_marker_of_a_higher_epoch_fences_even_while_it_is_under_way() -> None:
    known = states()
    known.learn(stored(0, 0, epoch=1))
    known.push(Stamp(P, 2), 1, transactional=True, marker=True)
    with pytest.raises(StaleEpochError):
        known.judge(Stamp(P, 1, 1), 1)
    known.learn(marker(1, 2))
    with pytest.raises(StaleEpochError):
        known.judge(Stamp(P, 1, 1), 1)
    with pytest.raises(OutOfOrderSequenceError):
        known.judge(Stamp(P, 2, 1), 1)
    assert known.judge(Stamp(P, 2, 0), 1) is None


def test_a_marker_of_the_same_epoch_leaves_the_sequence_alone() -> None:
    known = states()
    known.learn(stored(0, 0, 3))
    known.learn(marker(3, 0))
    assert known.judge(Stamp(P, 0, 3), 1) is None


@pytest.mark.parametrize("under_way", [False, True])
def test_what_repeats_something_from_before_the_last_marker_is_no_duplicate(under_way: bool) -> None:
    known = states()
    for sequence in (0, 3):
        known.push(Stamp(P, 0, sequence), 3, transactional=True)
    known.push(Stamp(P, 0), 1, transactional=True, marker=True)
    known.push(Stamp(P, 0, 6), 2, transactional=True)
    if not under_way:
        for batch in (stored(0, 0, 3), stored(3, 3, 3), marker(6, 0), stored(7, 6, 2)):
            known.learn(batch)
        snapshot, known = known.to_bytes(9), states()
        assert known.load(snapshot) == 9
    for sequence in (0, 3):
        with pytest.raises(OutOfOrderSequenceError, match="in a transaction that is over"):
            known.judge(Stamp(P, 0, sequence), 3)
        assert known.covered(Stamp(P, 0, sequence), 8 - sequence) == 0
    assert isinstance(known.judge(Stamp(P, 0, 6), 2), Pending if under_way else Stored)
    assert known.judge(Stamp(P, 0, 8), 1) is None


@pytest.mark.parametrize("under_way", [False, True])
def test_what_repeats_sequence_numbers_with_other_bytes_is_no_duplicate(under_way: bool) -> None:
    known = states()
    known.push(Stamp(P, 0, 0, 11), 3, transactional=False)
    known.push(Stamp(P, 0, 3), 1, transactional=False)
    if not under_way:
        known.learn(replace(stored(0, 0, 3), stamp=Stamp(P, 0, 0, 11)))
        known.learn(stored(3, 3))
        snapshot, known = known.to_bytes(4), states()
        known.load(snapshot)
    kind = Pending if under_way else Stored
    assert isinstance(known.judge(Stamp(P, 0, 0, 11), 3), kind)
    assert isinstance(known.judge(Stamp(P, 0, 0), 3), kind)  # of a client whose checksum is not known
    with pytest.raises(OutOfOrderSequenceError, match="for other messages"):
        known.judge(Stamp(P, 0, 0, 12), 3)
    assert isinstance(known.judge(Stamp(P, 0, 3, 12), 1), kind)


def test_snapshots_of_the_first_version_are_read() -> None:
    old = Struct("<BqI").pack(1, 9, 1) + Struct("<qhiqB").pack(P, 2, 6, 77, 1) + Struct("<hiiq").pack(2, 3, 5, 40)
    known = states()
    assert known.load(old) == 9
    assert known.judge(Stamp(P, 2, 3, 55), 3) == Stored(2, 3, 5, 40)
    assert known.judge(Stamp(P, 2, 6), 1) is None
    again = states()
    assert again.load(known.to_bytes(9)) == 9
    assert again.infos(lambda _: -1) == known.infos(lambda _: -1)


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("crashed", [False, True])
def test_after_an_end_no_record_is_swallowed_that_has_a_number_of_an_earlier_one(
    run: Callable, commit: bool, crashed: bool
) -> None:
    """The same epoch, other bytes, a number already used: what is told to be stored is in the commit."""

    async def scenario(bench) -> None:
        topic = await bench.topic()

        def sent(text: str, sequence: int):
            return bench.out(text, stamp=Stamp(P, 0, sequence, zlib.crc32(text.encode())), transactional=True)

        producer = await bench.producer(topic)
        for sequence, text in enumerate("ab"):
            await producer.publish(sent(text, sequence))
        with pytest.raises(OutOfOrderSequenceError, match="for other messages"):
            await producer.publish(sent("x", 1))
        assert (await producer.publish(sent("b", 1))).duplicate
        await topic.end_transaction(P, 0, commit=commit)
        if crashed:
            topic = await bench.topic()
            producer = await bench.producer(topic)
        await producer.publish(sent("c", 2))
        for text, sequence in (("x", 0), ("x", 1), ("b", 1)):
            with pytest.raises(OutOfOrderSequenceError, match="a transaction that is over"):
                await producer.publish(sent(text, sequence))
        assert (await producer.publish(sent("c", 2))).duplicate
        await producer.publish(sent("d", 3))
        await topic.end_transaction(P, 0, commit=True)
        consumer = await bench.consumer(topic)
        wanted = ["a", "b", "c", "d"] if commit else ["c", "d"]
        assert await bench.receive(consumer, len(wanted)) == wanted
        assert await bench.nothing(consumer)
        await topic.close()

    run(scenario)


def test_what_is_stored_in_parts_counts_as_the_last_that_the_producer_stored() -> None:
    """The next broker learns it from a snapshot that was made between the last part and the whole."""
    known = states()
    known.push(Stamp(P, 3, 0), 3, transactional=True, parted=True)
    known.learn(stored(10, 0, 2, epoch=3))
    known.learn(stored(12, 2, 1, epoch=3))
    loaded = states()
    loaded.load(known.to_bytes(13))
    loaded.learn(marker(13, 3))
    assert [(info.epoch, info.last_sequence) for info in loaded.infos(lambda who: -1)] == [(3, 2)]
    loaded.learn(marker(14, 4))
    assert [(info.epoch, info.last_sequence) for info in loaded.infos(lambda who: -1)] == [(4, -1)]


def test_the_last_sequence_number_is_followed_by_the_first_and_known_still() -> None:
    known = states()
    known.learn(stored(10, LAST - 1, 2))
    assert [info.last_sequence for info in known.infos(lambda who: -1)] == [LAST]


def test_parts_that_are_known_to_be_stored_after_the_marker_behind_them_do_not_count_in_its_epoch() -> None:
    known = states()
    known.push(Stamp(P, 0, 0), 2, transactional=True, parted=True)
    known.push(Stamp(P, 1), 1, transactional=True, marker=True)
    known.learn(stored(0, 0))
    known.learn(stored(1, 1))
    known.learn(marker(2, 1))
    known.passed(Stamp(P, 0, 0), 2, 0)
    assert known.pending_transaction(P) is None  # nothing is under way
    assert known.judge(Stamp(P, 1, 0), 1) is None
    with pytest.raises(StaleEpochError):
        known.judge(Stamp(P, 0, 2), 1)


def test_of_an_unknown_producer_any_beginning_is_taken_but_not_behind_one_that_failed() -> None:
    known = states()
    assert known.judge(Stamp(P, 0, 17), 1) is None
    first = known.push(Stamp(P, 0, 17), 1, transactional=False)
    second = known.push(Stamp(P, 0, 18), 1, transactional=False)
    known.failed(first)
    known.failed(second)
    with pytest.raises(OutOfOrderSequenceError):
        known.judge(Stamp(P, 0, 19), 1)
    assert known.judge(Stamp(P, 0, 17), 1) is None


def test_several_may_be_under_way_and_one_that_fails_takes_those_behind_it_along() -> None:
    async def scenario() -> None:
        known = states()
        known.learn(stored(0, 0))
        pending = [known.push(Stamp(P, 0, n), 1, transactional=False) for n in (1, 2, 3)]
        found = known.judge(Stamp(P, 0, 2), 1)
        assert found is pending[1]
        again = pending[1].offset()
        known.learn(stored(1, 1))
        known.failed(pending[1])
        with pytest.raises(WeirError):
            await again
        assert isinstance(known.judge(Stamp(P, 0, 1), 1), Stored)
        assert known.judge(Stamp(P, 0, 2), 1) is None
        with pytest.raises(OutOfOrderSequenceError):
            known.judge(Stamp(P, 0, 3), 1)

    asyncio.run(scenario())


def test_idle_and_surplus_ids_are_forgotten_unless_they_are_in_use() -> None:
    known = states(most=4)
    for producer in range(6):
        known.learn(stored(producer, 0, producer=producer, ms=producer * 100))
    known.push(Stamp(0, 0, 1), 1, transactional=False)
    known.forget_idle(600, lambda producer: producer == 1)
    left = [info.producer_id for info in known.infos(lambda producer: -1)]
    assert left == [0, 1, 4, 5]  # under way, open, and the newest
    known.forget_idle(2000, lambda producer: producer == 1)
    assert [info.producer_id for info in known.infos(lambda producer: -1)] == [0, 1]


# --- keeping --------------------------------------------------------------------------------------------------


def test_a_snapshot_brings_all_of_it_back() -> None:
    known = states()
    for number in range(9):
        known.learn(stored(number, number, epoch=3))
    known.learn(stored(9, 5, 3, producer=8, ms=77))
    again = states()
    assert again.load(known.to_bytes(12)) == 12
    assert again.infos(lambda _: 4) == known.infos(lambda _: 4)
    found = again.judge(Stamp(P, 3, 6), 1)
    assert isinstance(found, Stored)
    assert found.offset == 6
    assert again.to_bytes(12) == known.to_bytes(12)


@given(st.binary(max_size=200))
def test_a_malformed_snapshot_is_named_so(data: bytes) -> None:
    known = states()
    known.learn(stored(0, 0))
    for bad in (data, known.to_bytes(1)[: len(data)], known.to_bytes(1) + b"x"):
        try:
            states().load(bad)
        except WireError:
            continue
        assert bad == b"" or len(bad) >= 13


# --- in a topic -----------------------------------------------------------------------------------------------


async def send(bench, producer, *sequences: int, count: int = 1, epoch: int = 0, pid: int = P) -> list[Receipt]:
    receipts = [producer.publish(bench.out(f"m{n}", count, stamp=Stamp(pid, epoch, n * count))) for n in sequences]
    return [await receipt for receipt in receipts]


def test_a_topic_answers_duplicates_with_the_first_ones_place_and_refuses_gaps(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        await bench.publish(producer, "before")
        receipts = await send(bench, producer, 0, 1, 1, 2, 0, count=2)
        assert [(r.offset, r.duplicate) for r in receipts] == [
            (1, False),
            (3, False),
            (3, True),
            (5, False),
            (1, True),
        ]
        assert receipts[2].position == receipts[1].position
        with pytest.raises(OutOfOrderSequenceError):
            await send(bench, producer, 4, count=2)
        with pytest.raises(StaleEpochError):
            await send(bench, producer, 3, count=2, epoch=-1)
        assert [r.offset for r in await send(bench, producer, 0, epoch=1)] == [7]
        assert topic.end_offset == 8
        assert topic.publisher.duplicates == 2

    run(scenario)


@pytest.mark.parametrize("snapshot_every", [1, 3, 1000])
@pytest.mark.parametrize("graceful", [True, False])
def test_it_survives_restarts_and_crashes(run: Callable, snapshot_every: int, graceful: bool) -> None:
    async def scenario(bench) -> None:
        settings = BrokerSettings(stamps_snapshot_every=snapshot_every)
        sent = 0
        for life in range(4):
            topic = await bench.topic(broker=settings, roll_entries=4)
            producer = await bench.producer(topic)
            receipts = await send(bench, producer, *range(max(0, sent - 3), sent + 7))
            assert [r.duplicate for r in receipts] == [True] * min(3, sent) + [False] * 7
            await bench.publish(producer, "unstamped")
            sent += 7
            with pytest.raises(OutOfOrderSequenceError):
                await send(bench, producer, sent + 1)
            await bench.runtime.clock.sleep(0.1 * life)
            if graceful:
                await topic.close()
        topic = await bench.topic()
        texts = await bench.receive(await bench.consumer(topic), sent + 4)
        assert [text for text in texts if text != "unstamped"] == [f"m{n}" for n in range(sent)]

    run(scenario)


def test_a_crash_right_after_the_very_first_batch_was_answered_forgets_nothing(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        await bench.publish(await bench.producer(topic), *(f"u{n}" for n in range(5)))
        first = await send(bench, await bench.producer(topic), 0)
        again = await bench.topic()  # nobody closed the other one
        receipts = await send(bench, await bench.producer(again), 0, 1)
        assert [(r.offset, r.duplicate) for r in receipts] == [(first[0].offset, True), (6, False)]

    run(scenario)


def test_a_topic_without_stamps_keeps_nothing_for_them(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        await bench.publish(await bench.producer(topic), "a", "b")
        await topic.close()
        again = await bench.topic()
        assert again.state.keys("producers") == []
        assert again.state.keys("transactions") == []
        assert again.stable_offset == again.end_offset == 2

    run(scenario)


def test_one_that_is_under_way_is_answered_when_the_first_is_stored(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        await send(bench, producer, 0)
        for bookie in bench.bookies.bookies.values():
            bookie.hold()
        first = producer.publish(bench.out("m1", stamp=Stamp(P, 0, 1)))
        ahead = producer.publish(bench.out("m2", stamp=Stamp(P, 0, 2)))
        other = await bench.producer(topic)  # the client connects anew and sends what was not answered
        second = other.publish(bench.out("m1", stamp=Stamp(P, 0, 1)))
        await bench.runtime.clock.sleep(1)
        assert not second.done()
        for bookie in bench.bookies.bookies.values():
            bookie.release()
        assert [(await r).offset for r in (first, ahead, second)] == [1, 2, 1]
        assert (await second).duplicate
        assert topic.end_offset == 3

    run(scenario)


def test_what_failed_and_is_there_all_the_same_counts_as_stored(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        await send(bench, producer, 0)
        for bookie in bench.bookies.bookies.values():
            bookie.hold()
        doubtful = producer.publish(bench.out("m1", stamp=Stamp(P, 0, 1)))
        await bench.runtime.clock.sleep(0.01)
        for bookie in bench.bookies.bookies.values():
            bookie.failure = BookieUnavailableError("down")
        following = producer.publish(bench.out("m2", stamp=Stamp(P, 0, 2)))
        await bench.runtime.clock.sleep(0.01)
        for bookie in bench.bookies.bookies.values():
            bookie.failure = None
        results = await asyncio.gather(doubtful, following, return_exceptions=True)
        for bookie in bench.bookies.bookies.values():
            bookie.release()
        assert isinstance(results[1], WeirError), results
        with pytest.raises(ProducerClosedError):
            await send(bench, producer, 3)
        while True:
            try:
                again = await bench.producer(topic)
                receipts = await send(bench, again, 1, 2)
                break
            except WeirError:
                await bench.runtime.clock.sleep(1)
        assert [r.offset for r in receipts] == [1, 2]
        texts = await bench.receive(await bench.consumer(topic), topic.end_offset)
        assert texts == ["m0", "m1", "m2"]

    run(scenario)


def test_what_is_sent_behind_a_failed_first_batch_by_a_new_connection_is_a_gap(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        await send(bench, producer, 0, pid=1)  # the topic has its ledger, and knows of stamps
        for bookie in bench.bookies.bookies.values():
            bookie.failure = BookieUnavailableError("down")
        with pytest.raises(WeirError):
            await send(bench, producer, 0)
        for bookie in bench.bookies.bookies.values():
            bookie.failure = None
        again = await bench.producer(topic)
        with pytest.raises(OutOfOrderSequenceError):
            await send(bench, again, 1)
        assert [r.duplicate for r in await send(bench, again, 0, 1)] == [False, False]

    run(scenario)


def test_what_waits_behind_a_first_batch_that_waited_for_longer_is_not_stored_without_it(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        stream, states = topic.stream, topic.state
        flushed = asyncio.Event()
        flush = states.flush

        async def late(**how: bool) -> None:
            await flushed.wait()
            await flush(**how)

        states.flush = late
        first = producer.publish(bench.out("a", stamp=Stamp(P, 0, 0)))
        stream._appender.failures += 1  # somebody else's batch could not be stored meanwhile
        producer = await bench.producer(topic)
        second = producer.publish(bench.out("b", stamp=Stamp(P, 0, 1)))
        flushed.set()
        for one in (first, second):
            with pytest.raises(ProducerClosedError):
                await one
        assert topic.end_offset == 0
        await topic.close()

    run(scenario)


def test_idle_producers_are_forgotten_by_the_upkeep(run: Callable) -> None:
    from weir.broker.upkeep.topic_upkeep import maintain

    async def scenario(bench) -> None:
        topic = await bench.topic(broker=BrokerSettings(stamps_forget_s=10.0))
        await send(bench, await bench.producer(topic), 0, 1)
        assert [info.last_sequence for info in topic.producer_state.infos()] == [1]
        await bench.runtime.clock.sleep(11)
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert topic.producer_state.infos() == []
        again = await bench.topic(broker=BrokerSettings(stamps_forget_s=10.0))
        assert isinstance(again.producer_state.states, ProducerStates)

    run(scenario)


def test_a_pending_one_tells_everyone_who_asked_once() -> None:
    async def scenario() -> None:
        pending = Pending(Stamp(P, 0, 0), 1, transactional=False)
        answers = [pending.offset(), pending.offset()]
        answers[0].cancel()
        pending.landed(5)
        assert await answers[1] == 5

    asyncio.run(scenario())
