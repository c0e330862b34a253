"""Levels of priority: the highest first among what is ready, and how long the lower ones wait at the most."""

from pyroaring import BitMap64

from weir.broker.subscriptions.ready_messages import ReadyByPriority


def filled(levels: ReadyByPriority, *wanted: int) -> None:
    """A message of each of these levels, from offset 0 on."""
    levels.note(0, range(len(wanted)), wanted)


def drained(levels: ReadyByPriority, most: int = 1000) -> list[int]:
    """All that is ready, in the order of delivery, as if somebody took so many at a time."""
    found: list[int] = []
    while levels:
        levels.first()
        taken = levels.within(1 << 40, most)
        levels.remove(taken)
        found += taken
    return found


def test_without_a_bound_the_highest_level_always_comes_first() -> None:
    levels = ReadyByPriority(2)
    filled(levels, *[0, 1] + [2] * 1000)
    assert drained(levels)[-2:] == [1, 0]


def test_a_lower_level_has_its_turn_after_so_many_of_higher_ones() -> None:
    levels = ReadyByPriority(9, passed=10)
    filled(levels, *[0, 0] + [9] * 30)
    order = drained(levels)
    assert (order.index(0), order.index(1)) == (10, 21)
    assert sorted(order) == list(range(32))


def test_each_lower_level_has_turns_of_its_own() -> None:
    levels = ReadyByPriority(9, passed=5)
    filled(levels, *[0, 3] + [9] * 20)
    order = drained(levels, most=1)
    assert order.index(0) <= 6
    assert order.index(1) <= 6


def test_a_level_that_was_empty_begins_to_wait_when_it_has_something() -> None:
    levels = ReadyByPriority(1, passed=4)
    filled(levels, *[1] * 10)
    for _ in range(5):
        levels.first()
        levels.remove(levels.within(1 << 40, 1))
    levels.note(10, [0], [0])
    assert drained(levels, most=1).index(10) == 4


def test_a_level_has_its_turn_after_so_long() -> None:
    now = [1000]
    levels = ReadyByPriority(1, longest_ms=500, now_ms=lambda: now[0])
    filled(levels, *[0, 0] + [1] * 10)
    assert levels.first() == 2
    levels.remove(levels.within(1 << 40, 3))
    now[0] += 500
    assert levels.first() == 0
    levels.remove(levels.within(1 << 40, 5))
    assert levels.first() == 5


def test_what_comes_back_has_its_level_still() -> None:
    levels = ReadyByPriority(3, passed=2)
    filled(levels, 3, 0)
    levels.first()
    levels.remove([0])
    levels.add(BitMap64([0]))
    assert drained(levels) == [0, 1]
