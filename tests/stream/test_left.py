"""A stream goes from one broker to the next as it was left: nothing is read, and one thing is written."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weir.meta import keys
from weir.meta.local import MemoryMeta
from weir.model.errors import StreamClosedError
from weir.model.ids import LedgerId
from weir.model.ledger import LedgerState
from weir.stream.chain import take_ahead
from weir.stream.context import StreamContext
from weir.stream.handover import Left
from weir.stream.log import Stream
from weir.stream.state_log import StateLog

NONE = LedgerId(0)


async def written(context: StreamContext, bench: Any, *texts: str) -> tuple[Stream, StateLog]:
    stream = await Stream.open(context, "s", create_missing=True)
    state = await stream.open_state()
    for text in texts:
        await stream.append(bench.draft(text))
    return stream, state


async def left(stream: Stream, state: StateLog) -> Left:
    await state.leave()
    assert await stream.end()
    values, unsaved = state.contents()
    return stream.leave(values, unsaved=unsaved)


async def coming(context: StreamContext, how: Left, *, above: LedgerId = NONE, leader: int = 1) -> None:
    """Everything that can be done before somebody opens it."""
    await context.coming.make_ledger("s", above)
    take_ahead(context, "s", how, leader)
    assert await context.coming.is_taken("s")


def counted(meta: MemoryMeta) -> list[str]:
    """What is asked of the store from now on."""
    asked: list[str] = []

    def wrap(name: str) -> None:
        usual = getattr(meta, name)

        async def told(key: str, *rest: Any, **more: Any) -> Any:
            asked.append(f"{name} {key}")
            return await usual(key, *rest, **more)

        setattr(meta, name, told)

    for name in ("get", "put", "delete"):
        wrap(name)
    return asked


def test_the_next_broker_writes_one_thing_and_reads_nothing(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        one, other = await bench.broker(), await bench.broker()
        stream, state = await written(one, bench, "a", "b")
        state.put("cursor", b"1")
        how = await left(stream, state)
        await other.coming.make_ledger("s", stream.chain.spans[-1].ledger_id)
        asked = counted(other.meta)
        take_ahead(other, "s", how, 5)
        assert await other.coming.is_taken("s")
        following = await Stream.open(other, "s", leader=5)
        kept = await following.open_state()
        assert kept.get("cursor") == b"1"
        assert await following.append(bench.draft("c")) == 2
        assert asked == [f"put {keys.stream('s')}"]
        assert (following.chain.leader, following.chain.epoch) == (5, stream.chain.epoch + 1)

    run(scenario)


def test_what_was_left_is_read_though_its_writer_never_closed_it(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        one, other = await bench.broker(), await bench.broker(tail_bytes=0)
        stream, state = await written(one, bench, "a", "b")
        ledger = stream.chain.spans[-1].ledger_id
        await coming(other, await left(stream, state), above=ledger)
        following = await Stream.open(other, "s", leader=1)
        await following.append(bench.draft("c"))
        assert (await other.ledgers.metadata(ledger)).state is LedgerState.OPEN
        assert await bench.texts(following) == ["a", "b", "c"]
        assert (await other.ledgers.metadata(ledger)).state is LedgerState.CLOSED

    run(scenario)


def test_the_writer_of_what_was_left_closes_its_ledger_later(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        one, other = await bench.broker(), await bench.broker(tail_bytes=0)
        stream, state = await written(one, bench, "a", "b")
        await coming(other, await left(stream, state))
        following = await Stream.open(other, "s", leader=1)
        writer = await stream.release()
        assert writer is not None
        with pytest.raises(StreamClosedError):
            await stream.append(bench.draft("late"))
        assert (await writer.close()).last_entry == 1
        assert await bench.texts(following) == ["a", "b"]

    run(scenario)


def test_what_is_on_its_way_is_waited_for_before_a_stream_is_left(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        one, other = await bench.broker(), await bench.broker()
        stream, state = await written(one, bench, "a")
        under_way = [stream.append(bench.draft(f"m{n}")) for n in range(3)]
        how = await left(stream, state)
        assert [done.result() for done in under_way] == [1, 2, 3]
        await coming(other, how)
        following = await Stream.open(other, "s", leader=1)
        assert following.end_offset == 4
        assert await bench.texts(following) == ["a", "m0", "m1", "m2"]

    run(scenario)


def test_what_was_left_counts_for_nothing_once_another_broker_has_had_the_stream(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        one, second, third = await bench.broker(), await bench.broker(), await bench.broker()
        stream, state = await written(one, bench, "a")
        how = await left(stream, state)
        between = await Stream.open(second, "s")
        await between.append(bench.draft("b"))
        await third.coming.make_ledger("s", LedgerId(0))
        take_ahead(third, "s", how, 1)
        assert not await third.coming.is_taken("s")
        following = await Stream.open(third, "s")
        assert await bench.texts(following) == ["a", "b"]
        named = {span.ledger_id for span in following.chain.spans}
        assert {ledger.ledger_id for ledger in await third.ledgers.list()} == named  # none is left over

    run(scenario)


def test_a_stream_that_was_taken_ahead_and_lost_again_is_opened_as_any_other(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        one, second, third = await bench.broker(), await bench.broker(), await bench.broker()
        stream, state = await written(one, bench, "a")
        await coming(second, await left(stream, state), leader=1)
        between = await Stream.open(third, "s", leader=2)
        await between.append(bench.draft("b"))
        following = await Stream.open(second, "s", leader=3)
        assert following.chain.leader == 3
        assert await bench.texts(following) == ["a", "b"]

    run(scenario)


def test_nothing_is_lost_if_nobody_opens_what_was_taken_ahead(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        one, other, third = await bench.broker(), await bench.broker(), await bench.broker()
        stream, state = await written(one, bench, "a")
        await coming(other, await left(stream, state))
        await bench.runtime.clock.sleep(60)
        assert not await other.coming.is_taken("s")
        assert await bench.texts(await Stream.open(third, "s")) == ["a"]

    run(scenario)


def test_a_ledger_that_nobody_came_to_write_to_goes_again(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        context = await bench.broker()
        await context.coming.make_ledger("s", LedgerId(0))
        assert len(await context.ledgers.list()) == 1
        await bench.runtime.clock.sleep(60)
        assert await context.ledgers.list() == []
        await context.coming.make_ledger("s", LedgerId(0))
        await context.coming.close()
        assert await context.ledgers.list() == []

    run(scenario)


def test_a_ledger_made_ahead_is_not_taken_if_ids_would_go_back(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        one, other = await bench.broker(), await bench.broker()
        await other.coming.make_ledger("s", LedgerId(0))
        stream, state = await written(one, bench, "a")
        last = stream.chain.spans[-1].ledger_id
        take_ahead(other, "s", await left(stream, state), 1)
        following = await Stream.open(other, "s", leader=1)
        await following.append(bench.draft("b"))
        assert following.chain.spans[-1].ledger_id > last

    run(scenario)


def test_state_that_was_left_unsaved_is_written_by_the_next_broker(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        one, second, third = await bench.broker(), await bench.broker(), await bench.broker()
        stream, state = await written(one, bench, "a")
        how = await left(stream, state)
        assert not how.unsaved
        state.put("late", b"1")
        values, unsaved = state.contents()
        assert unsaved
        await coming(second, stream.leave(values, unsaved=unsaved))
        kept = await (await Stream.open(second, "s", leader=1)).open_state()
        await bench.runtime.clock.sleep(5)
        assert kept.durable
        found = await (await Stream.open(third, "s")).open_state()
        assert found.get("late") == b"1"

    run(scenario)


def test_who_waits_for_state_to_be_written_is_not_left_waiting(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        stream, state = await written(await bench.broker(), bench, "a")
        state.put("k", b"1")
        waiting = asyncio.ensure_future(state.flush())
        await asyncio.sleep(0)
        await state.leave()
        await waiting  # it was written first
        state.put("k", b"2")
        with pytest.raises(StreamClosedError):
            await state.flush()
        await state.close()  # the next broker could not be told: it is written all the same
        again = await (await Stream.open(await bench.broker(), "s")).open_state()
        assert again.get("k") == b"2"
        await stream.close()

    run(scenario)


def test_an_empty_ledger_is_not_left_to_the_next_broker(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        stream, _ = await written(await bench.broker(), bench)
        stream.prepare()
        await bench.runtime.clock.sleep(1)
        assert not await stream.end()
        await stream.close()

    run(scenario)
