"""A stream: offsets, order, rolling, failure of bookies, take-over, trimming."""

import asyncio
from collections.abc import Callable

import pytest

from weir.meta import keys
from weir.meta.local import MemoryMeta
from weir.model.errors import (
    BookieUnavailableError,
    OffsetTrimmedError,
    StreamBusyError,
    StreamFencedError,
    StreamNotFoundError,
    StreamTerminatedError,
    WeirError,
)
from weir.stream.chain import HeldChain
from weir.stream.log import Stream


def test_offsets_are_dense_and_batches_come_back_in_order(run: Callable) -> None:
    async def scenario(bench) -> None:
        stream = await Stream.open(await bench.broker(), "s", create_missing=True)
        appends = [stream.append(bench.draft(f"m{i}", count=i + 1)) for i in range(5)]
        assert [await done for done in appends] == [0, 1, 3, 6, 10]
        assert stream.end_offset == 15
        assert await bench.texts(stream) == ["m0", "m1", "m2", "m3", "m4"]
        assert await bench.texts(stream, offset=7) == ["m3", "m4"]
        assert await stream.read(15, 100) == []

    run(scenario)


def test_a_missing_stream_is_only_made_when_asked(run: Callable) -> None:
    async def scenario(bench) -> None:
        with pytest.raises(StreamNotFoundError):
            await Stream.open(await bench.broker(), "s")

    run(scenario)


