"""The index of keys of a topic: built behind sealed ledgers, found by few reads, and as lasting as its log."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.api.producers import Outgoing
from weir.broker.topics.topic_deletion import erase
from weir.model.batch import BatchFormat
from weir.model.errors import NotAllowedError
from weir.model.ids import LedgerId
from weir.model.messages import Message
from weir.model.policies import Policies
from weir.stream import key_index
from weir.wire.formats.messages import decode_messages, encode_messages

INDEXED = Policies(key_index=True)


async def publish(bench: Any, topic: Any, *batches: list[str]) -> None:
    producer = await bench.producer(topic)
    for keys in batches:
        messages = [Message(key.encode(), f"{key}!".encode(), [("KEYS", f"{key} all".encode())]) for key in keys]
        await producer.publish(Outgoing(encode_messages(messages), len(keys), BatchFormat.MESSAGES))
    await producer.close()


async def find(topic: Any, key: str, limit: int = 10) -> list[int]:
    """The offsets; each is a message of the key."""
    found = await topic.stored.find(key.encode(), limit)
    for batch, index in found:
        message = decode_messages(batch.payload)[index]
        assert key.encode() in (message.key, b"all")
    return [batch.base_offset + index for batch, index in found]


async def indexed(topic: Any, offset: int) -> None:
    """Wait until everything before the offset is in a run."""
    async with asyncio.timeout(60):
        while topic.key_index.covered_to < offset:
            topic.key_index.look()
            await asyncio.sleep(0.01)


def runs(topic: Any) -> list[Any]:
    return topic.key_index._index.runs


async def settled(topic: Any) -> None:
    async with asyncio.timeout(60):
        while topic.key_index._work is not None:
            await asyncio.sleep(0.01)


def test_a_key_is_found_in_sealed_ledgers_and_in_the_open_one(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=INDEXED)
        await publish(bench, topic, ["a", "b"], ["c"])
        await topic.stream.roll()
        await indexed(topic, 3)
        await publish(bench, topic, ["b"])
        assert await find(topic, "b") == [3, 1]
        await publish(bench, topic, ["b", "a"])
        assert await find(topic, "b") == [4, 3, 1]
        assert await find(topic, "b", 2) == [4, 3]
        assert await find(topic, "all") == [5, 4, 3, 2, 1, 0]
        assert await find(topic, "nothing") == []
        again = await bench.topic(policies=INDEXED)
        assert await find(again, "a") == [5, 0]

    run(scenario)


def test_without_an_index_one_is_told_how_to_make_one(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        with pytest.raises(NotAllowedError, match="weir messages index t --on"):
            await topic.stored.find(b"a", 1)

    run(scenario)


def test_runs_are_merged_so_that_reads_do_not_grow_with_the_topic(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=INDEXED)
        for number in range(key_index.FAN * key_index.FAN + 1):
            await publish(bench, topic, [f"k{number}", "x"])
            await topic.stream.roll()
            await indexed(topic, 2 * number + 2)
        await settled(topic)
        assert [(found.level, found.first, found.end) for found in runs(topic)] == [(2, 0, 128), (0, 128, 130)]
        assert await find(topic, "k3") == [6]
        assert len(await find(topic, "x", 100)) == 65
        assert set(await ledgers(bench, topic)) == {found.ledger for found in runs(topic)}

    run(scenario)


async def ledgers(bench: Any, topic: Any) -> list[int]:
    """Those that are neither the log's nor the state's."""
    known = {span.ledger_id: None for span in topic.stream.chain.spans} | {topic.stream.chain.state_ledger: None}
    return [one.ledger_id for one in await topic._context.streams.ledgers.list() if one.ledger_id not in known]


def test_what_is_trimmed_is_found_no_more_and_its_index_goes(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=INDEXED)
        for _ in range(2):
            await publish(bench, topic, ["a", "b"])
            await topic.stream.roll()
        await indexed(topic, 4)
        assert len(await ledgers(bench, topic)) == len(runs(topic)) > 0
        await publish(bench, topic, ["a"])
        await topic.trimming.forget_before(4)
        assert await find(topic, "a") == [4]
        topic.key_index.look()
        await settled(topic)
        assert runs(topic) == await ledgers(bench, topic) == []

    run(scenario)


def test_a_damaged_run_is_built_anew_and_nothing_is_missed(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=INDEXED)
        await publish(bench, topic, ["a", "b"])
        await topic.stream.roll()
        await indexed(topic, 2)
        (before,) = runs(topic)
        await topic._context.streams.ledgers.delete(LedgerId(before.ledger))
        await topic.key_index._index.close()
        assert await find(topic, "b") == [1]
        await indexed(topic, 2)
        (after,) = runs(topic)
        assert after.ledger != before.ledger
        assert await find(topic, "b") == [1]

    run(scenario)


def test_a_crash_while_a_run_is_written_leaves_no_ledger_and_no_gap(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=INDEXED)
        index = topic.key_index._index
        await publish(bench, topic, ["a", "b"])
        await topic.stream.roll()
        await settled(topic)
        await index.forget()
        writer = await index._store.begin()
        await index._note_left(writer.ledger_id)  # and no more: the broker crashes
        again = await bench.topic(policies=INDEXED)
        await indexed(again, 2)
        await settled(again)
        assert await find(again, "a") == [0]
        assert await ledgers(bench, again) == [found.ledger for found in runs(again)]

    run(scenario)


def test_switched_off_it_goes_and_a_deleted_topic_takes_it_along(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=INDEXED)
        await publish(bench, topic, ["a"])
        await topic.stream.roll()
        await indexed(topic, 1)
        await topic.apply(Policies(key_index=False).over(topic.policies))
        await settled(topic)
        assert await ledgers(bench, topic) == []
        await topic.apply(INDEXED.over(topic.policies))
        await indexed(topic, 1)
        context = topic._context.streams
        await topic.close()

        async def fine() -> None: ...

        await erase(context, topic.stream.name, confirm=fine)
        assert await context.ledgers.list() == []

    run(scenario)


def test_a_crash_between_sealing_and_indexing_is_answered_from_the_ledger_and_made_up_for(
    run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=INDEXED)
        with monkeypatch.context() as never:
            never.setattr(topic.key_index, "look", lambda: None)
            await publish(bench, topic, ["a", "b"], ["b"])
            await topic.stream.roll()
            await publish(bench, topic, ["b"])
            assert not runs(topic)
            again = await bench.topic(policies=INDEXED)  # the first one is fenced, and writes no index any more
        assert await find(again, "b") == [3, 2, 1]
        await indexed(again, 3)
        assert runs(again)
        assert await find(again, "b") == [3, 2, 1]
        assert await find(again, "a") == [0]

    run(scenario)
