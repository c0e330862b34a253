"""An append that failed is never reported as stored, and nothing is stored that was appended behind it."""

import asyncio
from collections.abc import Callable

import pytest

from weir.model.errors import BookieError, BookieUnavailableError, LedgerFencedError, WeirError
from weir.stream.log import Stream

_TURNS = 40
_FAILS_AT, _WORKS_AT = 10, 25


@pytest.mark.parametrize("failure", [BookieUnavailableError("down"), LedgerFencedError("taken over")])
@pytest.mark.parametrize("roll_entries", [1000, 4])
def test_an_append_behind_one_that_fails_fails_too(run: Callable, failure: BookieError, roll_entries: int) -> None:
    """One append per turn of the loop, so that some wait in each state that the writing end can be in."""

    async def scenario(bench) -> None:
        broker = await bench.broker(roll_entries=roll_entries)
        stream = await Stream.open(broker, "s", create_missing=True)
        await stream.append(bench.draft("first"))
        appends: list[asyncio.Future[int]] = []
        #: For each append, those before it whose outcome was open when it was made.
        behind: list[list[asyncio.Future[int]]] = []
        for turn in range(_TURNS):
            if turn in (_FAILS_AT, _WORKS_AT):
                for bookie in bench.bookies.bookies.values():
                    bookie.failure = failure if turn == _FAILS_AT else None
            behind.append([append for append in appends if not append.done()])
            appends.append(stream.append(bench.draft(f"m{turn}")))
            await asyncio.sleep(0)
        await asyncio.wait(appends)
        failed = [append.exception() is not None for append in appends]
        assert True in failed
        overtook = [
            turn
            for turn, before in enumerate(behind)
            if not failed[turn] and any(append.exception() is not None for append in before)
        ]
        assert overtook == []
        confirmed = {append.result(): f"m{turn}" for turn, append in enumerate(appends) if not failed[turn]}
        after = await Stream.open(await bench.broker(), "s")
        assert {offset: (await bench.texts(after, offset))[0] for offset in confirmed} == confirmed

    run(scenario)


def test_an_append_that_waits_for_a_ledger_fails_with_it(run: Callable) -> None:
    async def scenario(bench) -> None:
        stream = await Stream.open(await bench.broker(), "s", create_missing=True)
        await stream.append(bench.draft("first"))
        for bookie in bench.bookies.bookies.values():
            bookie.hold()
        in_flight = stream.append(bench.draft("in flight"))
        await asyncio.sleep(0)
        rolling = asyncio.ensure_future(stream.roll())
        await bench.runtime.clock.sleep(1)
        waiting = stream.append(bench.draft("waiting"))
        await bench.runtime.clock.sleep(1)
        assert (in_flight.done(), waiting.done()) == (False, False)
        for bookie in bench.bookies.bookies.values():
            bookie.release(BookieUnavailableError("down"))
        for append in (in_flight, waiting):
            with pytest.raises(WeirError):
                await append
        await rolling
        await stream.settled()
        await stream.append(bench.draft("again"))
        texts = await bench.texts(stream)
        assert (texts[0], texts[-1], "waiting" in texts) == ("first", "again", False)

    run(scenario)


def test_each_failure_counts_and_wakes_whoever_waits(run: Callable) -> None:
    """The count closes producers that were there before the failure, also if nothing waited behind the append."""

    async def scenario(bench) -> None:
        stream = await Stream.open(await bench.broker(window_bytes=4), "s", create_missing=True)
        await stream.append(bench.draft("m"))
        assert (stream.failures, stream.in_flight, stream.has_capacity) == (0, False, True)
        told: list[int] = []
        stream.listen(lambda: told.append(stream.failures))
        for bookie in bench.bookies.bookies.values():
            bookie.hold()
        append = stream.append(bench.draft("12345"))
        assert (stream.in_flight, stream.has_capacity) == (True, False)
        waiting = asyncio.ensure_future(stream.wait_capacity())
        await bench.runtime.clock.sleep(1)
        assert not waiting.done()
        for bookie in bench.bookies.bookies.values():
            bookie.release(BookieUnavailableError("down"))
        with pytest.raises(WeirError):
            await append
        await waiting
        assert stream.failures == 1
        assert told[-1] == 1
        await stream.settled()
        assert (stream.in_flight, stream.has_capacity) == (False, True)

    run(scenario)


def test_an_append_exactly_as_large_as_the_window_leaves_capacity(run: Callable) -> None:
    async def scenario(bench) -> None:
        stream = await Stream.open(await bench.broker(window_bytes=5), "s", create_missing=True)
        append = stream.append(bench.draft("12345"))
        assert stream.has_capacity
        await stream.wait_capacity()
        assert not append.done()
        await append

    run(scenario)


def test_after_the_end_whoever_waits_for_capacity_or_the_end_hears_of_it(run: Callable) -> None:
    async def scenario(bench) -> None:
        stream = await Stream.open(await bench.broker(window_bytes=4), "s", create_missing=True)
        await stream.append(bench.draft("m"))
        other = await bench.broker()
        for bookie in bench.bookies.bookies.values():
            bookie.hold()
        append = stream.append(bench.draft("12345"))
        waiting = [
            asyncio.ensure_future(stream.wait_capacity()),
            asyncio.ensure_future(stream.wait_beyond(stream.end_offset)),
        ]
        await bench.runtime.clock.sleep(1)
        for bookie in bench.bookies.bookies.values():
            bookie.release()
        await Stream.open(other, "s")  # takes the stream over
        await asyncio.wait([append, *waiting])
        while stream.failure is None:
            stream.append(bench.draft("x")).add_done_callback(lambda done: done.exception())
            await bench.runtime.clock.sleep(0.1)
        assert not stream.has_capacity
        with pytest.raises(WeirError):
            await stream.wait_capacity()
        with pytest.raises(WeirError):
            await stream.wait_beyond(stream.end_offset)
        with pytest.raises(WeirError):
            await stream.append(bench.draft("late"))

    run(scenario)


def test_a_closed_stream_refuses_appends_after_those_under_way(run: Callable) -> None:
    async def scenario(bench) -> None:
        stream = await Stream.open(await bench.broker(), "s", create_missing=True)
        appends = [stream.append(bench.draft(f"m{number}")) for number in range(5)]
        await stream.close()
        assert [append.result() for append in appends] == [0, 1, 2, 3, 4]
        assert stream.failure is not None
        with pytest.raises(WeirError):
            await stream.append(bench.draft("late"))
        after = await Stream.open(await bench.broker(), "s")
        assert await bench.texts(after) == [f"m{number}" for number in range(5)]

    run(scenario)
