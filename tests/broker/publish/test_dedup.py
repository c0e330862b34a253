"""Deduplication: by producer name and sequence id, across reconnects and crashes."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.api.producers import Receipt
from weir.broker.publish.deduplication import Deduplication, Verdict
from weir.broker.settings import BrokerSettings
from weir.model.batch import HeldId, Origin
from weir.model.errors import BookieUnavailableError, NotAllowedError, WeirError, WireError
from weir.model.policies import Policies

ON = Policies(deduplication=True)


async def send(bench, producer, *numbers: int) -> list[Receipt]:
    receipts = [producer.publish(bench.out(f"m{n}", sequence=n)) for n in numbers]
    return [await receipt for receipt in receipts]


def test_what_was_stored_is_not_stored_again(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=ON)
        producer = await bench.producer(topic, "p")
        assert producer.last_sequence == -1
        assert [r.duplicate for r in await send(bench, producer, 1, 2, 2, 1, 3)] == [
            False,
            False,
            True,
            True,
            False,
        ]
        assert producer.last_sequence == 3
        other = await bench.producer(topic, "q")
        assert [r.duplicate for r in await send(bench, other, 1)] == [False]
        assert topic.end_offset == 4

    run(scenario)


@pytest.mark.parametrize("snapshot_every", [1, 3, 1000])
@pytest.mark.parametrize("graceful", [True, False])
def test_it_survives_restarts_and_crashes(run: Callable, snapshot_every: int, graceful: bool) -> None:
    async def scenario(bench) -> None:
        settings = BrokerSettings(dedup_snapshot_every=snapshot_every)
        sent = 0
        for life in range(4):
            topic = await bench.topic(policies=ON, broker=settings, roll_entries=4)
            producer = await bench.producer(topic, "p")
            assert producer.last_sequence == sent - 1
            receipts = await send(bench, producer, *range(max(0, sent - 3), sent + 7))
            assert [r.duplicate for r in receipts] == [True] * min(3, sent) + [False] * 7
            sent += 7
            await bench.runtime.clock.sleep(0.1 * life)
            if graceful:
                await topic.close()
        topic = await bench.topic(policies=ON)
        texts = await bench.receive(await bench.consumer(topic), sent)
        assert texts == [f"m{n}" for n in range(sent)]

    run(scenario)


def test_one_that_is_under_way_is_answered_when_the_first_is_stored(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=ON)
        producer = await bench.producer(topic, "p")
        await send(bench, producer, 0)
        for bookie in bench.bookies.bookies.values():
            bookie.hold()
        first = producer.publish(bench.out("m1", sequence=1))
        again = await bench.producer(topic, "p")  # the client connects anew and sends what was not answered
        second = again.publish(bench.out("m1", sequence=1))
        await bench.runtime.clock.sleep(1)
        assert not second.done()
        for bookie in bench.bookies.bookies.values():
            bookie.release()
        assert not (await first).duplicate
        assert (await second).duplicate
        assert topic.end_offset == 2

    run(scenario)


def test_a_batch_of_which_a_part_is_stored_is_refused(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=ON)
        producer = await bench.producer(topic, "p")
        await producer.publish(bench.out("a", 5, sequence=0, highest_sequence=4))
        with pytest.raises(NotAllowedError):
            await producer.publish(bench.out("b", 5, sequence=3, highest_sequence=7))
        assert (await producer.publish(bench.out("a", 5, sequence=0, highest_sequence=4))).duplicate
        assert not (await producer.publish(bench.out("c", 3, sequence=5, highest_sequence=7))).duplicate

    run(scenario)


def test_parts_of_a_message_are_left_alone(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=ON)
        producer = await bench.producer(topic, "p")
        parts = [producer.publish(bench.out(f"chunk{i}", sequence=0, partial=i < 2)) for i in range(3)]
        assert [(await part).duplicate for part in parts] == [False, False, False]

    run(scenario)


def test_what_failed_and_is_there_all_the_same_counts_as_stored(run: Callable) -> None:
    """The append is stored by two bookies of three; the writer dies before it hears of it."""

    async def scenario(bench) -> None:
        topic = await bench.topic(policies=ON)
        producer = await bench.producer(topic, "p")
        await send(bench, producer, 0)
        for bookie in bench.bookies.bookies.values():
            bookie.hold()
        doubtful = producer.publish(bench.out("m1", sequence=1))
        await bench.runtime.clock.sleep(0.01)
        for bookie in bench.bookies.bookies.values():
            bookie.failure = BookieUnavailableError("down")
        following = producer.publish(bench.out("m2", sequence=2))
        await bench.runtime.clock.sleep(0.01)
        for bookie in bench.bookies.bookies.values():
            bookie.failure = None
        results = await asyncio.gather(doubtful, following, return_exceptions=True)
        for bookie in bench.bookies.bookies.values():
            bookie.release()
        while True:
            try:
                again = await bench.producer(topic, "p")
                await send(bench, again, 1, 2)
                break
            except WeirError:
                await bench.runtime.clock.sleep(1)
        assert isinstance(results[1], WeirError), results
        texts = await bench.receive(await bench.consumer(topic), topic.end_offset)
        assert texts == ["m0", "m1", "m2"]

    run(scenario)


def test_what_failed_and_is_there_is_known_though_another_producer_stored_more_meanwhile(
    run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that waited for a delayed one of its producer is stored between the recovery of the ledger and the
    moment at which the topic reads the end of its log."""

    async def scenario(bench) -> None:
        topic = await bench.topic(policies=ON)
        doubtful, waiting = await bench.producer(topic, "p"), await bench.producer(topic, "q")
        await send(bench, doubtful, 0)
        holding, recovered = topic.publisher.holding, asyncio.Event()
        hold = holding.hold

        async def hold_late(*what: Any) -> HeldId:
            await recovered.wait()
            return await hold(*what)

        monkeypatch.setattr(holding, "hold", lambda *what: asyncio.ensure_future(hold_late(*what)))
        due_ms = bench.runtime.clock.wall_ms() + 3_600_000
        delayed = waiting.publish(bench.out("delayed", sequence=0, deliver_at_ms=due_ms))
        behind = waiting.publish(bench.out("behind", sequence=1))
        bookies = bench.bookies.bookies.values()
        for bookie in bookies:
            bookie.hold()
        failed = doubtful.publish(bench.out("m1", sequence=1))
        await bench.runtime.clock.sleep(0.01)
        for bookie in bookies:
            bookie.failure = BookieUnavailableError("down")
        failed_too = doubtful.publish(bench.out("m2", sequence=2))
        await bench.runtime.clock.sleep(0.01)
        for bookie in bookies:
            bookie.failure = None
        results = await asyncio.gather(failed, failed_too, return_exceptions=True)
        assert all(isinstance(result, WeirError) for result in results), results
        for bookie in bookies:
            bookie.release()
        await topic.stream.settled()
        assert topic.end_offset == 3, "the batches that failed are in the log"
        recovered.set()
        await asyncio.gather(delayed, behind)
        again = await bench.producer(topic, "p")
        assert [receipt.duplicate for receipt in await send(bench, again, 1, 2)] == [True, True]
        texts = await bench.receive(await bench.consumer(topic), topic.end_offset)
        assert texts == ["m0", "m1", "m2", "behind"]

    run(scenario)