@pytest.mark.parametrize("tail_bytes", [0, 1 << 20])
def test_a_stream_rolls_its_ledgers_and_reads_through_them(run: Callable, tail_bytes: int) -> None:
    async def scenario(bench) -> None:
        stream = await Stream.open(
            await bench.broker(roll_entries=3, tail_bytes=tail_bytes), "s", create_missing=True
        )
        for i in range(20):
            assert await stream.append(bench.draft(f"m{i}", count=2)) == 2 * i
        assert len(stream.chain.spans) > 5
        assert await bench.texts(stream) == [f"m{i}" for i in range(20)]
        for offset in range(40):
            first = (await stream.read(offset, 1))[0]
            assert bytes(first.payload) == b"m%d" % (offset // 2)
            ledger, distance = stream.position_of(offset)
            assert stream.offset_of(ledger, distance) == offset

    run(scenario)


def test_a_ledger_that_was_read_while_it_was_open_is_read_to_its_end(run: Callable) -> None:
    async def scenario(bench) -> None:
        stream = await Stream.open(await bench.broker(tail_bytes=0), "s", create_missing=True)
        for i in range(4):
            await stream.append(bench.draft(f"m{i}"))
            assert await bench.texts(stream) == [f"m{j}" for j in range(i + 1)]
        await stream.roll()
        assert await bench.texts(stream) == ["m0", "m1", "m2", "m3"]

    run(scenario)


def test_what_was_acknowledged_is_there_after_the_broker_is_gone(run: Callable) -> None:
    async def scenario(bench) -> None:
        first = await Stream.open(await bench.broker(roll_entries=4), "s", create_missing=True)
        for i in range(10):
            await first.append(bench.draft(f"m{i}"))
        second = await Stream.open(await bench.broker(), "s")
        assert second.end_offset == 10
        assert await second.append(bench.draft("m10")) == 10
        assert await bench.texts(second) == [f"m{i}" for i in range(11)]

    run(scenario)


@pytest.mark.parametrize("busy", [True, False])
def test_a_former_holder_can_append_nothing_more(run: Callable, busy: bool) -> None:
    async def scenario(bench) -> None:
        first = await Stream.open(await bench.broker(), "s", create_missing=True)
        if busy:
            await first.append(bench.draft("old"))
        second = await Stream.open(await bench.broker(), "s")
        with pytest.raises(WeirError):
            await first.append(bench.draft("ghost"))
        with pytest.raises(StreamFencedError):
            await first.wait_beyond(first.end_offset)
        await second.append(bench.draft("new"))
        assert await bench.texts(second) == (["old", "new"] if busy else ["new"])

    run(scenario)


def test_a_failed_ledger_is_recovered_and_the_stream_goes_on(run: Callable) -> None:
    async def scenario(bench) -> None:
        stream = await Stream.open(await bench.broker(), "s", create_missing=True)
        await stream.append(bench.draft("kept"))
        for bookie in bench.bookies.bookies.values():
            bookie.failure = BookieUnavailableError("down")
        with pytest.raises(WeirError):
            await stream.append(bench.draft("lost"))
        for bookie in bench.bookies.bookies.values():
            bookie.failure = None
        while True:
            try:
                await stream.append(bench.draft("again"))
                break
            except WeirError:
                await bench.runtime.clock.sleep(1)
        texts = await bench.texts(stream)
        assert texts[0] == "kept"
        assert texts[-1] == "again"

    run(scenario)


def test_a_waiting_reader_wakes_when_something_was_appended(run: Callable) -> None:
    async def scenario(bench) -> None:
        stream = await Stream.open(await bench.broker(), "s", create_missing=True)
        waiting = asyncio.ensure_future(stream.wait_beyond(0))
        await bench.runtime.clock.sleep(1)
        assert not waiting.done()
        await stream.append(bench.draft("m"))
        await waiting

    run(scenario)


def test_trimming_deletes_ledgers_and_names_what_is_gone(run: Callable) -> None:
    async def scenario(bench) -> None:
        stream = await Stream.open(await bench.broker(roll_entries=2, tail_bytes=0), "s", create_missing=True)
        for i in range(10):
            await stream.append(bench.draft(f"m{i}"))
        await stream.trim(7)
        assert stream.start_offset == 7
        assert await bench.texts(stream, 7) == ["m7", "m8", "m9"]
        with pytest.raises(OffsetTrimmedError, match="the oldest is 7"):
            await stream.read(6, 100)
        held = {ledger for bookie in bench.bookies.bookies.values() for ledger in bookie.ledgers}
        assert held == {span.ledger_id for span in stream.chain.spans}
        await stream.trim(3)
        assert stream.start_offset == 7

    run(scenario)


def test_a_stream_goes_on_after_a_change_that_nobody_waited_for_any_more(
    run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given up before or after the store has the change: it is made or not, and its holder knows which."""
    put = MemoryMeta.put

    async def scenario(bench) -> None:
        async def slow_put(*args, **more) -> int:
            version = await put(*args, **more)
            await bench.runtime.clock.sleep(0.01)
            return version

        stream = await Stream.open(await bench.broker(roll_entries=2, tail_bytes=0), "s", create_missing=True)
        for i in range(20):
            await stream.append(bench.draft(f"m{i}"))
            monkeypatch.setattr(MemoryMeta, "put", slow_put)
            trimming = asyncio.get_running_loop().create_task(stream.trim(i))
            await bench.runtime.clock.sleep(0.005 * (i % 4))
            trimming.cancel()
            await asyncio.wait([trimming])
            monkeypatch.setattr(MemoryMeta, "put", put)
        await stream.trim(19)
        assert await bench.texts(stream, 19) == ["m19"]
        assert await stream.append(bench.draft("more")) == 20

    run(scenario)


def test_a_moment_is_found_by_when_batches_were_appended(run: Callable) -> None:
    async def scenario(bench) -> None:
        stream = await Stream.open(await bench.broker(roll_entries=3), "s", create_missing=True)
        moments = []
        for i in range(10):
            moments.append(bench.runtime.clock.wall_ms())
            await stream.append(bench.draft(f"m{i}"))
            await bench.runtime.clock.sleep(10)
        for i, moment in enumerate(moments):
            assert await stream.offset_at(moment) == i
            assert await stream.offset_at(moment + 5000) == i + 1
        assert await stream.offset_at(0) == 0

    run(scenario)


def test_a_terminated_stream_takes_nothing_more_even_after_a_restart(run: Callable) -> None:
    async def scenario(bench) -> None:
        stream = await Stream.open(await bench.broker(), "s", create_missing=True)
        await stream.append(bench.draft("last"))
        assert await stream.terminate() == 1
        again = await Stream.open(await bench.broker(), "s")
        for one in (stream, again):
            with pytest.raises(StreamTerminatedError):
                await one.append(bench.draft("more"))
        assert await bench.texts(again) == ["last"]

    run(scenario)


def test_appends_beyond_the_window_are_refused_and_ready_waits(run: Callable) -> None:
    async def scenario(bench) -> None:
        stream = await Stream.open(await bench.broker(window_bytes=100), "s", create_missing=True)
        accepted = [stream.append(bench.draft("x" * 50)) for _ in range(5)]
        with pytest.raises(StreamBusyError):
            await stream.append(bench.draft("y"))
        await stream.wait_capacity()
        assert [await done for done in accepted] == [0, 1, 2, 3, 4]

    run(scenario)


def test_a_deleted_stream_leaves_nothing_behind(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker(roll_entries=2)
        stream = await Stream.open(broker, "s", create_missing=True)
        for i in range(5):
            await stream.append(bench.draft(f"m{i}"))
        await stream.delete()
        assert not any(bookie.ledgers for bookie in bench.bookies.bookies.values())
        assert (await broker.meta.list("/weir/streams/")).items == []

    run(scenario)


def test_closing_acknowledges_what_is_under_way(run: Callable) -> None:
    async def scenario(bench) -> None:
        stream = await Stream.open(await bench.broker(), "s", create_missing=True)
        appends = [stream.append(bench.draft(f"m{i}")) for i in range(3)]
        await stream.close()
        assert [await done for done in appends] == [0, 1, 2]
        again = await Stream.open(await bench.broker(), "s")
        assert await bench.texts(again) == ["m0", "m1", "m2"]

    run(scenario)


def test_a_ledger_that_is_opened_ahead_is_used_and_goes_if_it_is_not(run: Callable) -> None:
    async def scenario(bench) -> None:
        context = await bench.broker()
        stream = await Stream.open(context, "s", create_missing=True)
        stream.prepare()
        await stream.settled()
        (opened,) = stream.chain.spans
        stream.prepare()
        assert await stream.append(bench.draft("m0")) == 0
        assert [span.ledger_id for span in stream.chain.spans] == [opened.ledger_id]
        await stream.roll()
        stream.prepare()
        await stream.close()
        assert [span.ledger_id for span in stream.chain.spans] == [opened.ledger_id]
        assert [ledger.ledger_id for ledger in await context.ledgers.list()] == [opened.ledger_id]
        again = await Stream.open(context, "s")
        assert (again.end_offset, await bench.texts(again)) == (1, ["m0"])

    run(scenario)


def test_a_ledger_that_the_next_holder_found_in_the_chain_is_not_deleted(run: Callable) -> None:
    """The change that names it was made, its answer was lost, and somebody took the stream over meanwhile."""

    async def scenario(bench) -> None:
        first = await Stream.open(await bench.broker(), "s", create_missing=True)
        chain, change = first._chain, first._chain.change

        async def answer_is_lost(transform) -> None:
            await change(transform)
            await HeldChain.take(await bench.broker(), "s", create_missing=False)
            raise StreamFencedError("it was taken over")

        chain.change = answer_is_lost
        with pytest.raises(WeirError):
            await first.append(bench.draft("lost"))
        second = await Stream.open(await bench.broker(), "s")
        assert await second.append(bench.draft("kept")) == 0

    run(scenario)


def test_a_new_stream_is_made_and_taken_with_one_write(run: Callable) -> None:
    async def scenario(bench) -> None:
        context = await bench.broker()
        asked: list[str] = []
        put = context.meta.put

        async def told(key: str, value: bytes, **more: object) -> int:
            asked.append(key)
            return await put(key, value, **more)

        context.meta.put = told
        stream = await Stream.open(context, "s", create_missing=True, leader=4)
        assert asked == [keys.stream("s")]
        assert (stream.chain.epoch, stream.chain.leader) == (1, 4)
        again = await Stream.open(await bench.broker(), "s", create_missing=True, leader=5)
        assert (again.chain.epoch, again.chain.leader) == (2, 5)
        with pytest.raises(StreamFencedError):
            await stream.append(bench.draft("x"))

    run(scenario)
