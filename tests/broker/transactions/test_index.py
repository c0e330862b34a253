"""Transactions in a topic: nothing undecided and nothing aborted is seen, whoever reads, also after crashes."""

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from weir.broker.api.consumers import StartAt, SubscriptionType
from weir.broker.api.topics import AbortedTransaction, Position
from weir.broker.log.transaction_index import PIECE, TransactionIndex
from weir.broker.settings import BrokerSettings
from weir.broker.upkeep.topic_upkeep import maintain
from weir.model.batch import Batch, BatchFlags, BatchFormat, Stamp
from weir.model.errors import BookieUnavailableError, TransactionStateError, WeirError, WireError
from weir.model.policies import Policies, Retention

KINDS = list(SubscriptionType)


def data(offset: int, producer: int, count: int = 1) -> Batch:
    return Batch(
        offset, count, BatchFormat.KAFKA, 0, b"", BatchFlags.TRANSACTIONAL, stamp=Stamp(producer, 0, offset)
    )


def end(offset: int, producer: int, *, abort: bool) -> Batch:
    flags = BatchFlags.CONTROL | BatchFlags.TRANSACTIONAL | (BatchFlags.ABORT if abort else BatchFlags.NONE)
    return Batch(offset, 1, BatchFormat.KAFKA, 0, b"", flags, stamp=Stamp(producer, 0))


def learnt(*batches: Batch) -> TransactionIndex:
    index = TransactionIndex()
    for batch in batches:
        index.learn(batch)
    return index


# --- the index ------------------------------------------------------------------------------------------------


def test_the_stable_offset_is_where_the_oldest_open_transaction_begins() -> None:
    index = TransactionIndex()
    assert index.stable(10) == 10
    for batch, stable in [
        (data(10, 1), 10),
        (data(11, 2, 5), 10),
        (end(16, 1, abort=False), 11),
        (data(17, 1), 11),
        (end(18, 2, abort=True), 17),
        (end(19, 1, abort=False), 20),
    ]:
        index.learn(batch)
        assert index.stable(batch.end_offset) == stable
    assert index.aborted(0, 20) == [AbortedTransaction(2, 11, 18)]
    assert list(index.hidden) == [11, 12, 13, 14, 15, 16, 18, 19]


def test_a_marker_without_a_transaction_hides_itself_only() -> None:
    index = learnt(end(0, 1, abort=True), data(1, 1), end(2, 1, abort=False), end(3, 1, abort=True))
    assert index.aborted(0, 10) == []
    assert list(index.hidden) == [0, 2, 3]


def test_aborted_transactions_are_found_by_any_range_that_they_reach_into() -> None:
    index = learnt(
        data(0, 1),
        data(1, 2),
        end(2, 2, abort=True),
        data(3, 2),
        end(4, 2, abort=True),
        end(5, 1, abort=True),
        data(6, 3),
        end(7, 3, abort=True),
    )

    def producers(first: int, last: int) -> list[tuple[int, int]]:
        return [(one.producer_id, one.first_offset) for one in index.aborted(first, last)]

    assert producers(0, 1) == [(1, 0)]
    assert producers(1, 3) == [(2, 1), (1, 0)]
    assert producers(3, 4) == [(2, 3), (1, 0)]
    assert producers(5, 6) == [(1, 0)]
    assert producers(6, 8) == [(3, 6)]
    assert producers(8, 20) == []


def random_log(dice: Random, size: int) -> list[Batch]:
    batches: list[Batch] = []
    offset = dice.choice((0, PIECE - size, 3 * PIECE - 5))
    for _ in range(size):
        producer = dice.randrange(4)
        batch = (
            end(offset, producer, abort=dice.random() < 0.5)
            if dice.random() < 0.3
            else data(offset, producer, dice.choice((1, 1, 7)))
        )
        batches.append(batch)
        offset = batch.end_offset
    return batches


