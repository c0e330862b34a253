"""Old batches are read before they are asked for, within bounds, and never shown wrongly."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from tests.stream.conftest import Bench

from weir.model.batch import Batch
from weir.model.errors import LedgerError, OffsetTrimmedError, ReadFailedError, StreamClosedError
from weir.stream.context import StreamContext
from weir.stream.log import Stream
from weir.stream.read_ahead import AheadBudget, ReadAhead

TEXTS = [f"{number:04}" * 25 for number in range(60)]


async def _written(bench: Bench, **changes: Any) -> tuple[StreamContext, Stream]:
    """A stream of 60 batches of 100 bytes, of which the tail holds the last few at the most."""
    context = await bench.broker(tail_bytes=1_000, roll_entries=25, **changes)
    stream = await Stream.open(context, "t", create_missing=True)
    for text in TEXTS:
        await stream.append(bench.draft(text))
    return context, stream


class _Reads:
    """Counts the reads that bookies answer."""

    def __init__(self, context: StreamContext, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.failing = False
        reads = context.ledgers.context.reads
        read = reads.read

        async def counted(*args: Any, **more: Any) -> Any:
            self.count += 1
            if self.failing:
                raise LedgerError("the disk is gone")
            return await read(*args, **more)

        monkeypatch.setattr(reads, "read", counted)


def test_a_reader_that_goes_on_finds_the_next_batches_read(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(bench: Bench) -> None:
        context, stream = await _written(bench, ahead_bytes=1_000)
        reads = _Reads(context, monkeypatch)
        await stream.read(0, 1)
        assert reads.count == 1, "one read is no sign of more"
        await stream.read(1, 1)
        await bench.runtime.clock.sleep(1)
        before = reads.count
        found = stream.read_cached(2, 500)
        assert found is not None
        assert [bytes(batch.payload).decode() for batch in found] == TEXTS[2 : 2 + len(found)]
        assert reads.count == before
        assert 0 < context.ahead.size_bytes <= 3_000

    run(scenario)


def test_whoever_reads_everything_gets_everything_in_order(run: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        _, stream = await _written(bench, ahead_bytes=700)
        readers = [bench.texts(stream, first, size) for first, size in ((0, 150), (0, 350), (7, 1_000), (30, 10))]
        whole, same, later, last = await asyncio.gather(*readers)
        assert whole == same == TEXTS
        assert later == TEXTS[7:]
        assert last == TEXTS[30:]

    run(scenario)


def test_what_had_no_room_in_one_answer_is_not_read_again(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(bench: Bench) -> None:
        context, stream = await _written(bench, ahead_bytes=1_000)
        await stream.read(0, 1)
        await stream.read(1, 1)
        await bench.runtime.clock.sleep(1)
        reads = _Reads(context, monkeypatch)
        assert len(await stream.read(2, 500)) > 1
        again = await stream.read(3, 1)
        assert [bytes(batch.payload).decode() for batch in again] == [TEXTS[3]]
        assert reads.count == 0

    run(scenario)


def test_all_readers_together_hold_no_more_than_their_share(run: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        context, stream = await _written(bench, ahead_bytes=2_000, ahead_limit_bytes=1_500)
        for first in range(0, 40, 4):
            await stream.read(first, 1)
            await stream.read(first + 1, 1)
        await bench.runtime.clock.sleep(1)
        assert context.ahead.size_bytes <= 1_500 + 100 * len(TEXTS[:25]), "one read may go over it"
        assert await bench.texts(stream) == TEXTS

    run(scenario)


def test_what_nobody_comes_for_is_dropped(run: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        context, stream = await _written(bench)
        await stream.read(0, 1)
        await stream.read(1, 1)
        await bench.runtime.clock.sleep(1)
        assert context.ahead.size_bytes
        await bench.runtime.clock.sleep(20)
        assert context.ahead.size_bytes == 0
        assert await bench.texts(stream, 2) == TEXTS[2:]

    run(scenario)


def test_a_failure_is_told_to_whoever_wants_these_batches_and_only_then(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(bench: Bench) -> None:
        context, stream = await _written(bench, ahead_bytes=500)
        await stream.read(0, 1)
        reads = _Reads(context, monkeypatch)
        await stream.read(1, 1)
        reads.failing = True
        await bench.runtime.clock.sleep(1)
        with pytest.raises(ReadFailedError, match="the disk is gone"):
            await bench.texts(stream, 2)
        reads.failing = False
        assert await bench.texts(stream, 2) == TEXTS[2:]

    run(scenario)


def test_what_is_trimmed_is_gone_though_it_was_read_ahead(run: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        context, stream = await _written(bench)
        await stream.read(0, 1)
        await stream.read(1, 1)
        await bench.runtime.clock.sleep(1)
        await stream.trim(30)
        with pytest.raises(OffsetTrimmedError):
            await stream.read(2, 100)
        assert stream.read_cached(2, 100) is None
        assert await bench.texts(stream, 30) == TEXTS[30:]
        await stream.close()
        assert context.ahead.size_bytes == 0

    run(scenario)


def test_a_closed_stream_reads_nothing_more(run: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        context, stream = await _written(bench)
        await stream.read(0, 1)
        reading = asyncio.ensure_future(stream.read(1, 1))
        await bench.runtime.clock.sleep(0)
        await stream.close()
        with suppress(ReadFailedError, StreamClosedError):
            assert bytes((await reading)[0].payload).decode() == TEXTS[1]
        assert context.ahead.size_bytes == 0

    run(scenario)


def test_a_run_that_is_dropped_while_its_reader_is_being_woken_is_gone(run: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        budget = AheadBudget(bench.runtime.clock, 10_000)
        asked: list[int] = []

        async def read(offset: int, max_bytes: int) -> list[Batch]:
            asked.append(offset)
            if len(asked) == 2:  # what was read for a run; it is dropped before whoever waits for it looks
                await bench.runtime.clock.sleep(0)
                asyncio.get_running_loop().call_soon(lambda: [ahead.drop(each) for each in list(ahead._runs)])
            return [replace(bench.draft("x" * 100), base_offset=offset)]

        ahead = ReadAhead("t", budget, 100, read)
        await ahead.read(0, 100)
        assert [batch.base_offset for batch in await ahead.read(1, 100)] == [1]
        assert asked == [0, 1, 1], "it was read again"
        await ahead.close()
        assert budget.size_bytes == 0
        assert not budget._runs

    run(scenario)
