"""Who gets what: pure decisions about single-active and shared subscriptions.

A piece is a batch, or what is left of one; its cost is how many messages it has. A seat is what a decision needs
to know of a consumer. Credit may be exceeded by a piece that is larger than what is left of it, since batches are
delivered whole; a seat without credit gets nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Seat(NamedTuple):
    """A consumer as the decision sees it. Lower priority numbers are served first."""

    name: str
    priority: int
    credit: int


def take_whole(costs: Sequence[int], credit: int) -> int:
    """How many of the pieces, from the first on, one consumer with this credit gets."""
    taken = 0
    for cost in costs:
        if credit <= 0:
            break
        credit -= cost
        taken += 1
    return taken


def share_out(costs: Sequence[int], seats: Sequence[Seat], turn: int) -> tuple[list[int], int]:
    """For each piece, from the first on, the seat that gets it; shorter than the pieces when credit runs out.

    Seats of the best priority that have credit take turns, piece by piece; those of the next priority are only
    served when the better ones have none left. `turn` is the seat after the one that was served last; the second
    result is the next turn.
    """
    if len(seats) == 1:
        return [0] * take_whole(costs, seats[0].credit), 0
    credit = [seat.credit for seat in seats]
    levels = _levels(seats)
    chosen: list[int] = []
    for cost in costs:
        while levels and not levels[0]:
            levels.pop(0)
        if not levels:
            break
        ring = levels[0]
        at = next((i for i, seat in enumerate(ring) if seat >= turn), 0)
        seat = ring[at]
        credit[seat] -= cost
        if credit[seat] <= 0:
            del ring[at]
        chosen.append(seat)
        turn = (seat + 1) % len(seats)
    return chosen, turn


def deal(count: int, seats: Sequence[Seat], turn: int) -> tuple[list[tuple[int, range]], int]:
    """Deal messages one by one, exactly as far as credit goes: which seat gets which of them, by their places.

    Seats of the best priority that have credit take turns, message by message, from the seat `turn` on; whole
    rounds are dealt at once. The second result is the next turn.
    """
    if len(seats) == 1:
        count = min(count, seats[0].credit)
        return ([(0, range(count))] if count > 0 else []), 0
    credit = [seat.credit for seat in seats]
    dealt: list[tuple[int, range]] = []
    at = 0
    for ring in _levels(seats):
        while ring and at < count:
            start = next((i for i, seat in enumerate(ring) if seat >= turn), 0)
            line = ring[start:] + ring[:start]
            rounds = min(*(credit[seat] for seat in line), (count - at) // len(line))
            if not rounds:
                line, rounds = line[: count - at], 1
            stop = at + rounds * len(line)
            for place, seat in enumerate(line):
                dealt.append((seat, range(at + place, stop, len(line))))
                credit[seat] -= rounds
            at, turn = stop, (line[-1] + 1) % len(seats)
            ring = [seat for seat in ring if credit[seat] > 0]
    return dealt, turn


def _levels(seats: Sequence[Seat]) -> list[list[int]]:
    """The seats that have credit, by priority and then by place."""
    levels: dict[int, list[int]] = {}
    for place, seat in enumerate(seats):
        if seat.credit > 0:
            levels.setdefault(seat.priority, []).append(place)
    return [levels[priority] for priority in sorted(levels)]
