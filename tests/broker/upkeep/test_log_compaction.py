"""Topics that compact themselves, as readers by offset see them."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from weir.broker.api.consumers import StartAt
from weir.broker.api.stats import CompactionStatus
from weir.broker.api.topics import AbortedTransaction
from weir.broker.topics.topic_deletion import erase
from weir.broker.upkeep.topic_upkeep import maintain
from weir.model.policies import DEFAULT_POLICIES, Cleanup, LogCompaction, Policies, Retention, Roll

ALWAYS = LogCompaction(Cleanup.COMPACT, tombstone_ms=60_000, dirty_percent=1)
POLICIES = Policies(log_compaction=ALWAYS, roll=Roll(ms=1000), retention=Retention(10, -1))


def with_compaction(**changes) -> Policies:
    return replace(POLICIES, log_compaction=replace(ALWAYS, **changes))


async def nothing_against_it() -> None:
    pass


async def rounds(bench, topic, number: int = 1, seconds: float = 2) -> None:
    """Time passes, and the topic is looked after."""
    for _ in range(number):
        await bench.runtime.clock.sleep(seconds)
        await maintain(topic, bench.runtime.clock.wall_ms())
        await topic.compaction.ended()


async def seen(topic, offset: int | None = None) -> dict[int, str]:
    """Every message that a reader sees, by offset."""
    log = topic.reader()
    at = log.start_offset if offset is None else offset
    found: dict[int, str] = {}
    while batches := await log.read(at, 100):
        for batch in batches:
            at = batch.end_offset
            visible = log.visible(batch)
            words = bytes(batch.payload).decode().split()
            for index, word in enumerate(words):
                if visible is None or visible >> index & 1:
                    found[batch.base_offset + index] = word
    assert at == topic.end_offset  # a reader comes to the end, whatever was taken away
    return found


@pytest.mark.parametrize("tail_bytes", [0, 1 << 20])
def test_a_topic_compacts_itself_and_readers_see_only_live_messages_at_their_offsets(
    run: Callable, tail_bytes: int
) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=POLICIES, roll_entries=3, tail_bytes=tail_bytes)
        producer = await bench.producer(topic)
        await bench.publish(producer, "a:1", "b:1", "a:2", "nokey", "c:1")
        await bench.publish(producer, "a:3 b:2 b:3", count=3)
        await bench.publish(producer, "z:1")
        assert len(await seen(topic)) == 9
        await rounds(bench, topic)
        assert topic.stored.compaction is CompactionStatus.SUCCESS
        assert await seen(topic) == {4: "c:1", 5: "a:3", 7: "b:3", 8: "z:1"}
        assert topic.reader().start_offset == 0
        await rounds(bench, topic)  # what lies behind the horizon is gone from the log
        assert 0 < topic.start_offset <= 8
        again = await bench.topic(policies=POLICIES, tail_bytes=tail_bytes)
        assert await seen(again) == {4: "c:1", 5: "a:3", 7: "b:3", 8: "z:1"}
        assert (again.reader().start_offset, again.view.size_bytes) == (0, topic.view.size_bytes)
        assert await seen(again, 5) == {5: "a:3", 7: "b:3", 8: "z:1"}

    run(scenario)


def test_a_tombstone_is_seen_for_its_time_and_then_vanishes_without_anything_new(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=POLICIES, roll_entries=2)
        producer = await bench.producer(topic)
        await bench.publish(producer, "a:1", "b:1", "a:", "z:1")
        await rounds(bench, topic)
        assert await seen(topic) == {1: "b:1", 2: "a:", 3: "z:1"}
        again = await bench.topic(policies=POLICIES)
        await rounds(bench, again, 3, 18)
        assert await seen(again) == {1: "b:1", 2: "a:", 3: "z:1"}
        await rounds(bench, again, 1, 18)
        assert await seen(again) == {1: "b:1", 3: "z:1"}

    run(scenario)


def test_a_reader_comes_to_the_end_although_everything_before_it_is_gone(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=with_compaction(tombstone_ms=0), roll_entries=2)
        producer = await bench.producer(topic)
        await bench.publish(producer, "a:1", "b:1", "a:", "b:")
        await rounds(bench, topic, 3)
        assert await seen(topic) == {1: "b:1", 3: "b:"}  # the last batch waits for the next one
        await bench.publish(producer, "c:1")
        await rounds(bench, topic, 3)
        assert await seen(topic) == {4: "c:1"}
        assert topic.reader().start_offset == 0

    run(scenario)


def test_a_quiet_topic_is_compacted_once_and_a_little_dirt_waits(run: Callable) -> None:
    async def scenario(bench) -> None:
        policies = replace(with_compaction(dirty_percent=50), roll=Roll(ms=3_600_000))
        topic = await bench.topic(policies=policies)
        producer = await bench.producer(topic)
        await bench.publish(producer, "a:1", "a:2", "z:1")
        await rounds(bench, topic)
        assert topic.stored.compaction is CompactionStatus.NOT_RUN
        await rounds(bench, topic, 1, 3601)
        assert topic.stored.compaction is CompactionStatus.SUCCESS
        ledger = topic.view.compacted.ledger_id
        await rounds(bench, topic, 2, 4000)
        assert topic.view.compacted.ledger_id == ledger

    run(scenario)


def test_young_messages_are_not_compacted_and_old_ones_are_whatever_the_ratio(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=with_compaction(min_lag_ms=60_000))
        producer = await bench.producer(topic)
        await bench.publish(producer, "a:1", "a:2")
        await bench.runtime.clock.sleep(50)
        await bench.publish(producer, "a:3", "z:1")
        await rounds(bench, topic, 1, 20)
        assert await seen(topic) == {1: "a:2", 2: "a:3", 3: "z:1"}
        other = await bench.topic(
            "other", policies=replace(with_compaction(dirty_percent=100, max_lag_ms=5000), roll=Roll())
        )
        producer = await bench.producer(other)
        await bench.publish(producer, "a:1", "a:2", "z:1")
        await rounds(bench, other)
        assert other.stored.compaction is CompactionStatus.NOT_RUN
        await rounds(bench, other, 1, 5)
        assert await seen(other) == {1: "a:2", 2: "z:1"}

    run(scenario)


def test_compact_and_delete_forgets_live_messages_after_their_time_and_the_log_too(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=with_compaction(cleanup=Cleanup.BOTH), roll_entries=2)
        producer = await bench.producer(topic)
        await bench.publish(producer, "a:1", "b:1", "a:2")
        await bench.runtime.clock.sleep(300)
        await bench.publish(producer, "c:1", "z:1")
        await rounds(bench, topic)
        assert await seen(topic) == {1: "b:1", 2: "a:2", 3: "c:1", 4: "z:1"}
        await rounds(bench, topic, 1, 301)
        assert await seen(topic) == {3: "c:1", 4: "z:1"}
        assert topic.reader().start_offset == 3
        await rounds(bench, topic, 2, 301)
        assert topic.reader().start_offset == topic.end_offset == 5
        assert await seen(topic) == {}
        again = await bench.topic(policies=with_compaction(cleanup=Cleanup.BOTH))
        assert again.reader().start_offset == 5

    run(scenario)


def test_compact_and_delete_keeps_to_a_size(run: Callable) -> None:
    async def scenario(bench) -> None:
        policies = replace(with_compaction(cleanup=Cleanup.BOTH), retention=Retention.exactly(-1, 2000))
        topic = await bench.topic(policies=policies, roll_entries=4)
        producer = await bench.producer(topic)
        for n in range(40):
            await bench.publish(producer, f"k{n}:" + "x" * 96)
        await rounds(bench, topic, 3)
        left = await seen(topic)
        assert list(left) == list(range(topic.reader().start_offset, 40))
        assert 12 <= len(left) <= 21

    run(scenario)


def test_turned_into_a_plain_topic_it_keeps_what_was_compacted_for_as_long_as_retention_says(
    run: Callable,
) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=POLICIES, roll_entries=2)
        producer = await bench.producer(topic)
        await bench.publish(producer, "a:1", "b:1", "a:2", "z:1")
        await rounds(bench, topic, 2)
        await topic.apply(with_compaction(cleanup=Cleanup.DELETE).over(DEFAULT_POLICIES))
        await bench.publish(producer, "b:2", "y:1")
        await rounds(bench, topic, 2)
        assert await seen(topic) == {1: "b:1", 2: "a:2", 3: "z:1", 4: "b:2", 5: "y:1"}
        await bench.runtime.clock.sleep(600)
        await bench.publish(producer, "x:1")
        await rounds(bench, topic, 2)
        assert (await seen(topic))[6] == "x:1"
        assert topic.reader().whole
        assert topic.reader().start_offset >= 4

    run(scenario)


def test_a_subscription_that_has_not_read_all_holds_the_log_back_behind_the_horizon(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=POLICIES, roll_entries=2)
        producer = await bench.producer(topic)
        await topic.stored.create_subscription("slow", StartAt())
        for text in ("a:1", "a:2", "a:3", "a:4", "z:1"):
            await bench.publish(producer, text)
        await rounds(bench, topic, 2)
        assert topic.start_offset == 0
        assert await seen(topic) == {3: "a:4", 4: "z:1"}
        assert len(await bench.receive(await bench.consumer(topic, "slow"), 5, ack=True)) == 5
        await rounds(bench, topic)
        assert topic.start_offset > 0

    run(scenario)


def test_deleting_records_moves_the_start_of_what_was_compacted_and_of_the_log(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=with_compaction(cleanup=Cleanup.BOTH), roll_entries=2)
        producer = await bench.producer(topic)
        await bench.publish(producer, *[f"k{n}:1" for n in range(8)])
        await rounds(bench, topic, 2)
        await topic.stored.delete_before(3)
        assert (topic.reader().start_offset, min(await seen(topic))) == (3, 3)
        again = await bench.topic(policies=with_compaction(cleanup=Cleanup.BOTH))
        assert (again.reader().start_offset, min(await seen(again))) == (3, 3)
        await again.stored.delete_before(8)
        assert (again.reader().start_offset, await seen(again)) == (8, {})

    run(scenario)


def test_undecided_messages_wait_and_aborted_ones_are_not_kept(run: Callable, monkeypatch) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=POLICIES)
        producer = await bench.producer(topic)
        await bench.publish(producer, "a:1", "a:2", "a:3", "z:1")
        kind = type(topic)
        monkeypatch.setattr(kind, "stable_offset", property(lambda _: 2))
        await rounds(bench, topic)
        assert await seen(topic) == {1: "a:2", 2: "a:3", 3: "z:1"}
        known = [AbortedTransaction(7, 0, 1), AbortedTransaction(7, 1, 3)]
        monkeypatch.setattr(kind, "aborted", lambda *_: known)
        assert topic.reader().aborted(0, 4) == known[1:]  # the marker of the other was compacted away

    run(scenario)


def test_the_offset_of_a_moment_is_found_among_what_is_left(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=POLICIES, roll_entries=2)
        producer = await bench.producer(topic)
        moments = []
        for text in ("a:1", "b:1", "a:2", "c:1", "z:1"):
            moments.append(bench.runtime.clock.wall_ms())
            await bench.publish(producer, text)
            await bench.runtime.clock.sleep(10)
        await rounds(bench, topic, 2)
        found = [await topic.reader().offset_at(moment) for moment in moments]
        assert found == [1, 1, 2, 3, 4]
        assert await topic.reader().offset_at(bench.runtime.clock.wall_ms()) == 5

    run(scenario)


def test_a_ledger_begins_sooner_if_the_topic_says_so_and_the_last_one_goes_with_time(run: Callable) -> None:
    async def scenario(bench) -> None:
        policies = Policies(roll=Roll(bytes=1000, ms=5000), retention=Retention.exactly(30_000, -1))
        topic = await bench.topic(policies=policies)
        producer = await bench.producer(topic)
        for _ in range(4):
            await bench.publish(producer, "x" * 600)
        assert len(topic.stream.chain.spans) == 2
        await bench.runtime.clock.sleep(6)
        await bench.publish(producer, "late")
        assert len(topic.stream.chain.spans) == 3
        await rounds(bench, topic, 1, 27)
        assert topic.start_offset == 4
        await rounds(bench, topic, 2, 5)
        assert topic.start_offset == topic.end_offset == 5

    run(scenario)


class Model:
    """What a compacted topic must still tell, whatever was done to it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.values: dict[str, str] = {}

    def publish(self, text: str) -> None:
        for word in text.split():
            self.log.append(word)
            key, _, value = word.partition(":")
            if value:
                self.values[key] = value
            else:
                self.values.pop(key, None)

    def check(self, found: dict[int, str]) -> None:
        """Every message is one that was sent, at its offset, and together they say what all of them would."""
        assert list(found) == sorted(found)
        assert all(self.log[offset] == word for offset, word in found.items())
        told: dict[str, str] = {}
        for word in found.values():
            key, _, value = word.partition(":")
            if value:
                told[key] = value
            else:
                told.pop(key, None)
        assert told == self.values


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_readers_learn_the_latest_value_of_every_key(run: Callable, seed: int) -> None:
    async def scenario(bench) -> None:
        rng, model = bench.runtime.rng, Model()
        policies = with_compaction(tombstone_ms=rng.choice([0, 5_000, 60_000]), min_lag_ms=rng.choice([0, 3_000]))
        tail_bytes = rng.choice([0, 1 << 20])
        topic = await bench.topic(policies=policies, roll_entries=4, tail_bytes=tail_bytes)
        producer, reopened = await bench.producer(topic), 0
        for _ in range(60):
            match rng.choice(["publish"] * 5 + ["time"] * 3 + ["look", "reopen", "while"]):
                case "publish":
                    words = [f"k{rng.randrange(6)}:{rng.choice(['', rng.randrange(99)])}" for _ in range(3)]
                    model.publish(" ".join(words))
                    await bench.publish(producer, " ".join(words), count=3)
                case "time":
                    await rounds(bench, topic, 1, rng.choice([1, 2, 10]))
                case "look":
                    model.check(await seen(topic))
                case "reopen":  # by another broker, whatever the first one is doing
                    reopened += 1
                    topic = await bench.topic(policies=policies, roll_entries=4, tail_bytes=tail_bytes)
                    producer = await bench.producer(topic)
                case _:  # a compaction is under way
                    await maintain(topic, bench.runtime.clock.wall_ms())
                    model.check(await seen(topic))
        await rounds(bench, topic, 3)
        model.check(await seen(topic))
        assert topic.reader().start_offset == 0
        await topic.close()
        await erase((await bench.context()).streams, topic.stream.name, confirm=nothing_against_it)
        # Nothing is left behind but what brokers that were cut off were just creating.
        live = {ledger for bookie in bench.bookies.bookies.values() for ledger in bookie.ledgers}
        assert len(live) <= reopened

    run(scenario, seed)


@pytest.mark.slow
def test_a_crash_at_any_step_of_a_compaction_leaves_the_old_view_or_the_new_one(run: Callable) -> None:
    async def scenario(bench) -> None:
        cut_short = 0
        for steps in range(0, 60, 2):
            name, model = f"t{steps}", Model()
            topic = await bench.topic(name, policies=POLICIES, roll_entries=2)
            producer = await bench.producer(topic)
            for text in ("a:1 b:1 a:2", "b: c:1 a:3", "d:1 d:2 e:1", "z:1 z:2 z:3"):
                model.publish(text)
                await bench.publish(producer, text, count=3)
                if text.startswith("d"):
                    await rounds(bench, topic)
            topic.stored.compact()
            for _ in range(steps):
                await bench.runtime.clock.sleep(0)
            cut_short += topic.stored.compaction is CompactionStatus.RUNNING
            again = await bench.topic(name, policies=POLICIES, roll_entries=2)
            model.check(await seen(again))
            await rounds(bench, again, 2)
            model.check(await seen(again))
        assert 5 < cut_short < 30  # the steps cover all of it

    run(scenario)
