"""Pieces: a model of plain sets says what they must answer."""

from hypothesis import given
from hypothesis import strategies as st

from weir.broker.subscriptions.in_flight import Piece, Pieces
from weir.model.batch import indices_of

#: A log of batches with these counts.
COUNTS = [1, 3, 1, 1, 5, 2, 8, 1]
BASES = [sum(COUNTS[:i]) for i in range(len(COUNTS))]
END = sum(COUNTS)


def offsets(piece: Piece) -> set[tuple[int, int]]:
    return {(piece.base + i, piece.hash) for i in range(piece.count) if piece.whole >> i & 1}


def made(place: int, mask: int | None, key: int) -> Piece:
    """A piece; those of one key are kept as indices, those of the other as a mask."""
    if key and mask is not None:
        return Piece(BASES[place], COUNTS[place], None, key, indices_of(mask))
    return Piece(BASES[place], COUNTS[place], mask, key)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(range(len(COUNTS))), st.integers(1, 255), st.integers(0, 1)),
        st.tuples(st.just("cut"), st.integers(0, END), st.integers(0, END), st.just(0)),
        st.tuples(st.just("whole"), st.sampled_from(range(len(COUNTS))), st.just(0), st.just(0)),
        st.tuples(st.just("first"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(steps)
def test_pieces_hold_what_was_put_in_and_not_taken_out(moves: list[tuple[str, int, int, int]]) -> None:
    pieces, model = Pieces(), set[tuple[int, int]]()
    for what, a, b, key in moves:
        if what == "add":
            full = (1 << COUNTS[a]) - 1
            mask = b & full or full
            piece = made(a, None if mask == full else mask, key)
            model |= offsets(piece)
            pieces.add(piece)
        elif what == "cut":
            gone = set().union(*map(offsets, pieces.cut(a, b)), set())
            assert gone == {(o, k) for o, k in model if a <= o < b}
            model -= gone
        elif what == "whole":
            piece = pieces.pop_whole(BASES[a], BASES[a] + COUNTS[a])
            here = {(o, k) for o, k in model if BASES[a] <= o < BASES[a] + COUNTS[a]}
            if piece is not None:
                assert offsets(piece) == here
                assert len(here) == COUNTS[a]
                model -= here
            else:
                assert len(here) < COUNTS[a] or len({k for _, k in here}) > 1
        else:
            piece = pieces.first()
            assert (piece is None) == (not model)
            if piece is not None:
                lowest = min(model)[0]
                assert piece.base <= lowest < piece.end
        assert set().union(*map(offsets, pieces), set()) == model
        assert pieces.messages == len(model)
        assert [p.base for p in pieces] == sorted(p.base for p in pieces)


@given(
    st.lists(st.tuples(st.sampled_from(range(len(COUNTS))), st.integers(1, 255), st.integers(0, 1)), max_size=12),
    st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=12),
)
def test_many_ranges_at_once_are_what_they_are_one_by_one(
    added: list[tuple[int, int, int]], ranges: list[tuple[int, int]]
) -> None:
    at_once, one_by_one = Pieces(), Pieces()
    for pieces in (at_once, one_by_one):
        for place, bits, key in added:
            full = (1 << COUNTS[place]) - 1
            mask = bits & full or full
            pieces.add(made(place, None if mask == full else mask, key))
    ranges = [(min(pair), max(pair)) for pair in ranges]
    for some in (ranges, sorted(ranges)):
        gone = set().union(*map(offsets, at_once.cut_all(some)), set())
        assert gone == set().union(*(offsets(piece) for run in some for piece in one_by_one.cut(*run)), set())
    assert set().union(*map(offsets, at_once), set()) == set().union(*map(offsets, one_by_one), set())
    assert at_once.messages == one_by_one.messages