@given(st.integers(0, 1 << 30), st.integers(1, 60))
def test_it_agrees_with_a_model_and_comes_back_from_what_was_kept(seed: int, size: int) -> None:
    dice = Random(seed)
    batches = random_log(dice, size)
    kept: dict[int, bytes] = {}
    index = TransactionIndex()
    split = dice.randrange(size + 1)
    for number, batch in enumerate(batches):
        if number == split:
            kept.update(index.changed_pieces(BitMap64()))
            before = index.open_bytes()
            index = TransactionIndex()
            index.load_open(before)
            for piece in sorted(kept):
                index.load_piece(kept[piece])
        index.learn(batch)
    opened: dict[int, list[Batch]] = {}
    aborted: list[tuple[AbortedTransaction, list[Batch]]] = []
    hidden: list[int] = []
    for batch in batches:
        assert batch.stamp is not None
        producer = batch.stamp.producer_id
        if not batch.flags & BatchFlags.CONTROL:
            opened.setdefault(producer, []).append(batch)
            continue
        hidden.append(batch.base_offset)
        mine = opened.pop(producer, [])
        if mine and batch.flags & BatchFlags.ABORT:
            aborted.append((AbortedTransaction(producer, mine[0].base_offset, batch.base_offset), mine))
            hidden += [o for one in mine for o in range(one.base_offset, one.end_offset)]
    last = batches[-1].end_offset
    assert index.stable(last) == min([last, *(mine[0].base_offset for mine in opened.values())])
    assert list(index.hidden) == sorted(hidden)
    low = dice.randint(batches[0].base_offset, last)
    high = dice.randint(low, last)
    found = index.aborted(low, high)
    for transaction, mine in aborted:
        if any(one.base_offset < high and one.end_offset > low for one in mine):
            assert transaction in found
    assert all(t.first_offset < high and t.last_offset >= low for t in found)
    visible = [o for o in range(batches[0].base_offset, last) if o not in set(hidden)]
    assert index.last_visible(batches[0].base_offset, last) == (visible[-1] if visible else None)
    index.trim(high)
    assert list(index.hidden) == [o for o in sorted(hidden) if o >= high]
    assert index.aborted(0, last) == [t for t, _ in aborted if t.last_offset >= high]


@given(st.binary(max_size=60))
def test_malformed_bytes_are_named_so(junk: bytes) -> None:
    whole = learnt(data(0, 1), data(1, 2), end(2, 2, abort=True))
    pieces = whole.changed_pieces(BitMap64())
    for sample in (junk, whole.open_bytes()[: len(junk)], pieces.get(0, b"")[: len(junk)]):
        for load in (TransactionIndex().load_open, TransactionIndex().load_piece):
            try:
                load(sample)
            except WireError:
                continue


# --- a topic ----------------------------------------------------------------------------------------------------


class Writer:
    """Transactional producers of one topic."""

    def __init__(self, bench, topic, producer) -> None:
        self.bench, self.topic, self.producer = bench, topic, producer
        self.next: dict[int, int] = {}

    async def send(self, pid: int, *texts: str, count: int = 1) -> None:
        for text in texts:
            sequence = self.next.get(pid, 0)
            stamp = Stamp(pid, 0, sequence)
            await self.producer.publish(self.bench.out(text, count, stamp=stamp, transactional=True))
            self.next[pid] = sequence + count

    async def plain(self, *texts: str) -> None:
        await self.bench.publish(self.producer, *texts)

    async def commit(self, pid: int) -> None:
        await self.topic.end_transaction(pid, 0, commit=True)

    async def abort(self, pid: int) -> None:
        await self.topic.end_transaction(pid, 0, commit=False)


async def writer_of(bench, topic) -> Writer:
    return Writer(bench, topic, await bench.producer(topic))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
@pytest.mark.parametrize("cached", [True, False], ids=["from memory", "from the ledgers"])
def test_subscriptions_stop_at_the_stable_offset_and_skip_what_was_aborted(
    run: Callable, kind: SubscriptionType, cached: bool
) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(tail_bytes=1 << 20 if cached else 1)
        writer = await writer_of(bench, topic)
        consumer = await bench.consumer(topic, type=kind)
        await writer.plain("k:0")
        await writer.send(1, "k:1", "k:2")
        await writer.send(2, "k:no")
        await writer.plain("k:3")
        assert await bench.receive(consumer, 1, ack=True) == ["k:0"]
        assert await bench.nothing(consumer)
        assert consumer.backlog == 0
        assert topic.stable_offset == 1
        await writer.abort(2)
        assert await bench.nothing(consumer)
        await writer.commit(1)
        assert await bench.receive(consumer, 3, ack=True) == ["k:1", "k:2", "k:3"]
        assert topic.stable_offset == topic.end_offset == 7
        assert consumer.backlog == 0
        assert consumer.mark_delete == 6
        assert [a.first_offset for a in topic.aborted(0, 7)] == [3]
        await writer.send(1, "k:4")
        await writer.commit(1)
        assert await bench.receive(consumer, 1) == ["k:4"]
        assert consumer.backlog == 1

    run(scenario)


