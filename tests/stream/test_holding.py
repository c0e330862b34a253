"""The holding area: messages wait, are released once at their moment, and can be listed and cancelled."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from weir.model.batch import Batch, BatchFlags, BatchFormat, HeldId, Origin
from weir.model.errors import (
    BookieUnavailableError,
    NotHeldError,
    StreamBusyError,
    StreamClosedError,
    StreamFencedError,
    StreamTerminatedError,
)
from weir.model.messages import FOREVER_MS, HeldCount, HeldItem
from weir.stream.context import StreamContext
from weir.stream.holding.area import HoldingArea
from weir.stream.log import Stream
from weir.stream.settings import HoldingSettings
from weir.stream.state_log import StateLog
from weir.testing.storage.fakes import FakeLedger

DAY_MS = 24 * 3600 * 1000
#: What the requirement allows.
PROMPT_MS = 100


@dataclass
class Held:
    """A stream with its holding area, as one broker has them."""

    context: StreamContext
    stream: Stream
    state: StateLog
    area: HoldingArea

    @property
    def now(self) -> int:
        return self.context.runtime.clock.wall_ms()

    async def hold(self, text: str, in_ms: int, **fields: Any) -> HeldId:
        return await self.area.hold(draft(text, **fields), self.now + in_ms)

    async def sleep(self, ms: float) -> None:
        await self.context.runtime.clock.sleep(ms / 1000)

    async def released(self) -> list[Batch]:
        found: list[Batch] = []
        offset = self.stream.start_offset
        while batches := await self.stream.read(offset, 100_000):
            found += batches
            offset = batches[-1].end_offset
        return found

    async def texts(self) -> list[str]:
        return [text_of(batch) for batch in await self.released()]

    async def items(self, after: HeldItem | None = None) -> list[HeldItem]:
        return [item async for item in self.area.items(after)]

    async def close(self) -> None:
        await self.area.close()
        await self.state.close()
        await self.stream.close()


def draft(text: str, count: int = 1, origin: Origin | None = None) -> Batch:
    return Batch(-1, count, BatchFormat.PULSAR, 0, text.encode(), origin=origin)


def text_of(batch: Batch) -> str:
    return bytes(batch.payload).decode()


async def open_held(context: StreamContext, **settings: Any) -> Held:
    stream = await Stream.open(context, "t", create_missing=True)
    state = await stream.open_state()
    area = await HoldingArea.open(context, "t", stream, state, HoldingSettings(**settings))
    return Held(context, stream, state, area)


@asynccontextmanager
async def held_on(bench: Any, **settings: Any) -> AsyncIterator[Held]:
    held = await open_held(await bench.broker(), **settings)
    yield held
    await held.close()


Run = Callable[[Callable[[Any], Any]], None]


# --- releasing --------------------------------------------------------------------------------------------------


def test_a_message_is_released_at_its_moment_and_not_before(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench) as held:
            due = held.now + 5000
            await held.hold("later", 5000)
            await held.sleep(4990)
            assert await held.texts() == []
            await held.sleep(10 + PROMPT_MS)
            [batch] = await held.released()
            assert text_of(batch) == "later"
            assert due <= batch.append_ms <= due + PROMPT_MS

    run(scenario)


def test_messages_are_released_in_the_order_of_their_moments_and_ties_as_they_came(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench) as held:
            due = held.now + 1000
            for text, at in (("c", due + 20), ("a1", due), ("b", due + 10), ("a2", due), ("a3", due)):
                await held.area.hold(draft(text), at)
            await held.sleep(1000 + PROMPT_MS)
            assert await held.texts() == ["a1", "a2", "a3", "b", "c"]

    run(scenario)


def test_a_released_batch_is_the_held_one_with_its_id_and_origin(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench) as held:
            held_id = await held.hold("three", 50, count=3, origin=Origin("p", 7))
            await held.sleep(50 + PROMPT_MS)
            [batch] = await held.released()
            assert (batch.base_offset, batch.count, batch.held) == (0, 3, held_id)
            assert batch.flags == BatchFlags.RELEASED
            assert batch.origin == Origin("p", 7)

    run(scenario)


def test_what_is_due_already_is_released_at_once(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench) as held:
            await held.hold("long ago", -10 * DAY_MS)
            await held.area.hold(draft("before 1970"), -5)
            await held.sleep(PROMPT_MS)
            assert sorted(await held.texts()) == ["before 1970", "long ago"]

    run(scenario)


def test_released_and_ordinary_messages_share_one_stream(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench) as held:
            await held.hold("held", 500)
            await held.stream.append(draft("first"))
            await held.sleep(500 + PROMPT_MS)
            await held.stream.append(draft("last"))
            assert await held.texts() == ["first", "held", "last"]

    run(scenario)


def test_messages_far_apart_are_each_released_at_their_moment(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench, window_s=60, load_ahead_s=50, fine_windows=4, tick_s=20) as held:
            start = held.now
            moments = [start + ms for ms in (7, 59_000, 61_000, 3_600_000, 7 * 3_600_000, 7 * 3_600_000 + 1)]
            for at in reversed(moments):
                await held.area.hold(draft(str(at)), at)
            await held.sleep(moments[-1] - start + PROMPT_MS)
            batches = await held.released()
            assert [int(text_of(batch)) for batch in batches] == moments
            for batch, at in zip(batches, moments, strict=True):
                assert at <= batch.append_ms <= at + PROMPT_MS

    run(scenario)


def test_many_more_messages_than_the_index_may_keep_come_out_in_order(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench, index_entries=16, group_entries=5) as held:
            start = held.now + 2000
            moments = [start + (n * 37) % 200 for n in range(200)]
            for at in moments:
                await held.area.hold(draft(str(at)), at)
            await held.sleep(2200 + PROMPT_MS)
            assert [int(text) for text in await held.texts()] == sorted(moments)
            assert len(held.area._loader.index) <= 16

    run(scenario)


def test_a_burst_at_one_moment_is_released_as_it_came(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench, index_entries=50, group_entries=20, in_flight=30) as held:
            due = held.now + 300
            for n in range(400):
                held.area.hold(draft(str(n)), due)
            await held.sleep(300 + PROMPT_MS)
            assert await held.texts() == [str(n) for n in range(400)]

    run(scenario)


def test_a_wall_clock_that_jumps_ahead_frees_messages_within_a_second(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench) as held:
            await held.hold("tomorrow", DAY_MS)
            await held.sleep(5000)
            bench.runtime.clock._hardware.skew_s += 2 * 24 * 3600
            await held.sleep(2200)
            assert await held.texts() == ["tomorrow"]

    run(scenario)


def test_a_wall_clock_that_jumps_back_holds_messages_until_it_says_so(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench) as held:
            await held.hold("soon", 2000)
            bench.runtime.clock._hardware.skew_s -= 10
            await held.sleep(11_000)
            assert await held.texts() == []
            await held.sleep(1000 + PROMPT_MS)
            assert await held.texts() == ["soon"]

    run(scenario)


# --- after downtime ---------------------------------------------------------------------------------------------


def test_what_came_due_while_nobody_held_the_stream_is_released_at_once(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench) as held:
            await held.hold("second", 4000)
            await held.hold("first", 3000)
            await held.hold("tomorrow", DAY_MS)
        await bench.runtime.clock.sleep(600)
        async with held_on(bench) as again:
            await again.sleep(PROMPT_MS)
            assert await again.texts() == ["first", "second"]
            assert await again.area.count() == HeldCount(1, 1)

    run(scenario)


def test_a_holder_that_was_not_closed_leaves_everything_to_the_next(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        before = await open_held(await bench.broker())
        for n in range(5):
            await before.hold(f"soon {n}", 2000 + n)
            await before.hold(f"later {n}", 30 * DAY_MS, count=2)
        await before.sleep(2002)
        after = await open_held(await bench.broker())
        assert await after.area.count() == HeldCount(*_left(await after.texts()))
        await after.sleep(PROMPT_MS)
        assert await after.texts() == [f"soon {n}" for n in range(5)]
        assert await after.area.count() == HeldCount(5, 10)
        with pytest.raises(StreamFencedError):
            await before.hold("too late", 60_000)
        await after.close()

    def _left(texts: list[str]) -> tuple[int, int]:
        return 10 - len(texts), 15 - len(texts)

    run(scenario)


def test_releases_that_the_state_does_not_know_of_are_found_in_the_stream(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        before = await open_held(await bench.broker(state_pause_s=3600), tick_s=3600)
        for n in range(50):
            await before.hold(str(n), 100 + n)
            await before.stream.append(draft(f"ordinary {n}"))
        await before.sleep(150 + PROMPT_MS)
        assert len(await before.texts()) == 100
        after = await open_held(await bench.broker())
        await after.sleep(5000)
        assert len(await after.texts()) == 100
        assert await after.area.count() == HeldCount(0, 0)
        await after.close()

    run(scenario)


def test_the_next_holder_looks_only_at_what_the_state_does_not_cover(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench, cover_messages=10) as held:
            await held.hold("far", DAY_MS)
            for n in range(100):
                await held.stream.append(draft(str(n)))
            await held.sleep(2500)
        again = await open_held(await bench.broker())
        assert again.area._written_covered >= 90
        await again.close()

    run(scenario)


def test_a_message_whose_hold_failed_but_was_stored_is_counted_and_released_once(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench) as held:
            await held.hold("first", 3000)
            for bookie in bench.bookies.bookies.values():
                bookie.hold()  # stored, and never acknowledged
            doubtful = held.area.hold(draft("doubtful"), held.now + 3000)
            await held.sleep(20)
            [ledger] = list(held.area._shelf)
            await ledger.writer.abandon()
            for bookie in bench.bookies.bookies.values():
                bookie.release()
            with pytest.raises(Exception, match="abandoned"):
                await doubtful
            assert await held.area.count() == HeldCount(2, 2)
            await held.hold("last", 3000)
            await held.sleep(3000 + PROMPT_MS)
            assert await held.texts() == ["first", "doubtful", "last"]

    run(scenario)


# --- cancelling, listing, counting ------------------------------------------------------------------------------


def test_a_cancelled_message_is_never_released_even_after_a_crash(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        before = await open_held(await bench.broker(state_pause_s=3600))
        gone = await before.hold("cancelled", 1000)
        await before.hold("kept", 1000)
        await before.area.cancel(gone)
        after = await open_held(await bench.broker())
        await after.sleep(1000 + PROMPT_MS)
        assert await after.texts() == ["kept"]
        await after.close()

    run(scenario)


def test_cancelling_too_late_or_twice_or_something_else_is_refused(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench) as held:
            released = await held.hold("released", 10)
            cancelled = await held.hold("cancelled", 10_000)
            await held.area.cancel(cancelled)
            await held.sleep(10 + PROMPT_MS)
            for wrong in (released, cancelled, HeldId(released.ledger, 77), HeldId(987, 0)):
                with pytest.raises(NotHeldError):
                    await held.area.cancel(wrong)

    run(scenario)


def test_the_list_goes_by_due_moment_and_can_be_taken_up_again(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench, window_s=3600, fine_windows=2, index_entries=7) as held:
            start = held.now
            ids = {}
            for n in range(40):
                at = start + 5000 + (n * 7 % 40) * 3_600_000 // 3
                ids[await held.area.hold(draft("x" * (n + 1), count=n + 1), at)] = (at, n + 1)
            cancelled = list(ids)[5]
            await held.area.cancel(cancelled)
            del ids[cancelled]
            items = await held.items()
            assert [item.due_ms for item in items] == sorted(at for at, _ in ids.values())
            assert {item.id: (item.due_ms, item.count) for item in items} == ids
            assert all(item.size == item.count for item in items)
            assert await held.items(after=items[16]) == items[17:]
            assert await held.area.next_due() == items[0].due_ms

    run(scenario)


def test_the_count_is_exact_through_releases_cancels_and_restarts(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench) as held:
            await held.hold("a", 50, count=2)
            gone = await held.hold("b", DAY_MS, count=3)
            await held.hold("c", DAY_MS, count=4)
            assert await held.area.count() == HeldCount(3, 9)
            await held.sleep(50 + PROMPT_MS)
            assert await held.area.count() == HeldCount(2, 7)
            await held.area.cancel(gone)
            assert await held.area.count() == HeldCount(1, 4)
        async with held_on(bench) as again:
            assert await again.area.count() == HeldCount(1, 4)
            assert await again.area.next_due() is not None

    run(scenario)


def test_an_empty_area_has_nothing_to_tell(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench) as held:
            assert await held.area.count() == HeldCount(0, 0)
            assert await held.items() == []
            assert await held.area.next_due() is None

    run(scenario)


# --- freed by a decision ----------------------------------------------------------------------------------------


def test_a_message_without_a_moment_waits_for_a_decision(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench) as held:
            commit = await held.area.hold(draft("commit"), FOREVER_MS)
            roll_back = await held.area.hold(draft("roll back"), FOREVER_MS)
            await held.sleep(10 * DAY_MS / 1000)
        async with held_on(bench) as again:
            assert await again.texts() == []
            assert (await again.area.get(commit))[0] == FOREVER_MS
            assert await again.area.release(commit) == 0
            await again.area.cancel(roll_back)
            with pytest.raises(NotHeldError):
                await again.area.release(commit)
            assert await again.texts() == ["commit"]
            assert await again.area.next_due() is None

    run(scenario)


def test_a_message_released_by_hand_is_not_released_again_at_its_moment(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench) as held:
            held_id = await held.hold("once", 1000)
            assert await held.area.release(held_id) == 0
            await held.sleep(1000 + PROMPT_MS)
            assert await held.texts() == ["once"]

    run(scenario)


# --- for the broker ---------------------------------------------------------------------------------------------


def test_origins_of_what_was_held_since_a_snapshot_are_found_after_a_crash(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        before = await open_held(await bench.broker())
        await before.hold("0", 60_000, origin=Origin("p", 0))
        snapshot = before.area.positions()
        await before.hold("1", 60_000, origin=Origin("p", 1))
        await before.hold("2", 20 * DAY_MS, origin=Origin("q", 2))
        await before.hold("3", 20 * DAY_MS)
        after = await open_held(await bench.broker())
        assert [origin async for origin in after.area.origins_since(snapshot)] == [Origin("p", 1), Origin("q", 2)]
        await after.close()

    run(scenario)


def test_a_release_that_was_trimmed_away_is_not_repeated(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        before = await open_held(await bench.broker(state_pause_s=3600), tick_s=3600)
        await before.hold("once", 100)
        await before.sleep(100 + PROMPT_MS)
        await before.area.before_trim(1)
        await before.stream.roll()
        await before.stream.trim(1)
        after = await open_held(await bench.broker())
        await after.sleep(1000)
        assert await after.texts() == []
        await after.close()

    run(scenario)


def test_drained_ledgers_are_deleted_and_their_records_too(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench, window_s=10, load_ahead_s=5, tick_s=0.5) as held:
            ledgers = len(await held.context.ledgers.list())
            for n in range(20):
                await held.hold(str(n), n * 2000)
            await held.sleep(70_000)
            assert len(await held.texts()) == 20
            assert held.state.keys("holding/") == []
            # The stream's own ledger and its state's.
            assert len(await held.context.ledgers.list()) <= ledgers + 2

    run(scenario)


def test_a_full_ledger_goes_as_soon_as_it_is_drained(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        held = await open_held(await bench.broker(roll_entries=5))
        for n in range(23):
            await held.hold(str(n), 100)
        await held.sleep(4000)
        assert len(await held.texts()) == 23
        assert len(held.area._shelf) == 1
        await held.close()

    run(scenario)


def test_deleting_leaves_no_ledger_behind(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        held = await open_held(await bench.broker())
        for n in range(5):
            await held.hold(str(n), n * DAY_MS + 60_000)
        await held.area.delete()
        await held.state.close()
        await held.stream.delete()
        assert await held.context.ledgers.list() == []

    run(scenario)


def test_a_terminated_stream_holds_nothing_new_and_releases_nothing(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench) as held:
            await held.hold("never", 1000)
            await held.stream.append(draft("last"))
            await held.stream.terminate()
            with pytest.raises(StreamTerminatedError):
                await held.hold("refused", 1000)
            await held.sleep(3000)
            assert await held.texts() == ["last"]
            assert await held.area.count() == HeldCount(1, 1)
        async with held_on(bench) as again:
            await again.sleep(3000)
            assert await again.texts() == ["last"]
            [item] = await again.items()
            await again.area.cancel(item.id)

    run(scenario)


# --- when something fails ---------------------------------------------------------------------------------------


def test_a_closed_area_refuses(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        held = await open_held(await bench.broker())
        await held.close()
        with pytest.raises(StreamClosedError):
            await held.hold("x", 10)
        await held.area.close()

    run(scenario)


def test_too_much_at_a_time_is_refused_and_ready_waits(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench, window_entries=10) as held:
            futures = [held.area.hold(draft(str(n)), held.now + 500) for n in range(30)]
            refused = [future for future in futures if future.done()]
            assert len(refused) == 9
            for future in refused:
                with pytest.raises(StreamBusyError):
                    await future
            await held.area.wait_capacity()
            assert sum(future.done() for future in futures) >= 20
            await held.sleep(500 + PROMPT_MS)
            assert len(await held.texts()) == 21

    run(scenario)


def test_an_append_in_doubt_that_was_stored_is_not_repeated(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench) as held:
            await held.stream.append(draft("opens the stream's ledger"))
            await held.hold("once", 1000)
            await held.sleep(990)
            for bookie in bench.bookies.bookies.values():
                bookie.hold()  # the release is stored, and never acknowledged
            await held.sleep(15)
            await held.stream._appender._writer.abandon()
            for bookie in bench.bookies.bookies.values():
                bookie.release()
            while (await held.area.count()).batches:
                # As long as the bitmap does not have it, the next holder must find it in the stream.
                assert held.area._releaser.covered <= 1
                await held.sleep(0.1)
            await held.sleep(2000)
            assert (await held.texts())[1:] == ["once"]

    run(scenario)


def _refuse_adds_to(bookie: Any, refused: int) -> None:
    add = bookie.add

    def add_unless_refused(ledger_id: int, entries: Any, *, recovery: bool = False) -> Any:
        if ledger_id != refused:
            return add(ledger_id, entries, recovery=recovery)
        answer = asyncio.get_running_loop().create_future()
        answer.set_exception(BookieUnavailableError("it takes nothing"))
        return answer

    bookie.add = add_unless_refused


def test_an_append_in_doubt_that_was_not_stored_is_made_again(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench) as held:
            await held.stream.append(draft("opens the stream's ledger"))
            await held.hold("once", 1000)
            await held.sleep(990)
            stream_ledger = held.stream._appender._writer.ledger_id
            for bookie in bench.bookies.bookies.values():
                _refuse_adds_to(bookie, stream_ledger)
            await held.sleep(200)
            await held.sleep(2000)
            assert (await held.texts())[1:] == ["once"]

    run(scenario)


def test_what_cannot_be_read_now_is_released_later_and_holds_up_nothing_else(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench, window_s=3600) as held:
            bad = await held.hold("unreadable for a while", 1000)
            await held.sleep(10)
            [ledger] = list(held.area._shelf)
            await held.area._shelf.close_writer(ledger)
            await held.hold("fine", 1000)
            copies = [b.ledgers[bad.ledger] for b in bench.bookies.bookies.values() if bad.ledger in b.ledgers]
            away = [(copy, copy.entries.pop(bad.entry)) for copy in copies if bad.entry in copy.entries]
            await held.sleep(1000 + PROMPT_MS)
            assert await held.texts() == ["fine"]
            for copy, data in away:
                copy.entries[bad.entry] = data
            await held.sleep(5000)
            assert await held.texts() == ["fine", "unreadable for a while"]

    run(scenario)


def test_a_held_message_that_is_damaged_everywhere_is_given_up_and_the_rest_is_released(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench, window_s=3600) as held:
            bad = await held.hold("damaged", 1000)
            await held.hold("fine", 1000)
            for bookie in bench.bookies.bookies.values():
                if bad.entry in bookie.ledgers.get(bad.ledger, FakeLedger()).entries:
                    bookie.damage(bad.ledger, bad.entry)
            await held.sleep(5000)
            assert await held.texts() == ["fine"]
            assert (await held.area.count()).batches == 0
            with pytest.raises(NotHeldError):
                await held.area.get(bad)
            losses = held.area._context.ledgers.context.losses
            assert [(run.first, run.last) for run in losses.of(bad.ledger)] == [(bad.entry, bad.entry)]

    run(scenario)


def test_bookies_that_are_away_at_the_moment_delay_the_release_and_lose_nothing(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        before = await open_held(await bench.broker())
        await before.hold("late", 1000)
        for bookie in bench.bookies.bookies.values():
            bookie.failure = BookieUnavailableError("away")
        await before.sleep(3000)
        for bookie in bench.bookies.bookies.values():
            bookie.failure = None
        after = await open_held(await bench.broker())
        await after.sleep(8000)
        assert await after.texts() == ["late"]
        await after.close()

    run(scenario)


def test_a_list_can_be_left_early(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench) as held:
            for n in range(5):
                await held.hold(str(n), 10_000 + n)
            async with aclosing(held.area.items()) as items:
                async for item in items:
                    assert item.due_ms == (await held.area.next_due())
                    break

    run(scenario)