def test_names_that_sent_nothing_for_long_are_forgotten_unless_connected() -> None:
    dedup = Deduplication(lambda: None, snapshot_every=10, forget_ms=1000)
    dedup.load(b'{"to": 3, "held": {}, "names": {"idle": [1, 0], "connected": [2, 0], "busy": [3, 900]}}')
    dedup.forget_idle(1500, lambda name: name == "connected")
    assert [dedup.last_stored(name) for name in ("idle", "connected", "busy")] == [-1, 2, 3]
    assert dedup.judge("busy", 3, 3) is Verdict.DUPLICATE
    assert dedup.judge("busy", 4, 4) is Verdict.NEW


def test_what_older_snapshots_say_of_the_brokers_own_name_says_nothing_of_a_producer_called_so() -> None:
    def load(data: bytes) -> Deduplication:
        dedup = Deduplication(lambda: None, snapshot_every=10, forget_ms=1000)
        dedup.load(data)
        return dedup

    old = load(b'{"to": 3, "held": {}, "names": {"p": [1, 0], " committed": [900, 0]}}')
    assert [old.last_stored(name) for name in ("p", " committed")] == [1, -1]
    old._learn(Origin(" committed", 4), 0)
    assert load(old.to_bytes()).last_stored(" committed") == 4
    with pytest.raises(WireError, match="version 3"):
        load(b'{"version": 3, "to": 3, "held": {}, "names": {}}')


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"to": 1, "held": {}, "names": {"a": 3}}'])
def test_a_malformed_snapshot_is_named_so(data: bytes) -> None:
    with pytest.raises(WireError):
        Deduplication(lambda: None, snapshot_every=1, forget_ms=1).load(data)


def test_it_can_be_switched_on_and_off_while_the_topic_is_used(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic, "p")
        assert [r.duplicate for r in await send(bench, producer, 1, 1)] == [False, False]
        await topic.apply(ON.over(topic.policies))
        assert [r.duplicate for r in await send(bench, producer, 1, 2, 2)] == [False, False, True]
        await topic.apply(Policies(deduplication=False).over(topic.policies))
        assert [r.duplicate for r in await send(bench, producer, 2, 9)] == [False, False]
        await topic.apply(ON.over(topic.policies))
        assert [r.duplicate for r in await send(bench, producer, 2, 3)] == [True, False]

    run(scenario)
