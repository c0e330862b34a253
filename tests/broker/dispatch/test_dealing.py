"""Messages dealt one by one, against dealing each of them by hand; and sets that count redeliveries."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from weir.broker.subscriptions.redelivery import MOST, Redeliveries
from weir.broker.subscriptions.selectors import Seat, deal

seats = st.lists(st.builds(Seat, st.just(""), st.integers(0, 2), st.integers(0, 7)), min_size=1, max_size=5)


def by_hand(count: int, seats: list[Seat], turn: int) -> tuple[list[int], int]:
    credit = [seat.credit for seat in seats]
    given: list[int] = []
    for _ in range(count):
        able = [place for place, left in enumerate(credit) if left > 0]
        if not able:
            break
        best = min(seats[place].priority for place in able)
        ring = [place for place in able if seats[place].priority == best]
        place = next((place for place in ring if place >= turn), ring[0])
        credit[place] -= 1
        given.append(place)
        turn = (place + 1) % len(seats)
    return given, turn


@given(st.integers(0, 40), seats, st.integers(0, 4))
def test_whole_rounds_are_dealt_as_single_messages_would_be(count: int, seats: list[Seat], turn: int) -> None:
    turn %= len(seats)
    expected, next_turn = by_hand(count, seats, turn)
    dealt, after = deal(count, seats, turn)
    got: dict[int, int] = {}
    for place, part in dealt:
        for index in part:
            assert index not in got
            got[index] = place
    assert [got[index] for index in sorted(got)] == expected
    assert sorted(got) == list(range(len(expected)))
    assert after == next_turn or len(seats) == 1


@given(st.lists(st.tuples(st.sampled_from("cfk"), st.sets(st.integers(0, 30))), max_size=30))
def test_redeliveries_are_counted_for_each_message(events: list[tuple[str, set[int]]]) -> None:
    counts, model = Redeliveries(), Counter[int]()
    for what, offsets in events:
        if what == "c":
            counts.count(BitMap64(offsets))
            model.update(offsets)
        elif what == "k":
            counts.keep(BitMap64(offsets))
            model = Counter({offset: model[offset] for offset in offsets if model[offset]})
        elif offsets:
            first, end = min(offsets), max(offsets) + 1
            counts.forget(first, end)
            model = Counter({offset: times for offset, times in model.items() if not first <= offset < end})
        assert [counts.of(offset) for offset in range(32)] == [model[offset] for offset in range(32)]
        assert bool(counts) == bool(model)
        for first in range(0, 32, 5):
            assert counts.any_in(first, first + 5) == any(model[offset] for offset in range(first, first + 5))


def test_a_message_that_comes_back_for_ever_costs_no_more_each_time() -> None:
    counts = Redeliveries()
    for _ in range(MOST + 10):
        counts.count(BitMap64([7]))
    assert counts.of(7) == MOST