def test_backlogs_of_those_who_are_away_count_what_they_will_see(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        writer = await writer_of(bench, topic)
        await topic.stored.create_subscription("away", StartAt(offset=0))
        subscription = topic.stored.subscription("away")
        await writer.send(1, "a b c", count=3)
        assert subscription.backlog == 0
        await writer.commit(1)
        await writer.send(1, "no no", count=2)
        await writer.abort(1)
        await writer.plain("d")
        assert topic.end_offset == 8
        assert subscription.backlog == 4
        batch, index = (await subscription.waiting(4))[3]
        assert (bytes(batch.payload), index) == (b"d", 0)
        assert subscription.skip(3) == 3
        assert subscription.backlog == 1
        consumer = await bench.consumer(topic, "away")
        assert await bench.receive(consumer, 1) == ["d"]

    run(scenario)


def test_the_last_position_is_that_of_the_last_message_that_can_be_seen(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        writer = await writer_of(bench, topic)
        await writer.send(1, "no")
        assert await topic.last_position() == Position(-1, -1)
        await writer.abort(1)
        assert await topic.last_position() == Position(-1, -1)
        await writer.send(1, "a b", count=2)
        await writer.commit(1)
        last = await topic.last_position()
        assert (topic.offset_of(last.ledger, last.entry), last.batch_index) == (2, 1)
        await writer.send(2, "not yet")
        assert await topic.last_position() == last
        consumer = await bench.consumer(topic)
        assert await bench.receive(consumer, 1) == ["a b"]

    run(scenario)


@pytest.mark.parametrize("snapshot_every", [1, 4, 1000])
@pytest.mark.parametrize("graceful", [True, False], ids=["closed", "crashed"])
def test_open_and_aborted_transactions_survive_restarts(
    run: Callable, snapshot_every: int, graceful: bool
) -> None:
    async def scenario(bench) -> None:
        settings = BrokerSettings(stamps_snapshot_every=snapshot_every)
        topic = await bench.topic(broker=settings, roll_entries=3)
        writer = await writer_of(bench, topic)
        await writer.send(1, "a", "b")
        await writer.send(2, "no1")
        await writer.send(3, "no2", "no3")
        await writer.abort(3)
        await writer.plain("c")
        if graceful:
            await topic.close()
        again = await bench.topic(broker=settings, roll_entries=3)
        assert again.stable_offset == 0
        assert again.aborted(0, 100) == [AbortedTransaction(3, 3, 5)]
        later = await writer_of(bench, again)
        later.next = writer.next
        await later.abort(2)
        await later.commit(1)
        await later.commit(1)  # nothing is open any more
        await later.send(1, "d")
        await later.commit(1)
        last = await bench.topic(broker=settings)
        assert last.end_offset == last.stable_offset == 11
        texts = await bench.receive(await bench.consumer(last), 4)
        assert texts == ["a", "b", "c", "d"]

    run(scenario)


def test_a_producer_with_an_open_transaction_may_send_nothing_outside_of_it(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        writer = await writer_of(bench, topic)
        await writer.send(1, "a")
        with pytest.raises(TransactionStateError):
            await writer.producer.publish(bench.out("b", stamp=Stamp(1, 0, 1)))
        await writer.commit(1)
        assert (await writer.producer.publish(bench.out("b", stamp=Stamp(1, 0, 1)))).offset == 2

    run(scenario)


def test_the_first_batch_of_a_transaction_passes_the_gate_or_is_refused(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        asked: list[tuple[Stamp, str]] = []

        class Keeper:
            def admit(self, stamp, topic) -> int | WeirError | None:
                asked.append((stamp, str(topic)))
                return TransactionStateError("over") if stamp.producer_id == 2 else 1

        from weir.model.topics import TopicName

        broker._context.transactions.kept_by(Keeper())
        topic = await broker.topic(TopicName.parse("t"), role="r")
        writer = await writer_of(bench, topic)
        await writer.send(1, "a", "b")
        with pytest.raises(TransactionStateError):
            await writer.send(2, "c")
        await writer.commit(1)
        await writer.send(1, "d")
        assert [stamp.sequence for stamp, _ in asked] == [0, 0, 2]
        assert topic.end_offset == 4

    run(scenario)


def test_a_marker_waits_for_the_very_first_batch_of_the_topic(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        first = producer.publish(bench.out("a", stamp=Stamp(1, 0, 0), transactional=True))
        await topic.end_transaction(1, 0, commit=False)
        assert (await first).offset == 0
        assert topic.stable_offset == topic.end_offset == 2
        assert topic.aborted(0, 2) == [AbortedTransaction(1, 0, 1)]

    run(scenario)


def test_a_marker_that_failed_is_stored_when_it_is_asked_for_again(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        writer = await writer_of(bench, topic)
        await writer.send(1, "a")
        consumer = await bench.consumer(topic)
        for bookie in bench.bookies.bookies.values():
            bookie.failure = BookieUnavailableError("down")
        with pytest.raises(WeirError):
            await writer.commit(1)
        for bookie in bench.bookies.bookies.values():
            bookie.failure = None
        while True:
            try:
                await writer.commit(1)
                break
            except WeirError:
                await bench.runtime.clock.sleep(0.5)
        assert await bench.receive(consumer, 1) == ["a"]
        assert topic.stable_offset == topic.end_offset

    run(scenario)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_what_failed_and_is_there_all_the_same_is_not_seen_before_it_is_decided(
    run: Callable, kind: SubscriptionType
) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        writer = await writer_of(bench, topic)
        await writer.plain("k:0")
        await writer.send(1, "k:no")
        await writer.abort(1)
        consumer = await bench.consumer(topic, type=kind)
        assert await bench.receive(consumer, 1) == ["k:0"]
        catch_up = topic.producer_state.catch_up

        async def late() -> None:
            await bench.runtime.clock.sleep(1)
            await catch_up()

        topic.producer_state.catch_up = late
        for bookie in bench.bookies.bookies.values():
            bookie.hold()
        doubtful = writer.producer.publish(bench.out("k:1", stamp=Stamp(2, 0, 0), transactional=True))
        await bench.runtime.clock.sleep(0.01)
        for bookie in bench.bookies.bookies.values():
            bookie.failure = BookieUnavailableError("down")
        following = writer.producer.publish(bench.out("k:x"))
        await bench.runtime.clock.sleep(0.01)
        for bookie in bench.bookies.bookies.values():
            bookie.failure = None
            bookie.release()
        for receipt in (doubtful, following):
            with suppress(WeirError):
                await receipt
        assert await bench.nothing(consumer)
        while True:
            try:
                await topic.end_transaction(2, 0, commit=True)
                break
            except WeirError:
                await bench.runtime.clock.sleep(1)
        assert topic.end_offset == topic.stable_offset == 5
        assert await bench.receive(consumer, 1) == ["k:1"]

    run(scenario)


def test_what_is_not_decided_is_not_trimmed_and_the_index_goes_with_the_log(run: Callable) -> None:
    async def scenario(bench) -> None:
        policies = Policies(retention=Retention(0, 0))
        topic = await bench.topic(policies=policies, roll_entries=2)
        writer = await writer_of(bench, topic)
        await writer.send(1, "no", "no", "no")
        for n in range(6):
            await writer.plain(f"{n}")
        await topic.stream.roll()
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert topic.start_offset == 0
        await writer.abort(1)
        await topic.stream.roll()
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert topic.start_offset == topic.end_offset == 10
        assert topic.aborted(0, 100) == []
        again = await bench.topic(policies=policies)
        assert again.stable_offset == 10
        assert len(again.producer_state.index.hidden) == 0

    run(scenario)


def test_what_an_open_transaction_wrote_may_be_deleted_and_the_rest_of_it_still_waits(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        writer = await writer_of(bench, topic)
        consumer = await bench.consumer(topic)
        await writer.send(1, "gone")
        await topic.stored.truncate()
        assert topic.start_offset == topic.stable_offset == topic.end_offset == 1
        await writer.send(1, "kept")
        assert topic.stable_offset == 1
        assert await bench.nothing(consumer)
        again = await bench.topic()
        assert again.stable_offset == 1
        await again.end_transaction(1, 0, commit=True)
        assert await bench.receive(await bench.consumer(again), 1) == ["kept"]
        assert again.stable_offset == again.end_offset == 3

    run(scenario)


def test_a_compacted_view_has_neither_aborted_nor_undecided_messages(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        writer = await writer_of(bench, topic)
        await writer.plain("a:1", "b:1")
        await writer.send(1, "a:no")
        await writer.abort(1)
        await writer.send(2, "b:2")
        await writer.commit(2)
        await writer.send(3, "a:open")
        await writer.plain("c:1")
        topic.stored.compact()
        await topic.compaction.ended()
        consumer = await bench.consumer(topic, read_compacted=True)
        assert await bench.receive(consumer, 2, ack=True) == ["a:1", "b:2"]
        assert await bench.nothing(consumer)
        await writer.abort(3)
        assert await bench.receive(consumer, 1, ack=True) == ["c:1"]
        topic.stored.compact()
        await topic.compaction.ended()
        other = await bench.consumer(topic, "other", read_compacted=True)
        assert await bench.receive(other, 3) == ["a:1", "b:2", "c:1"]

    run(scenario)


def test_growth_is_told_when_a_decision_moves_the_stable_offset(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        writer = await writer_of(bench, topic)
        await writer.send(1, "a")
        seen: list[int] = []
        stop = topic.on_growth(lambda: seen.append(topic.stable_offset))
        await writer.plain("b")
        await writer.commit(1)
        assert seen[0] == 0
        assert seen[-1] == 3
        stop()

    run(scenario)
