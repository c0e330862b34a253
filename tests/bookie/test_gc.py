"""Garbage collection gives space back and never an entry away."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from weir.bookie.bookie import Bookie
from weir.bookie.folder import Layout, log_ids
from weir.model.errors import NoSuchLedgerError
from weir.model.ids import EntryId, LedgerId
from weir.runtime.interfaces import Runtime
from weir.testing.storage.bookies import batch, entry, tiny_settings

Tell = Callable[..., None]
LAYOUT = Layout("/bookie")

#: Nothing by itself: the story says when.
BY_HAND = replace(
    tiny_settings(),
    flush=replace(tiny_settings().flush, interval_s=10_000.0),
    gc=replace(tiny_settings().gc, interval_s=10_000.0),
)


async def no_orphans(bookie: Bookie) -> list[LedgerId]:
    return bookie.ledgers()


async def collect(bookie: Bookie) -> None:
    await bookie.collect(lambda: no_orphans(bookie))


async def logs(runtime: Runtime) -> list[int]:
    return log_ids(await runtime.disk.list(LAYOUT.logs))


async def fill(bookie: Bookie, flushes: int = 4) -> None:
    """Logs that each hold a part of ledgers 1 to 4."""
    for n in range(flushes):
        await asyncio.gather(*(bookie.add(LedgerId(i), batch(i, 5 * n, 5, bytes(400))) for i in (1, 2, 3, 4)))
        await bookie.flush()


async def whole(bookie: Bookie, ledger_id: int, count: int) -> bool:
    result = await bookie.read(LedgerId(ledger_id), EntryId(0), EntryId(999), max_bytes=1 << 30)
    return result.entries == batch(ledger_id, 0, count, bytes(400))


def test_a_log_whose_ledgers_are_all_deleted_is_removed(tell: Tell) -> None:
    async def story(bookie: Bookie, runtime: Runtime) -> None:
        await fill(bookie, 1)
        for n in (1, 2, 3, 4):
            await bookie.delete(LedgerId(n))
        await collect(bookie)
        assert await logs(runtime) == []
        assert bookie.stats().log_bytes == 0

    tell(story, BY_HAND)


def test_sparse_logs_are_rewritten_into_one_and_their_entries_stay(tell: Tell) -> None:
    async def story(bookie: Bookie, runtime: Runtime) -> None:
        await fill(bookie)
        for n in (1, 2, 3):
            await bookie.delete(LedgerId(n))
        await collect(bookie)
        assert await logs(runtime) == [5]
        assert await whole(bookie, 4, 20)
        stats = bookie.stats()
        assert stats.log_bytes == stats.live_bytes == stats.rewritten_bytes
        await bookie.close()
        again = await Bookie.open(runtime, BY_HAND)
        assert await whole(again, 4, 20)
        assert again.ledgers() == [4]

    tell(story, BY_HAND)


def test_small_logs_are_merged(tell: Tell) -> None:
    async def story(bookie: Bookie, runtime: Runtime) -> None:
        await fill(bookie)
        await collect(bookie)
        assert await logs(runtime) == [5]
        for n in (1, 2, 3, 4):
            assert await whole(bookie, n, 20)

    tell(story, BY_HAND)


def test_it_takes_no_more_of_the_disk_than_it_is_given(tell: Tell) -> None:
    slow = replace(BY_HAND, gc=replace(BY_HAND.gc, bytes_per_s=1000))

    async def story(bookie: Bookie, runtime: Runtime) -> None:
        await fill(bookie)
        before = runtime.clock.monotonic()
        await collect(bookie)
        assert runtime.clock.monotonic() - before >= bookie.stats().rewritten_bytes / 1000

    tell(story, slow)


def test_a_ledger_deleted_while_its_log_is_rewritten_stays_deleted(tell: Tell) -> None:
    slow = replace(BY_HAND, gc=replace(BY_HAND.gc, bytes_per_s=10_000))

    async def story(bookie: Bookie, runtime: Runtime) -> None:
        await fill(bookie)
        collecting = asyncio.ensure_future(collect(bookie))
        await runtime.clock.sleep(1.5)
        assert not collecting.done()
        await bookie.delete(LedgerId(1))
        await bookie.delete(LedgerId(4))
        await bookie.add(LedgerId(4), batch(4, 100, 1), recovery=True)  # by a repair that has not heard of it
        await collecting
        await bookie.flush()
        await bookie.close()
        again = await Bookie.open(runtime, BY_HAND)
        with pytest.raises(NoSuchLedgerError):
            await again.read(LedgerId(1), EntryId(0), EntryId(0), max_bytes=1)
        assert (await again.read(LedgerId(4), EntryId(100), EntryId(100), max_bytes=1)).entries == batch(4, 100, 1)
        assert again.ledgers() == [2, 3, 4]

    tell(story, slow)


@pytest.mark.parametrize("moment", [0.0, 0.5, 1.5, 2.5])
def test_an_entry_replaced_while_its_log_is_rewritten_stays_replaced(tell: Tell, moment: float) -> None:
    slow = replace(BY_HAND, gc=replace(BY_HAND.gc, bytes_per_s=10_000))

    async def story(bookie: Bookie, runtime: Runtime) -> None:
        await fill(bookie)
        if moment == 0.0:  # in the cache before the rewriting begins, flushed while it runs
            await bookie.add(LedgerId(3), [(EntryId(7), entry(3, 7, b"new"))], recovery=True)
        collecting = asyncio.ensure_future(collect(bookie))
        await runtime.clock.sleep(moment)
        if moment:
            await bookie.add(LedgerId(3), [(EntryId(7), entry(3, 7, b"new"))], recovery=True)
        await bookie.flush()
        await collecting
        await check(bookie)
        await bookie.close()
        await check(await Bookie.open(runtime, slow))

    async def check(bookie: Bookie) -> None:
        result = await bookie.read(LedgerId(3), EntryId(6), EntryId(8), max_bytes=1 << 20)
        assert result.entries == [
            (6, entry(3, 6, bytes(400))),
            (7, entry(3, 7, b"new")),
            (8, entry(3, 8, bytes(400))),
        ]

    tell(story, slow)


def test_an_entry_whose_flush_began_before_its_old_log_is_rewritten_stays_replaced(tell: Tell) -> None:
    async def story(bookie: Bookie, runtime: Runtime) -> None:
        await fill(bookie)
        await bookie.add(LedgerId(3), [(EntryId(7), entry(3, 7, b"new"))], recovery=True)
        flushing = asyncio.ensure_future(bookie.flush())
        await runtime.clock.sleep(0)  # its log has its id now, and the rewritten one will get a higher
        await asyncio.gather(flushing, collect(bookie))
        await bookie.close()
        again = await Bookie.open(runtime, BY_HAND)
        result = await again.read(LedgerId(3), EntryId(7), EntryId(7), max_bytes=1)
        assert result.entries == [(7, entry(3, 7, b"new"))]

    tell(story, BY_HAND)


@pytest.mark.slow
def test_readers_never_notice_that_logs_are_rewritten(tell: Tell) -> None:
    async def story(bookie: Bookie, runtime: Runtime) -> None:
        await fill(bookie, 6)
        stop = False

        async def read(dice: Random) -> int:
            rounds = 0
            while not stop:
                ledger, first = dice.randrange(1, 5), dice.randrange(30)
                result = await bookie.read(LedgerId(ledger), EntryId(first), EntryId(99), max_bytes=1 << 20)
                assert result.entries == batch(ledger, first, 30 - first, bytes(400))
                rounds += 1
            return rounds

        reading = [asyncio.ensure_future(read(Random(n))) for n in range(3)]
        for _ in range(3):
            await collect(bookie)
            await runtime.clock.sleep(0.05)
        stop = True
        assert min(await asyncio.gather(*reading)) > 3
        assert bookie.stats().removed_logs >= 6

    tell(story, BY_HAND)
