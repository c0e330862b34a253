"""Chores of many writers on one timer."""

from collections.abc import Callable
from functools import partial

from weir.ledger.context import Rounds


class HandClock:
    """Timers that the test fires."""

    def __init__(self) -> None:
        self.timers: list[Callable[[], None]] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> object:
        self.timers.append(callback)
        return object()

    def tick(self) -> None:
        timers, self.timers = self.timers, []
        for timer in timers:
            timer()


def test_a_chore_is_done_once_and_not_before_a_whole_interval() -> None:
    clock, done = HandClock(), []
    rounds = Rounds(clock, 1.0)
    rounds.ask(partial(done.append, 1))
    clock.tick()
    assert done == []
    clock.tick()
    clock.tick()
    assert done == [1]


def test_many_chores_share_a_timer_and_no_chore_needs_none() -> None:
    clock, done = HandClock(), []
    rounds = Rounds(clock, 1.0)
    chores = [partial(done.append, i) for i in range(100)]
    for chore in [*chores, *chores]:
        rounds.ask(chore)
        assert len(clock.timers) == 1
    clock.tick()
    clock.tick()
    assert done == list(range(100))
    assert clock.timers == []


def test_a_chore_may_ask_for_itself_again() -> None:
    clock, done = HandClock(), []
    rounds = Rounds(clock, 1.0)

    def chore() -> None:
        done.append(len(done))
        rounds.ask(chore)

    rounds.ask(chore)
    for _ in range(6):
        clock.tick()
    assert done == [0, 1, 2]
