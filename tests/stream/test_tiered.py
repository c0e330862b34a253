"""Ledgers that are gone, and whose offsets are read from their copies in the lake."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from weir.broker.topics.topic_deletion import erase
from weir.meta import keys
from weir.model.errors import EntryLostError, LedgerNotFoundError, ReadStuckError, WeirError
from weir.model.ids import LedgerId
from weir.model.ledger import Quorum
from weir.model.stream import LedgerFate, SegmentStore
from weir.stream.context import StreamContext
from weir.stream.log import Stream
from weir.testing.storage.objects import SimObjects
from weir.wire import segment as segments

FOLDER = SegmentStore("s3://lake/segments/owner/s")
Run = Callable[..., None]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "BLOCK_BYTES", 200)


async def broker(bench: Any, objects: SimObjects, **changes: Any) -> StreamContext:
    """With nothing in memory but what is asked for."""
    context = await bench.broker(tail_bytes=0, **changes)
    return StreamContext(
        context.runtime, context.meta, context.ledgers, context.tails, context.settings, stores=objects
    )


def sim(bench: Any) -> SimObjects:
    return SimObjects(bench.runtime.clock, Random(1))


async def filled(context: StreamContext, bench: Any, *, ledgers: int = 3, entries: int = 8) -> Stream:
    stream = await Stream.open(context, "s", create_missing=True)
    for _ in range(ledgers):
        for _ in range(entries):
            at = stream.end_offset
            await stream.append(bench.draft(f"message {at}" + "x" * 40, count=1 + at % 3))
            await context.runtime.clock.sleep(1)
        await stream.roll()
    return stream


async def tier(stream: Stream, *, ledgers: int | None = None) -> None:
    for span in stream.chain.spans[:ledgers]:
        await stream.tiering.copy(span.ledger_id, FOLDER)
        await stream.tiering.let_go(span.ledger_id)


async def batches(stream: Stream, start: int = 0, max_bytes: int = 150) -> list[tuple[int, int, int, bytes]]:
    """Every offset once, in order."""
    found, offset = [], start
    while read := await stream.read(offset, max_bytes):
        for batch in read:
            assert batch.base_offset <= offset < batch.end_offset
            offset = batch.end_offset
            found.append((batch.base_offset, batch.count, batch.append_ms, bytes(batch.payload)))
    return found


def test_offsets_positions_batches_and_times_are_the_same_before_and_after_the_ledgers_go(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        objects = sim(bench)
        stream = await filled(await broker(bench, objects), bench)
        end = stream.end_offset
        before = await batches(stream)
        positions = [stream.position_of(offset) for offset in range(end)]
        moments = [moment for _, _, moment, _ in before]
        times = [await stream.offset_at(moment) for moment in (0, *moments, moments[-1] + 1)]
        await tier(stream)
        assert all(span.segment.ledger is LedgerFate.GONE for span in stream.chain.spans)
        for span in stream.chain.spans:
            with pytest.raises(LedgerNotFoundError):
                await bench_open(stream, span.ledger_id)
        assert await batches(stream) == before
        assert await batches(stream, max_bytes=100_000) == before
        assert [stream.position_of(offset) for offset in range(end)] == positions
        assert [await stream.offset_at(moment) for moment in (0, *moments, moments[-1] + 1)] == times
        for offset in range(end):
            assert (
                (await stream.read(offset, 1))[0].base_offset
                <= offset
                < (await stream.read(offset, 1))[0].end_offset
            )
        other = await Stream.open(await broker(bench, objects), "s")
        assert await batches(other) == before
        assert await other.append(bench.draft("after")) == end

    run(scenario)


async def bench_open(stream: Stream, ledger_id: LedgerId) -> None:
    await stream._context.ledgers.open(ledger_id, recover=False)


def test_what_is_read_on_comes_in_ranges_and_what_is_read_again_from_memory(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        objects = sim(bench)
        context = await broker(bench, objects)
        stream = await filled(context, bench, ledgers=1, entries=60)
        await tier(stream)
        blocks = context.segments.cache
        objects.requests.clear()
        await batches(stream)
        first = len(objects.requests)
        assert first < 12, "one for the index, then a block, two, four ..."
        offset = 40
        await stream._ahead.close()
        assert await context.segments.read(stream.chain.stores[0], stream.chain.spans[0], offset, 1)
        assert len(objects.requests) == first
        assert 0 < blocks.size_bytes <= blocks.limit_bytes

    run(scenario)


def test_the_cache_keeps_to_its_bound(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        objects = sim(bench)
        context = await broker(bench, objects, lake_cache_bytes=3000)
        stream = await filled(context, bench, ledgers=2, entries=40)
        before = await batches(stream)
        await tier(stream)
        assert await batches(stream) == before
        assert context.segments.cache.size_bytes <= 3000

    run(scenario)


@pytest.mark.parametrize("broken", ["missing", "damaged", "cut", "index"])
def test_a_broken_object_is_an_error_with_its_name_and_all_other_offsets_are_read(run: Run, broken: str) -> None:
    async def scenario(bench: Any) -> None:
        objects = sim(bench)
        context = await broker(bench, objects)
        stream = await filled(context, bench)
        before = await batches(stream)
        await tier(stream)
        second = stream.chain.spans[1]
        key = next(key for key in objects.objects if key[1] == second.segment.name)
        whole = objects.objects[key]
        if broken == "missing":
            del objects.objects[key]
        elif broken == "cut":
            objects.objects[key] = whole[:-1]
        else:
            place = 60 if broken == "damaged" else len(whole) - 20
            objects.objects[key] = whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :]
        with pytest.raises(ReadStuckError, match=second.segment.name):
            await stream.read(second.first_offset, 1000)
        readable = [one for one in before if one[0] < second.first_offset or one[0] >= second.end_offset]
        assert [one for one in before if one[0] >= second.end_offset] == await batches(stream, second.end_offset)
        found, offset = [], 0
        while offset < second.first_offset:
            for batch in await stream.read(offset, 1000):
                found.append(batch.base_offset)
                offset = batch.end_offset
        assert found == [one[0] for one in readable if one[0] < second.first_offset]
        if broken == "damaged":  # only the block that was hit
            assert (await stream.read(second.end_offset - 1, 1))[0].end_offset == second.end_offset
        objects.objects[key] = whole
        assert await batches(stream) == before, "once it is back, so are its messages"

    run(scenario)


def test_a_copy_that_is_not_whole_lets_no_ledger_go(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        objects = sim(bench)
        stream = await filled(await broker(bench, objects), bench)
        before = await batches(stream)

        def damaging(kind: str, name: str) -> None:
            if kind == "put done":
                objects.damage()

        objects.fault = damaging
        for span in stream.chain.spans:
            with pytest.raises(WeirError, match="damaged"):
                await stream.tiering.copy(span.ledger_id, FOLDER)
            await stream.tiering.let_go(span.ledger_id)
        assert not objects.objects
        assert await batches(stream) == before

    run(scenario)


def test_a_ledger_with_lost_entries_stays_as_it_is(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        objects = sim(bench)
        context = await broker(bench, objects, quorum=Quorum(1, 1, 1))
        stream = await filled(context, bench, ledgers=2)
        first = stream.chain.spans[0].ledger_id
        for bookie in bench.bookies.bookies.values():
            if first in bookie.ledgers:
                bookie.damage(first, 3)
        with pytest.raises(EntryLostError):
            await stream.tiering.copy(first, FOLDER)
        assert not objects.objects
        assert (await stream.read(0, 10))[0].base_offset == 0

    run(scenario)


def test_trimming_deletes_objects_and_what_a_store_refused_to_delete_is_swept_later(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        objects = sim(bench)
        stream = await filled(await broker(bench, objects), bench)
        await tier(stream)
        assert len(objects.objects) == 3
        await stream.trim(stream.chain.spans[0].end_offset)
        assert len(objects.objects) == 2
        objects.failing = 1.0
        await stream.trim(stream.chain.spans[0].end_offset)
        objects.failing = 0.0
        await stream.tiering.sweep()
        assert [name for _, name in objects.objects] == [span.segment.name for span in stream.chain.spans]

    run(scenario)


def test_a_deleted_stream_leaves_no_object_and_one_made_anew_is_not_touched(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        objects = sim(bench)
        context = await broker(bench, objects)
        await tier(await filled(context, bench))
        before = dict(objects.objects)
        await erase(context, "s", confirm=_fine)
        assert not objects.objects
        again = await filled(context, bench)
        await tier(again)
        assert not {url for url, _ in objects.objects} & {url for url, _ in before}

    run(scenario)


async def _fine() -> None:
    pass


def test_a_deletion_whose_store_is_away_goes_on_when_it_is_back(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        objects = sim(bench)
        context = await broker(bench, objects)
        await tier(await filled(context, bench))
        objects.failing = 1.0
        with pytest.raises(WeirError):
            await erase(context, "s", confirm=_fine)
        objects.failing = 0.0
        with pytest.raises(WeirError):
            await Stream.open(context, "s")
        assert not objects.objects
        assert (await context.meta.get(keys.stream("s"))) is None

    run(scenario)


def test_one_that_has_lost_the_stream_harms_no_object_of_the_next_holder(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        objects = sim(bench)
        former = await filled(await broker(bench, objects), bench)
        before = await batches(former)
        old = former.chain
        holder = await Stream.open(await broker(bench, objects), "s")
        await tier(holder)
        for span in old.spans:
            with pytest.raises(WeirError):
                await former.tiering.copy(span.ledger_id, FOLDER)
            await former.tiering.let_go(span.ledger_id)
        await former.tiering.sweep()
        assert await batches(holder) == before
        assert {name for _, name in objects.objects} == {span.segment.name for span in holder.chain.spans}

    run(scenario)


def test_another_way_to_the_store_is_taken_for_what_is_there_already(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        objects = sim(bench)
        stream = await filled(await broker(bench, objects), bench)
        await tier(stream, ledgers=1)
        moved = replace(FOLDER, options={"s3.endpoint": "http://elsewhere"})
        await stream.tiering.copy(stream.chain.spans[1].ledger_id, moved)
        assert [dict(store.options) for store in stream.chain.stores] == [{"s3.endpoint": "http://elsewhere"}]

    run(scenario)
