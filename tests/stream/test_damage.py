"""A stream with one copy of everything, of which some entries are damaged: the rest of it goes on."""

import struct
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from weir.model.batch import Batch, BatchFlags
from weir.model.errors import BookieUnavailableError, ReadFailedError
from weir.model.ids import LedgerId
from weir.model.ledger import Quorum
from weir.stream.compaction import CompactedView
from weir.stream.history import stand_in
from weir.stream.log import Stream
from weir.stream.state_log import StateLog
from weir.wire.batch import MAX_COUNT, encode_batch

ONE = Quorum(1, 1, 1)
Run = Callable[..., None]


def damage(bench: Any, ledger_id: LedgerId, *entries: int) -> None:
    for bookie in bench.bookies.bookies.values():
        for entry in entries:
            if entry in bookie.ledgers.get(ledger_id, _NONE).entries:
                bookie.damage(ledger_id, entry)


class _NONE:
    entries: dict[int, bytes] = {}  # noqa: RUF012


async def one_copy(bench: Any, **changes: Any) -> Any:
    return await bench.broker(quorum=ONE, tail_bytes=0, **changes)


async def read_all(stream: Stream | CompactedView, start: int, end: int, max_bytes: int) -> list[Batch]:
    """From start to end, every offset once."""
    found: list[Batch] = []
    while start < end:
        batches = await stream.read(start, max_bytes)
        assert batches[0].base_offset <= start < batches[0].end_offset
        for before, after in pairwise(batches):
            assert before.end_offset == after.base_offset
        found += batches
        start = batches[-1].end_offset
    return found


def _lost(batch: Batch) -> bool:
    return bool(batch.flags & BatchFlags.LOST)


@pytest.mark.parametrize("seed", range(6))
def test_a_reader_gets_every_whole_batch_and_a_stand_in_for_each_gap(run: Run, seed: int) -> None:
    rng = Random(seed)

    async def scenario(bench: Any) -> None:
        context = await one_copy(bench, roll_entries=10)
        stream = await Stream.open(context, "s", create_missing=True)
        counts = [rng.randint(1, 4) for _ in range(60)]
        for number, count in enumerate(counts):
            await stream.append(bench.draft(f"m{number}", count))
        end = stream.end_offset
        whole: dict[int, bool] = {}
        for span in stream.chain.spans:
            # The very last one is in memory still.
            gone = [entry for entry in range(10) if rng.random() < 0.3 and len(whole) + entry < 59]
            damage(bench, span.ledger_id, *gone)
            whole |= {len(whole) + entry: entry not in gone for entry in range(10)}
        expected = [f"m{number}" for number in range(60) if whole[number]]
        if rng.random() < 0.5:
            await stream.close()
            stream = await Stream.open(await one_copy(bench), "s")
        for max_bytes in (1, 10_000):
            found = await read_all(stream, 0, end, max_bytes)
            assert [bytes(batch.payload).decode() for batch in found if not _lost(batch)] == expected
        for offset in rng.sample(range(end), 20):
            batch = (await stream.read(offset, 1))[0]
            assert batch.base_offset <= offset < batch.end_offset
            moment = await stream.offset_at(batch.append_ms)
            assert moment <= offset
        assert await stream.append(bench.draft("writes go on")) == end
        assert bytes((await stream.read(end, 1))[0].payload) == b"writes go on"

    run(scenario)


