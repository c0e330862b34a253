"""Dispatch of single-active and shared subscriptions, as pure decisions."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from weir.broker.subscriptions.selectors import Seat, share_out, take_whole
from weir.broker.subscriptions.single_active import Standing

costs = st.lists(st.integers(1, 20), max_size=60)
seat_lists = st.lists(
    st.builds(Seat, st.text("abc", max_size=3), st.integers(0, 2), st.integers(-3, 40)), min_size=1, max_size=6
)


@given(costs, st.integers(-5, 100))
def test_one_consumer_gets_pieces_until_its_credit_is_used_up(pieces: list[int], credit: int) -> None:
    taken = take_whole(pieces, credit)
    assert taken == 0 or sum(pieces[: taken - 1]) < credit
    assert taken == len(pieces) or sum(pieces[:taken]) >= credit


@given(costs, seat_lists, st.integers(0, 5))
def test_shared_dispatch_respects_credit_priority_and_order(
    pieces: list[int], seats: list[Seat], turn: int
) -> None:
    chosen, _ = share_out(pieces, seats, turn)
    left = [seat.credit for seat in seats]
    for cost, place in zip(pieces, chosen, strict=False):
        assert left[place] > 0, "a seat without credit was served"
        better = [p for p, seat in enumerate(seats) if seat.priority < seats[place].priority and left[p] > 0]
        assert not better, "a better priority had credit left"
        left[place] -= cost
    assert len(chosen) == len(pieces) or not any(credit > 0 for credit in left), "credit was left unused"


@given(st.integers(2, 6), st.integers(1, 50), st.integers(0, 5))
def test_shared_consumers_with_enough_credit_get_the_same_number_of_pieces(n: int, pieces: int, turn: int) -> None:
    chosen, following = share_out([1] * pieces, [Seat(f"c{i}", 0, 1000) for i in range(n)], turn)
    counts = [chosen.count(place) for place in range(n)]
    assert max(counts) - min(counts) <= 1
    assert following == (chosen[-1] + 1) % n


def test_turns_go_on_where_they_stopped() -> None:
    seats = [Seat(f"c{i}", 0, 100) for i in range(3)]
    turn, order = 0, []
    for _ in range(6):
        chosen, turn = share_out([1], seats, turn)
        order += chosen
    assert order == [0, 1, 2, 0, 1, 2]


def test_the_active_consumer_is_the_first_name_of_the_best_priority_and_partitions_take_turns() -> None:
    standing = Standing()
    assert standing.active(0) is None
    consumers: list[Any] = [
        SimpleNamespace(priority=priority, name=name, number=number)
        for number, (name, priority) in enumerate([("b", 1), ("z", 0), ("a", 0)])
    ]
    for consumer in consumers:
        standing.add(consumer)
    assert standing.active(None) == 2
    assert [standing.active(partition) for partition in range(3)] == [2, 1, 2]
    standing.discard(consumers[2])
    assert [standing.active(partition) for partition in range(2)] == [1, 1]
