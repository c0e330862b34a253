"""Bytes in memory: what all holders together may have, what each may, and who waits."""

import asyncio

import pytest

from weir.model.errors import InvariantError, TooManyError
from weir.runtime.budgets import ByteBudget
from weir.runtime.waiters import Waiters


def test_nothing_is_released_twice_and_nothing_goes_below_zero() -> None:
    budget = ByteBudget(100)
    share, other = budget.share(), budget.share()
    other.acquire(50)
    share.acquire(30)
    share.release(30)
    with pytest.raises(InvariantError):
        share.release(30)
    with pytest.raises(InvariantError):
        share.acquire(-1)
    assert (budget.used_bytes, budget.holders) == (50, 1)


def test_a_closed_share_holds_nothing_and_counts_nothing_more() -> None:
    budget = ByteBudget(100)
    share = budget.share(10)
    share.on_capacity("who", lambda: None)
    share.acquire(70)
    share.close()
    share.close()
    share.release(70)  # of an answer that comes too late
    share.acquire(5)
    assert (budget.used_bytes, budget.holders, len(budget.callers)) == (0, 0, 0)


def test_a_share_over_its_limit_resumes_when_half_of_it_is_released() -> None:
    share, calls = ByteBudget(1000).share(10), [0]

    def call() -> None:
        calls[0] += 1

    share.on_capacity("caller", call)
    share.acquire(9)
    assert not share.exhausted
    share.acquire(1)
    assert share.exhausted
    share.release(4)
    assert (share.exhausted, calls) == (True, [0])
    share.release(1)
    assert (share.exhausted, share.used_bytes, calls) == (False, 5, [1])
    share.acquire(4)
    assert not share.exhausted


def test_a_reservation_waits_until_all_of_it_fits_and_a_lone_one_always_does() -> None:
    async def main() -> None:
        budget = ByteBudget(100)
        share, other = budget.share(), budget.share()
        await share.reserve(500)
        waiting = asyncio.ensure_future(other.reserve(60))
        await asyncio.sleep(0)
        assert (waiting.done(), budget.waiting) == (False, 1)
        share.release(460)
        await waiting
        assert (budget.used_bytes, other.used_bytes, budget.holders) == (100, 60, 2)
        other.release_all()
        share.release_all()
        assert (budget.used_bytes, budget.holders, budget.exhausted) == (0, 0, False)

    asyncio.run(main())


def test_a_reservation_that_nobody_waits_for_any_more_holds_nothing() -> None:
    async def main() -> None:
        budget = ByteBudget(100)
        share, gone, closed = budget.share(), budget.share(), budget.share()
        await share.reserve(100)
        turns = [asyncio.ensure_future(each.reserve(40)) for each in (gone, closed)]
        await asyncio.sleep(0)
        share.release_all()  # both are granted, and neither has run yet
        turns[0].cancel()
        closed.close()
        await asyncio.wait(turns)
        assert (budget.used_bytes, budget.holders, budget.waiting) == (0, 0, 0)

    asyncio.run(main())


def test_if_too_many_reservations_wait_the_largest_is_refused() -> None:
    async def main() -> None:
        budget = ByteBudget(10, max_waiting=1)
        budget.share().acquire(10)
        small = asyncio.ensure_future(budget.share().reserve(1))
        await asyncio.sleep(0)
        with pytest.raises(TooManyError):
            await budget.share().reserve(2)
        small.cancel()

    asyncio.run(main())


def test_waiters_wake_together_and_forget_who_stopped_waiting() -> None:
    async def main() -> None:
        waiters, seen = Waiters(), [0]
        stays = asyncio.ensure_future(waiters.wait_until(lambda: seen[0] == 2))
        gone = asyncio.ensure_future(waiters.wait())
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        assert len(waiters) == 1
        for _ in range(2):
            assert not stays.done()
            seen[0] += 1
            waiters.wake()
            await asyncio.sleep(0)
        await stays
        doomed = asyncio.ensure_future(waiters.wait())
        await asyncio.sleep(0)
        waiters.fail(TooManyError("never"))
        with pytest.raises(TooManyError):
            await doomed
        assert len(waiters) == 0

    asyncio.run(main())