def test_what_was_skipped_is_written_down_with_its_offsets(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        context = await one_copy(bench)
        stream = await Stream.open(context, "s", create_missing=True)
        for _ in range(10):
            await stream.append(bench.draft("m", 3))
        ledger = stream.chain.spans[0].ledger_id
        damage(bench, ledger, 4, 5)
        await read_all(stream, 0, 30, 10_000)
        [run_] = context.ledgers.context.losses.of(ledger)
        assert run_[:4] == (4, 5, 12, 18)
        assert f"entry 4 of ledger {ledger}" in run_.what
        again = await one_copy(bench)
        assert again.ledgers.context.losses.of(ledger) == (run_,)
        assert stream.lost == [(ledger, run_)]

    run(scenario)


def test_what_is_out_of_reach_is_waited_for_and_never_skipped(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        context = await one_copy(bench)
        stream = await Stream.open(context, "s", create_missing=True)
        for _ in range(2):
            await stream.append(bench.draft("m"))
        for bookie in bench.bookies.bookies.values():
            bookie.failure = BookieUnavailableError("away")
        with pytest.raises(ReadFailedError):
            await stream.read(0, 100)
        for bookie in bench.bookies.bookies.values():
            bookie.failure = None
        assert not _lost((await stream.read(0, 100))[0])
        assert context.ledgers.context.losses.all() == {}

    run(scenario)


@pytest.mark.parametrize("gone", [(9,), (7, 8, 9), tuple(range(10))], ids=["last", "tail", "all"])
def test_a_stream_opens_although_its_last_entries_are_damaged_and_gives_no_offset_twice(
    run: Run, gone: tuple[int, ...]
) -> None:
    async def scenario(bench: Any) -> None:
        before = await Stream.open(await one_copy(bench), "s", create_missing=True)
        for number in range(10):
            await before.append(bench.draft(f"m{number}", 2))
        damage(bench, before.chain.spans[0].ledger_id, *gone)
        stream = await Stream.open(await one_copy(bench), "s")
        end = stream.end_offset
        assert end == 2 * (10 - len(gone)) + len(gone) * MAX_COUNT
        found = await read_all(stream, 0, end, 10_000)
        assert len([batch for batch in found if not _lost(batch)]) == 10 - len(gone)
        assert await stream.append(bench.draft("on")) == end

    run(scenario)


@pytest.mark.parametrize("gone", range(6))
def test_a_damaged_state_entry_costs_nothing_where_there_is_one_copy(run: Run, gone: int) -> None:
    async def scenario(bench: Any) -> None:
        stream = await Stream.open(await one_copy(bench), "s", create_missing=True)
        state = await stream.open_state()
        for number in range(3):
            state.put(f"k{number}", b"v")
            state.put("last", b"%d" % number)
            await state.flush()
        damage(bench, stream.chain.state_ledger, gone)
        context = await one_copy(bench)
        stream = await Stream.open(context, "s")
        again: StateLog = await stream.open_state()
        assert again.keys("") == ["k0", "k1", "k2", "last"]
        assert again.get("last") == b"2"
        assert not again.damaged
        assert context.ledgers.context.losses.all() == {}

    run(scenario)


def test_a_state_of_which_both_copies_are_damaged_says_so_and_goes_on(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        stream = await Stream.open(await one_copy(bench), "s", create_missing=True)
        state = await stream.open_state()
        for number in range(3):
            state.put(f"k{number}", b"v")
            await state.flush()
        damage(bench, stream.chain.state_ledger, 2, 3)
        stream = await Stream.open(await one_copy(bench), "s")
        again = await stream.open_state()
        assert again.keys("") == ["k0", "k2"]
        assert again.damaged
        again.put("k1", b"w")
        await again.flush()

    run(scenario)


def test_compaction_goes_on_behind_damage_in_the_log_and_in_what_was_compacted(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        stream = await Stream.open(await one_copy(bench), "s", create_missing=True)
        state = await stream.open_state()
        view = await CompactedView.open(await one_copy(bench), stream, state)
        for number in range(20):
            await stream.append(bench.draft(f"k{number % 10}"))
        damage(bench, stream.chain.spans[0].ledger_id, 3, 18)

        def keyed(batch: Batch) -> list[tuple[bytes | None, bool]]:
            return [(bytes(batch.payload), True)]

        await view.compact(keyed)
        kept = {bytes(b.payload).decode(): b.base_offset for b in await view.read(0, 1 << 20)}
        assert kept == {f"k{n}": n + 10 for n in range(10)} | {"k8": 8}
        damage(bench, view.compacted.ledger_id, 0, 5, 9)
        left: list[str] = []
        offset = 0
        while offset < view.horizon and (batches := await view.read(offset, 1)):
            left += [bytes(batch.payload).decode() for batch in batches if not _lost(batch)]
            offset = batches[-1].end_offset
        assert left == ["k0", "k1", "k2", "k3", "k5", "k6", "k7"]
        assert await view.offset_at(0) <= 10

    run(scenario)


def test_a_stand_in_cannot_be_stored() -> None:
    with pytest.raises(struct.error):
        encode_batch(stand_in(0, 1, 0))
